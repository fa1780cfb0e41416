"""`parley sandbox`: one command, confined as the agent's are, to see what it can do there.

What it says is passed on as it comes, and its exit code is ours.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NamedTuple

from parley.app.signals import KILLED, SIGNALS
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error
from parley.config.load import Loader
from parley.config.types import SandboxMode, Settings, Wanted
from parley.errors import BadSetting, CommandNotStarted, ConfigError, SandboxUnavailable
from parley.wire.text import quoted

__all__ = ["run_sandbox"]

USAGE: Final = """\
usage: parley sandbox [OPTIONS] [--] COMMAND [ARGUMENT]...

Run one command as the agent's commands are run: with the settings of
config.toml, in their sandbox, with their environment and an empty stdin. What
it prints is passed on, and its exit code is that of this program.

options:
  --mode MODE              read-only or workspace-write; as in the settings
                           without it
  --cwd DIR                where it runs, and in workspace-write also what it
                           may write to; here without it
  --network                let it use the network (workspace-write only)
  -c, --config KEY=VALUE   a setting that wins over config.toml, as for
                           `parley mcp`. May be given more than once
  -h, --help               this text

examples:
  parley sandbox -- cat README.md
  parley sandbox --mode workspace-write -- make test
  parley sandbox --mode workspace-write -- sh -c 'echo x >.git/config'
  parley sandbox -c sandbox.mechanism=landlock -- cat ~/.ssh/id_ed25519

exit code: that of the command; 128 and the number of the signal that killed
it; 125 when it cannot be confined, for wrong settings and for a wrong command
line; 127 when it cannot be started; 130 after Ctrl-C, 129 when its terminal is
closed. Then nothing that it started is left running.
"""

MODES: Final[tuple[SandboxMode, ...]] = ("read-only", "workspace-write")

NOT_CONFINED: Final = 125
NOT_STARTED: Final = 127
WAKE_BYTES: Final = 4096
"""One for each signal that came; nobody reads which."""


def run_sandbox(arguments: Sequence[str]) -> int:
    """Run it, and return the exit code that the usage tells of."""
    try:
        asked = _asked(arguments)
        if asked is None:
            print(USAGE, end="")
            return 0
        settings = _settings(asked)
    except (BadLine, ConfigError) as error:
        print_error("sandbox", error)
        return NOT_CONFINED
    # A signal that comes while we start is kept until somebody is there to end in order.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return asyncio.run(_run(settings, asked.command))


# --- the command line --------------------------------------------------------------------


class _Asked(NamedTuple):
    command: tuple[str, ...]
    mode: SandboxMode | None
    cwd: str | None
    network: bool
    overrides: tuple[str, ...]


def _asked(arguments: Sequence[str]) -> _Asked | None:
    """What is to be run and how; None: somebody wants to read the usage."""
    values: dict[str, list[str]] = {"--mode": [], "--cwd": [], "--config": []}
    network = False
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, glued, value = rest.pop(0).partition("=")
        if option == "--":
            break
        if option in ("-h", "--help"):
            return None
        if option == "--network" and not glued:
            network = True
            continue
        named = "--config" if option == "-c" and not glued else option
        if named not in values:
            raise BadLine(f"unknown option {option!r}; see `parley sandbox --help`")
        if not glued:
            if not rest:
                raise BadLine(f"option {option} requires a value")
            value = rest.pop(0)
        values[named].append(value)
    if not rest:
        raise BadLine("expected a command to run; see `parley sandbox --help`")
    mode = values["--mode"][-1] if values["--mode"] else None
    known = next((name for name in MODES if name == mode), None)
    if mode != known:
        raise BadLine(f"invalid --mode {mode!r} (choose from {', '.join(MODES)})")
    cwd = values["--cwd"][-1] if values["--cwd"] else None
    return _Asked(tuple(rest), known, cwd, network, tuple(values["--config"]))


def _settings(asked: _Asked) -> Settings:
    try:
        here = os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None
    loader = Loader(environ=os.environ, server_dir=here, overrides=asked.overrides)
    network = {"sandbox_workspace_write.network_access": True} if asked.network else None
    settings = loader.choose(Wanted(sandbox=asked.mode, cwd=asked.cwd, config=network)).settings
    if settings.sandbox_mode not in MODES:
        raise BadLine(f"the settings say {settings.sandbox_mode}, which confines nothing; choose a --mode")
    if asked.network and not settings.network_access:
        raise BadLine(f"--network goes with --mode workspace-write, and the mode is {settings.sandbox_mode}")
    return settings


# --- the command -------------------------------------------------------------------------


def _not_started(cwd: str, program: str) -> str:
    """Whether the directory or the program is at fault: the system says the same of both."""
    if not os.path.isdir(cwd):
        return f"cannot start in directory {quoted(cwd)}"
    return f"cannot start program {quoted(program)}"


async def _run(settings: Settings, command: Sequence[str]) -> int:
    from parley.app.by_hand import run_confined

    spout = _Spout()
    running = asyncio.ensure_future(run_confined(settings, command, output=spout.pass_on))
    loop = asyncio.get_running_loop()
    spout.on_end = lambda: loop.call_soon_threadsafe(running.cancel)
    # Or a signal that comes while the loop is about to wait would be heard when it wakes by itself.
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    loop.add_reader(woken, woken.recv, WAKE_BYTES)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, spout.end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        ended = await running
    except asyncio.CancelledError:
        if spout.ended_by is None:
            raise
        return KILLED + spout.ended_by
    except SandboxUnavailable as error:
        print_error("sandbox", f"it cannot be confined, and so it was not run: {error}")
        return NOT_CONFINED
    except CommandNotStarted as error:
        print_error("sandbox", f"{_not_started(settings.cwd, command[0])}: {error}")
        return NOT_STARTED
    finally:
        signal.set_wakeup_fd(-1)
        loop.remove_reader(woken)
        woken.close()
        wake.close()
    if ended.exit_code is None:
        return KILLED + (ended.signal or signal.SIGKILL)
    return ended.exit_code


class _Enough(Exception):
    """A signal came while we waited for whoever reads what the command says."""


class _Spout:
    """Where what a command says comes out, and who hears that it is to end.

    Writing waits for whoever reads: so does the command then, as it would without us. Only a signal gets
    past somebody who does not read at all.
    """

    def __init__(self) -> None:
        self.ended_by: int | None = None
        self.on_end: Callable[[], object] = lambda: None
        self._writing = False

    def end(self, number: int, _: FrameType | None = None) -> None:
        if self.ended_by is None:
            self.ended_by = number
            self.on_end()
        if self._writing:
            raise _Enough

    def pass_on(self, stream: str, data: bytes) -> None:
        if self.ended_by is not None:
            return
        try:
            self._writing = True
            try:
                _write(1 if stream == "stdout" else 2, data)
            finally:
                self._writing = False
        except _Enough:
            pass
        except OSError:  # `parley sandbox -- yes | head`: whoever read it has seen enough
            self.end(signal.SIGPIPE)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # a terminal that somebody else has set so
            select.select((), (descriptor,), ())
