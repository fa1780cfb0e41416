"""Processes that run `parley` and start quickly: copies of a process that has already loaded the modules.

`allow_copies` replaces the start of a program in `subprocess`, for the command lines `python -m parley` and
`python -m kit.servers.PROGRAM`, for `parley` as a `TerminalProgram`, and for the fork server of this process. The
copy has its own pid, memory, descriptors, environment and directory, and is a child of this process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Final

import parley
from kit.servers.preloaded_program import CLONE_NUMBERS, DEFAULT_HANDLERS, MAX_REQUEST_BYTES
from kit.servers.terminal_program import LAUNCHER
from parley.tools.commands.fork_server_link import PROGRAM as FORK_SERVER

__all__ = ["allow_copies", "end_preloaded"]

PROGRAM: Final = Path(__file__).with_name("preloaded_program.py")
PYTHON: Final = sys.executable
MODULES: Final = re.compile(r"parley|kit\.servers\.\w+")

READ_BY_PYTHON: Final = re.compile("PYTHON|LC_|LANG|TZ|MALLOC|LD_")
"""The pattern of variables that take effect when Python starts.

Each combination of their values has its own preloaded process.
"""

LOAD_FORK_SERVER: Final = FORK_SERVER.removesuffix("main()\n"), str(Path(parley.__file__).parent)
"""The source of the fork server without its last line, which begins to serve, and its argument."""

_execute_child: Final[Callable[..., None]] = vars(subprocess.Popen)["_execute_child"]
_parameters: Final = signature(_execute_child)


_Variables = tuple[tuple[str, str], ...]


class _Preloaded:
    """A process that has loaded the modules.

    It is started when it is first needed, and its descriptors are open from the beginning.
    """

    def __init__(self, variables: _Variables, *, is_fork_server: bool) -> None:
        self._variables = variables
        self._options: tuple[str, ...]
        self._loading: tuple[str, ...]
        self._options, self._loading = (("-I", "-S"), LOAD_FORK_SERVER) if is_fork_server else (("-P",), ())
        self._connection, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, request: bytes, descriptors: Sequence[int]) -> int:
        """Return the pid of a copy."""
        if self._process is None:
            descriptor = self._theirs.fileno()
            self._process = subprocess.Popen(
                (sys.executable, *self._options, PROGRAM, str(descriptor), *self._loading),
                env=dict(self._variables),
                pass_fds=(descriptor,),
                cwd="/",
            )
        socket.send_fds(self._connection, [request], descriptors)
        return int(self._connection.recv(100))

    def close(self) -> None:
        self._connection.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


_preloaded: Final[dict[tuple[_Variables, bool], _Preloaded]] = {}


def _preloaded_with(env: Mapping[str, str], *, is_fork_server: bool = False) -> _Preloaded:
    variables = tuple(sorted((name, value) for name, value in env.items() if READ_BY_PYTHON.match(name)))
    key = variables, is_fork_server
    if key not in _preloaded:
        _preloaded[key] = _Preloaded(variables, is_fork_server=is_fork_server)
    return _preloaded[key]


def _start(popen: Any, *given: Any, **named: Any) -> None:
    """Start a copy instead of a new program. This function replaces `Popen._execute_child`."""
    how = _parameters.bind(popen, *given, **named).arguments
    request = _request(how)
    data = json.dumps(request).encode()
    if request is None or len(data) > MAX_REQUEST_BYTES:
        _execute_child(popen, *given, **named)
        return
    descriptors = [
        theirs if theirs != -1 else number
        for number, theirs in enumerate((how["p2cread"], how["c2pwrite"], how["errwrite"]))
    ]
    is_fork_server = request["module"] is None
    popen.pid = _preloaded_with(request["env"], is_fork_server=is_fork_server).start(
        data, [*descriptors, *how["pass_fds"]]
    )
    popen._child_created = True
    popen._close_pipe_fds(
        *(how[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
    )


def _request(how: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request for a copy; None if the call needs a new program."""
    passed, has_terminal = 0, False
    match how["args"]:
        case [program, "-I", "-S", "-c", source, folder, _, *rest] if (program, source) == (PYTHON, FORK_SERVER):
            # The copy gets the socket as the first descriptor after the standard ones.
            module, arguments, passed = None, [folder, "3", *rest], 1
        case [sys.executable, "-P", "-m", "parley" as module, *arguments]:
            pass
        case [_, "-c", source, sys.executable, "-P", "-m", "parley" as module, *arguments] if source == LAUNCHER:
            has_terminal = True
        case [sys.executable, "-m", str() as module, *arguments] if MODULES.fullmatch(module):
            pass
        case _:
            return None
    cwd = os.path.abspath(how["cwd"] or ".")
    if (
        any(how[name] for name in ("preexec_fn", "shell"))
        or len(how["pass_fds"]) != passed
        or any(how[name] not in (None, -1) for name in ("gid", "gids", "uid", "umask"))
        or how["executable"] not in (None, sys.executable)
        or not os.path.isdir(cwd)
    ):
        return None
    return {
        "module": module,
        "arguments": [str(word) for word in arguments],
        "env": dict(os.environ if how["env"] is None else how["env"]),
        "cwd": cwd,
        "new_session": how["start_new_session"],
        "has_terminal": has_terminal,
        "ignored": [number for number in DEFAULT_HANDLERS if signal.getsignal(number) is signal.SIG_IGN],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


def allow_copies(allowed: bool) -> None:
    """Start `parley` as copies from now on, if the system supports it, or as new programs."""
    if not allowed or sys.platform != "linux" or platform.machine() not in CLONE_NUMBERS:
        setattr(subprocess.Popen, "_execute_child", _execute_child)  # noqa: B010 - typeshed does not have it
        return
    # Some tests count descriptors, so the descriptors of most preloaded processes are opened before a test begins.
    _preloaded_with({})
    _preloaded_with(os.environ)
    _preloaded_with({}, is_fork_server=True)
    setattr(subprocess.Popen, "_execute_child", _start)  # noqa: B010 - typeshed does not have it


def end_preloaded() -> None:
    """End the processes that have loaded the modules."""
    for one in _preloaded.values():
        one.close()
    _preloaded.clear()
