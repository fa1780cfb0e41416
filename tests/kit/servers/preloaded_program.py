"""A process that has loaded the modules of Parley, and creates copies of itself that run a module.

Each request names a module and its arguments, an environment, a directory and three descriptors. The copy is a
child of the requesting process, which therefore waits for it and signals it like any child.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import resource
import runpy
import signal
import socket
import sys
from typing import Any, Final

__all__ = ["CLONE_NUMBERS", "MAX_REQUEST_BYTES"]

CLONE_NUMBERS: Final = {"x86_64": 56, "aarch64": 220}
"""The number of the system call `clone`, by machine."""

MAX_REQUEST_BYTES: Final = 100_000

LOADED: Final = (
    *(
        "parley.app.serving",
        "parley.cli.main",
        "parley.cli.mcp",
        "parley.cli.logs",
        "parley.cli.runner",
        "parley.cli.export",
    ),
    *("parley.cli.import_", "parley.cli.doctor", "parley.cli.sandbox", "parley.cli.schema"),
    *("aiohttp", "sqlite3", "tomllib", "fcntl"),
)
CLONE_PARENT: Final = 0x8000
CLONE_CHILD_SETTID: Final = 0x1000000
CLONE_CHILD_CLEARTID: Final = 0x200000
PR_GET_TID_ADDRESS: Final = 40


def clone_as_sibling() -> int:
    """Fork, so that the new process is a sibling of this process."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    # The C library keeps the id of each thread at this address.
    thread_id = ctypes.c_void_p()
    libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(thread_id))
    flags = CLONE_PARENT | signal.SIGCHLD
    if thread_id.value:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(CLONE_NUMBERS[platform.machine()], flags, None, None, thread_id, thread_id)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid


def next_request(connection: socket.socket) -> dict[str, Any]:
    """Wait for a request, and return it in the copy that fulfils it."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if not data:
            sys.exit()
        pid = clone_as_sibling()
        if not pid:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, max(*descriptors, connection.fileno()) + 1)
            connection.detach()
            request: dict[str, Any] = json.loads(data)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


def run(request: dict[str, Any]) -> None:
    if request["new_session"]:
        os.setsid()
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["", *request["arguments"]]
    if request["module"] != "parley":
        sys.path.insert(0, request["cwd"])  # like `python -m`
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # excluded from garbage collection in the copies
    run(next_request(socket.socket(fileno=int(sys.argv[1]))))
