"""The server's connection to the fork server, which is a child process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from parley.tools.commands.messages import START
from parley.tools.rlimits import program_limit

__all__ = ["ForkServerLink"]

PROGRAM: Final = """
import sys
for name, folder in ("parley", sys.argv[1]), ("parley.tools", sys.argv[1] + "/tools"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [folder]
from parley.tools.commands.forkserver import main
main()
"""
"""The source of the fork server program. Its first argument is the directory of the package `parley`. The program
imports only the modules that it needs, without the `__init__.py` of the packages `parley` and `parley.tools`.
"""
CLOSE_SECONDS: Final = 0.6
"""The maximum time, in seconds, that the fork server may take to kill all commands and exit. After this time, the
fork server is killed. The Parley server has two seconds to stop (docs/protocol.md#lifecycle).
"""


class ForkServerLink:
    """Starts the fork server, sends requests to it, and detects its end."""

    def __init__(self, root: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """A future that is done when the fork server has closed its socket or was abandoned. The fork server can
        then no longer start commands.
        """
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        """A future that is done when the process of the fork server is dead. It is done soon after `lost`, unless
        the process is stuck in the kernel.
        """
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._socket.setblocking(False)
                self._process = subprocess.Popen(
                    (
                        *(sys.executable, "-I", "-S", "-c", PROGRAM, str(Path(__file__).parents[2])),
                        *(str(theirs.fileno()), str(program_limit()), root),
                    ),
                    cwd="/",
                    env={},
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self._socket.close()
            raise
        # The fork server sends nothing, so the socket becomes readable only when the fork server closes its end.
        self._loop.add_reader(self._socket, self.abandon)

    def start(self, descriptors: list[int]) -> bool:
        """Send the descriptors of a command to the fork server, which passes them to a supervisor. Return False if
        the fork server has ended.
        """
        try:
            socket.send_fds(self._socket, [START], descriptors)
        except ConnectionError:
            self.abandon()
            return False
        return True

    async def close(self) -> None:
        """Close the connection, so that the fork server kills all commands and exits. If the fork server has not
        exited after `CLOSE_SECONDS`, kill it.
        """
        if not self.lost.done():
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            await asyncio.wait([self.lost], timeout=CLOSE_SECONDS)
        self.abandon()
        await asyncio.wait([self._reaped], timeout=CLOSE_SECONDS)

    def abandon(self) -> None:
        """Kill the fork server if it is still running. Its supervisors then kill their commands."""
        if self.lost.done():
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._process.kill()
        self.lost.set_result(None)
        if self._process.poll() is not None:
            self._reaped.set_result(None)
        else:  # the process can take a long time to die, and the event loop must not wait for it
            threading.Thread(target=self._reap, name="reap-fork-server", daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the event loop may already be closed
            self._loop.call_soon_threadsafe(self._reaped.set_result, None)
