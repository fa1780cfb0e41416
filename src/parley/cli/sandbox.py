"""`parley sandbox`: runs one command, confined like the agent's commands."""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from parley.app.signals import KILLED, SIGNALS
from parley.cli.printing import print_note
from parley.cli.runner import CommandFailed, UsageError, add_config_option
from parley.cli.settings import settings_loader
from parley.config.types import SandboxMode, Settings, SettingsOverrides
from parley.errors import CommandNotStarted, ConfigError, SandboxUnavailable
from parley.wire.text import quoted

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Run one command in the same way as the agent's commands: with the settings of
config.toml, in the sandbox, with the same environment and an empty stdin. The
output of the command is passed through.

examples:
  parley sandbox -- cat README.md
  parley sandbox --mode workspace-write -- make test
  parley sandbox --mode workspace-write -- sh -c 'echo x >.git/config'
  parley sandbox -c sandbox.mechanism=landlock -- cat ~/.ssh/id_ed25519

exit code: the exit code of the command; 128 plus the number of the signal that
killed it; 2 for a usage error; 125 for wrong settings, or if the command cannot be
confined; 127 if it cannot be started; 130 after Ctrl-C; 129 if the terminal is
closed. In the last two cases all processes of the command are killed."""

MODES: Final[tuple[SandboxMode, ...]] = ("read-only", "workspace-write")

NOT_CONFINED: Final = 125
NOT_STARTED: Final = 127
WAKE_BYTES: Final = 4096
"""The maximum number of bytes in one read from the wake-up socket, to which each signal writes one byte."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=MODES, help="the sandbox mode; by default the mode of the settings")
    parser.add_argument(
        "--cwd",
        metavar="DIR",
        help="the working directory, which workspace-write makes writable; by default the current directory",
    )
    parser.add_argument("--network", action="store_true", help="allow the network (workspace-write only)")
    add_config_option(parser)
    parser.add_argument("command", metavar="COMMAND", nargs="...", help="the program and its arguments")


def run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("expected a command to run")
    try:
        settings = _settings(args)
    except ConfigError as error:
        raise CommandFailed(str(error), code=NOT_CONFINED) from None
    # `run_until_signal` cannot be used here: its handlers run in the event loop, and a write to a pipe that is not
    # read blocks the event loop. The handlers of `_Output` interrupt such a write. Signals are blocked until these
    # handlers are installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return asyncio.run(_run(settings, command))


def _settings(args: argparse.Namespace) -> Settings:
    network = {"sandbox_workspace_write.network_access": True} if args.network else None
    wanted = SettingsOverrides(sandbox=args.mode, cwd=args.cwd, config=network)
    settings = settings_loader(args.config).choose(wanted).settings
    if settings.sandbox_mode not in MODES:
        raise UsageError(f"the settings say {settings.sandbox_mode}, which confines nothing; choose a --mode")
    if args.network and not settings.network_access:
        raise UsageError(f"--network requires --mode workspace-write, and the mode is {settings.sandbox_mode}")
    return settings


# --- the command -------------------------------------------------------------------------


def _not_started(cwd: str, program: str) -> str:
    """Return the error message for a command that could not be started.

    The operating system reports the same error for a missing working directory and for a missing program. This
    function therefore checks whether the directory is missing.
    """
    if not os.path.isdir(cwd):
        return f"cannot start in directory {quoted(cwd)}"
    return f"cannot start program {quoted(program)}"


async def _run(settings: Settings, command: Sequence[str]) -> int:
    from parley.app.standalone import run_confined

    loop = asyncio.get_running_loop()
    output = _Output(on_end=lambda: loop.call_soon_threadsafe(running.cancel))
    running = asyncio.ensure_future(run_confined(settings, command, output=output.pass_on))
    # The socket pair wakes the loop if a signal arrives just before the loop starts to wait.
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    loop.add_reader(woken, woken.recv, WAKE_BYTES)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in SIGNALS:
        # Under `nohup`, SIGHUP stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, output.end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        ended = await running
    except asyncio.CancelledError:
        if output.ended_by is None:
            raise
        return KILLED + output.ended_by
    except SandboxUnavailable as error:
        print_note("sandbox", f"the command was not run, because it cannot be confined: {error}")
        return NOT_CONFINED
    except CommandNotStarted as error:
        print_note("sandbox", f"{_not_started(settings.cwd, command[0])}: {error}")
        return NOT_STARTED
    finally:
        signal.set_wakeup_fd(-1)
        loop.remove_reader(woken)
        woken.close()
        wake.close()
    if ended.exit_code is None:
        return KILLED + (ended.signal or signal.SIGKILL)
    return ended.exit_code


class _Interrupted(Exception):
    """Raised when a signal arrives while a write is blocked."""


class _Output:
    """Forwards the output of the command unchanged, and ends the command on a signal.

    A write blocks until the process that reads the output has read enough, so the command waits as it would without
    Parley. Only a signal interrupts a blocked write.
    """

    def __init__(self, on_end: Callable[[], object]) -> None:
        self.ended_by: int | None = None
        self._on_end = on_end
        self._writing = False

    def end(self, number: int, _: FrameType | None = None) -> None:
        if self.ended_by is None:
            self.ended_by = number
            self._on_end()
        if self._writing:
            raise _Interrupted

    def pass_on(self, stream: str, data: bytes) -> None:
        if self.ended_by is not None:
            return
        try:
            self._writing = True
            try:
                _write(1 if stream == "stdout" else 2, data)
            finally:
                self._writing = False
        except _Interrupted:
            pass
        except OSError:  # the reader has closed the pipe, as in `parley sandbox -- yes | head`
            self.end(signal.SIGPIPE)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process has made the terminal non-blocking
            select.select((), (descriptor,), ())
