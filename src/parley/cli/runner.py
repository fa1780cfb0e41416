"""Runs one command: parses the arguments, cancels the command on a signal, and converts errors to exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from parley.app.signals import KILLED, SIGNALS
from parley.errors import ConfigError, ParleyError

if TYPE_CHECKING:
    import argparse

__all__ = [
    "FAILED",
    "USAGE_ERROR",
    "CommandFailed",
    "UsageError",
    "add_config_option",
    "run_command",
    "run_until_signal",
]

FAILED: Final = 1
USAGE_ERROR: Final = 2
"""The exit code for an invalid command line or unusable settings."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers for a full disk and an exhausted disk quota."""


class CommandModule(Protocol):
    """The interface of a module that implements a command."""

    DESCRIPTION: str
    """The text that `--help` shows above the options."""

    @property
    def configure(self) -> Callable[[argparse.ArgumentParser], None]:
        """The function that adds the options and operands of the command to its parser."""

    @property
    def run(self) -> Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]:
        """The function that runs the command. It returns the exit code, or a coroutine that returns the exit code.

        Raises:
            UsageError: the arguments contradict each other.
            ConfigError: the settings cannot be used.
            CommandFailed, ParleyError: the command failed for the reason in the text of the error.
        """


class UsageError(Exception):
    """Raised for an invalid command line. The text gives the reason."""

    def __init__(self, text: str, *, prog: str | None = None) -> None:
        """Create an error with the reason `text`.

        `prog` is the command whose help describes the command line, such as `parley token create`; None for the
        command that is running.
        """
        super().__init__(text)
        self.prog = prog


class CommandFailed(Exception):
    """Raised when a command fails. The text gives the reason."""

    def __init__(self, text: str, *, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def run_command(name: str, module: object, arguments: Sequence[str]) -> int:
    """Run the command `name`, which `module` implements, and return its exit code. Errors of the command are
    printed to stderr.
    """
    command = cast(CommandModule, module)
    try:
        args = getattr(module, "DEFAULTS", None)  # this avoids the slow import of argparse
        if arguments or args is None:
            args = _parse(name, command, arguments)
        code = command.run(args)
        return code if isinstance(code, int) else run_until_signal(code)
    except UsageError as error:
        _print_error(name, f"{error}; see `{error.prog or f'parley {name}'} --help`")
        return USAGE_ERROR
    except CommandFailed as error:
        _print_error(name, error)
        return error.code
    except ConfigError as error:
        _print_error(name, error)
        return USAGE_ERROR
    except ParleyError as error:
        _print_error(name, error)
        return FAILED
    except BrokenPipeError:  # as in `parley show ID | head`
        _discard_output()
        return FAILED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        from parley.common.os_errors import os_detail  # imported here: few commands need this module

        with suppress(OSError):  # stderr may be on the same disk
            _print_error(name, f"cannot write the output: {os_detail(error)}")
        _discard_output()
        return FAILED
    except KeyboardInterrupt:
        return KILLED + signal.SIGINT
    except SystemExit as end:  # argparse exits after `--help`
        return int(end.code or 0)


def _discard_output() -> None:
    """After a write error, discard the buffered output of stdout and stderr. Python would write this output when it
    exits, and would report the same error again.
    """
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(name: str, text: object) -> None:
    from parley.cli.printing import print_note  # imported here: the relay of `parley mcp` starts without it

    print_note(name, text)


def _usage_error(text: str, prog: str) -> UsageError:
    return UsageError(text, prog=prog)


def _parse(name: str, command: CommandModule, arguments: Sequence[str]) -> argparse.Namespace:
    from parley.cli.parser import make_parser, option_names

    parser = make_parser(
        f"parley {name}", command.DESCRIPTION, configure=command.configure, usage_error=_usage_error
    )
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        given = unknown[0]
        if given.startswith("-"):
            raise UsageError(f"unknown option {given!r}{_did_you_mean(given, option_names(parser))}")
        raise UsageError(f"unexpected argument {given!r}")
    return args


def _did_you_mean(given: str, known: Sequence[str]) -> str:
    """Return a hint with the option in `known` that is most similar to `given`; an empty string if no option is
    similar.
    """
    from difflib import get_close_matches  # imported here: only a usage error needs this module

    found = get_close_matches(given.partition("=")[0], known, n=1) if given.startswith("--") else []
    return f", perhaps `{found[0]}`" if found else ""


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and cancel it on a signal. Return the exit code that the coroutine returns, or 128 plus the
    number of the signal.
    """
    import asyncio  # imported here: the relay of `parley mcp` starts without it

    received: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}

    async def run() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def end(number: int) -> None:
            if not received:
                received.append(number)
                task.cancel()

        for number in SIGNALS:
            # Under `nohup`, SIGHUP stays ignored.
            if number != signal.SIGHUP or before[number] is not signal.SIG_IGN:
                loop.add_signal_handler(number, end, number)
        try:
            return await task
        finally:
            # A signal that arrives while the loop is being closed would be reported as an error.
            for number in SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        return KILLED + (received[0] if received else signal.SIGINT)  # a command may handle SIGINT itself
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def add_config_option(parser: argparse.ArgumentParser, *, dest: str = "config") -> None:
    """Add the option `-c KEY=VALUE`, for commands that use settings. `dest` is the name of the parsed argument."""
    parser.add_argument(
        "-c",
        "--config",
        dest=dest,
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a setting of config.toml: a dotted key and a TOML value, such as -c model=o3 or "
        "-c store.keep_days=30; a value that is not TOML is text; may be repeated",
    )
