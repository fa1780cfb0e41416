"""The Unix sockets of the resident server. If the file of a socket is removed, the socket is bound again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from parley.common.home import SOCKET
from parley.common.limited_log import LimitedLog
from parley.transports.unix import Listener

__all__ = ["CHECK_SECONDS", "ResidentSockets"]

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0
"""The interval, in seconds, between two checks that the socket files still exist."""


class ResidentSockets:
    """The socket of the resident server in the home directory, and a second socket if the user has
    requested one.
    """

    def __init__(
        self,
        home: str,
        path: str | None,
        *,
        on_channel: Callable[[socket.socket], None],
        on_bound_again: Callable[[], None] = lambda: None,
        on_check: Callable[[], None] = lambda: None,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """Listen in the home directory and, if `path` is given, at `path`.

        `on_channel` is called with each new connection. `on_bound_again` is called after missing socket files have
        been created again. `on_check` is called at each check of the socket files.

        Raises:
            OSError: the server cannot listen on one of the sockets.
        """
        self._home_path = os.path.join(home, SOCKET)
        self.path: Final = path or self._home_path
        self._on_bound_again, self._on_check, self._check_seconds = on_bound_again, on_check, check_seconds
        self._log = LimitedLog(log)
        self._look: asyncio.TimerHandle | None = None
        self._listeners: list[Listener] = []
        try:
            for one in dict.fromkeys((self._home_path, self.path)):
                self._listeners.append(Listener(*os.path.split(one), on_channel=on_channel))
        except OSError:
            self.close()
            raise
        self._look = self._look_later()

    def close(self) -> None:
        """Stop accepting connections. Open connections continue."""
        if self._look is not None:
            self._look.cancel()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _look_later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._check_seconds, self._look_again)

    def _look_again(self) -> None:
        self._look = self._look_later()
        self._on_check()
        removed = [one for one in self._listeners if one.is_removed]
        try:
            for listener in removed:
                self._log.warning("the file of the socket %s was removed; listening again", listener.name)
                listener.bind_again()
        except OSError as error:
            self._log.warning("cannot listen again: %s", error)
            return
        if removed:
            self._on_bound_again()
