"""Processes that run `parley` and start quickly: copies of a process that has already loaded the modules.

`preloaded_processes` replaces the start of a program in `subprocess`, for the command lines `python -m parley` and
`python -m kit.servers.PROGRAM`. The copy has its own pid, memory, descriptors, environment and directory, and is a
child of this process.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest

from kit.servers.preloaded_program import CLONE_NUMBERS, MAX_REQUEST_BYTES

__all__ = ["end_preloaded", "preloaded_processes"]

PROGRAM: Final = Path(__file__).with_name("preloaded_program.py")
MODULES: Final = re.compile(r"parley|kit\.servers\.\w+")

READ_BY_PYTHON: Final = re.compile("PYTHON|LC_|LANG|TZ|MALLOC|LD_")
"""Variables that take effect when Python starts. For each combination there is a process with the modules."""

INHERITED_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)

_execute_child: Final[Callable[..., None]] = vars(subprocess.Popen)["_execute_child"]
_parameters: Final = signature(_execute_child)


_Variables = tuple[tuple[str, str], ...]


class _Preloaded:
    """A process with loaded modules, started when it is first needed. Its descriptors are open from the
    beginning."""

    def __init__(self, variables: _Variables) -> None:
        self._variables = variables
        self._connection, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, request: bytes, descriptors: Sequence[int]) -> int:
        """Return the pid of a copy."""
        if self._process is None:
            descriptor = self._theirs.fileno()
            self._process = subprocess.Popen(
                (sys.executable, "-P", PROGRAM, str(descriptor)),
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


_preloaded: Final[dict[_Variables, _Preloaded]] = {}


def _preloaded_with(env: Mapping[str, str]) -> _Preloaded:
    variables = tuple(sorted((name, value) for name, value in env.items() if READ_BY_PYTHON.match(name)))
    if variables not in _preloaded:
        _preloaded[variables] = _Preloaded(variables)
    return _preloaded[variables]


def _start(popen: Any, *given: Any, **named: Any) -> None:
    """Start a copy, in place of `Popen._execute_child`."""
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
    popen.pid = _preloaded_with(request["env"]).start(data, descriptors)
    popen._child_created = True
    popen._close_pipe_fds(
        *(how[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
    )


def _request(how: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the request for a copy; None if only a new program can do what is requested."""
    match how["args"]:
        case [sys.executable, "-P", "-m", "parley" as module, *arguments]:
            pass
        case [sys.executable, "-m", str() as module, *arguments] if MODULES.fullmatch(module):
            pass
        case _:
            return None
    cwd = os.path.abspath(how["cwd"] or ".")
    if (
        any(how[name] for name in ("preexec_fn", "pass_fds", "shell"))
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
        "ignored": [number for number in INHERITED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


@contextmanager
def preloaded_processes() -> Iterator[None]:
    """Start `parley` as copies, if the system supports it."""
    if sys.platform != "linux" or platform.machine() not in CLONE_NUMBERS:
        yield
        return
    # Some tests count descriptors: those of most processes are open before a test begins.
    _preloaded_with({})
    _preloaded_with(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "_execute_child", _start)
        yield


def end_preloaded() -> None:
    """End the processes that have loaded the modules."""
    for one in _preloaded.values():
        one.close()
    _preloaded.clear()
