"""A process that has loaded the modules of Parley, and creates copies of itself that run a module.

Each request names a module and its arguments, an environment, a directory and three descriptors. The copy is a
child of the requesting process, which therefore waits for it and signals it like any child.

With two more arguments, the source that loads the fork server of Parley and the directory of its package, the
copies run that fork server. It has a fourth descriptor.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import platform
import resource
import runpy
import signal
import socket
import sys
import termios
import threading
from typing import Any, Final, NoReturn

__all__ = ["CLONE_NUMBERS", "DEFAULT_HANDLERS", "MAX_REQUEST_BYTES"]

CLONE_NUMBERS: Final = {"x86_64": 56, "aarch64": 220}
"""The number of the system call `clone`, by machine."""

MAX_REQUEST_BYTES: Final = 100_000
MAX_DESCRIPTORS: Final = 4

LOADED: Final = (
    *("parley.app.serving", "parley.cli.main", "parley.cli.runner"),
    *("aiohttp.web", "concurrent.futures.thread", "configparser", "difflib", "getpass", "gzip", "html", "termios"),
    *("encodings.ascii", "encodings.utf_8_sig"),
)
"""The modules that are loaded besides the modules of commands and all modules that a server may need."""

DEFAULT_HANDLERS: Final[dict[signal.Signals, Any]] = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
}
"""The handlers that Python installs at its start, for signals that a program may inherit as ignored."""

CLONE_PARENT: Final = 0x8000
CLONE_CHILD_SETTID: Final = 0x1000000
CLONE_CHILD_CLEARTID: Final = 0x200000
PR_GET_TID_ADDRESS: Final = 40


def load() -> None:
    """Import the modules that a copy may need. Otherwise each copy would import them again."""
    for name in LOADED:
        importlib.import_module(name)
    folders = importlib.import_module("parley.cli").__path__
    for module in pkgutil.iter_modules(folders, "parley.cli."):
        importlib.import_module(module.name)
    vars(importlib.import_module("parley.app.preloading"))["load_all_modules"]()


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
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        if not data:
            sys.exit()
        # A handler that raises KeyboardInterrupt during the fork could leave locks of Python acquired.
        signal.pthread_sigmask(signal.SIG_BLOCK, DEFAULT_HANDLERS)
        pid = clone_as_sibling()
        if not pid:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(len(descriptors), max(*descriptors, connection.fileno()) + 1)
            connection.detach()
            request: dict[str, Any] = json.loads(data)
            return request
        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFAULT_HANDLERS)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


def run(request: dict[str, Any]) -> None:
    if request["new_session"]:
        os.setsid()
    if request["has_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)  # as Python does at its start
    for name, default in DEFAULT_HANDLERS.items():
        signal.signal(name, signal.SIG_IGN if name in request["ignored"] else default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFAULT_HANDLERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["", *request["arguments"]]
    if request["module"] is None:
        vars(sys.modules["parley.tools.commands.forkserver"])["main"]()
        return
    if request["module"] != "parley":
        sys.path.insert(0, request["cwd"])  # like `python -m`
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def end(code: int) -> NoReturn:
    """End the process as Python does, but without freeing objects.

    Freeing them would copy all memory that the processes share.
    """
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    requests, *loading = sys.argv[1:]
    gc.disable()  # imports create little garbage
    if loading:
        source, folder = loading
        sys.argv[1:] = [folder]
        exec(source, {})
    else:
        load()
    gc.freeze()  # excluded from garbage collection in the copies
    gc.enable()
    try:
        run(next_request(socket.socket(fileno=int(requests))))
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        end(error.code or 0)
    end(0)
