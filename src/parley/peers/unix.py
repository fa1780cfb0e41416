"""The connections between the processes that share a home directory.

Each process listens on a socket in the directory `run` of the home directory, and finds the sockets of the other
processes in this directory. The first call of `listen` creates the directory and the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, Final

from msgspec import Raw

from parley.common.os_errors import os_detail
from parley.errors import StoreFailed
from parley.peers.link import SocketLink
from parley.transports.unix import (
    Connection,
    Listener,
    connect,
    names_in,
    prepare_directory,
    unique_name,
)

__all__ = ["UnixPeers"]

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""The maximum time, in seconds, for which this process tries to connect to a process whose backlog is full. A
process that is busy or suspended may have a full backlog.
"""

BUSY_SECONDS: Final = 0.02
"""The time in seconds between two attempts to connect to a process whose backlog is full. Polling is necessary,
because the operating system does not report when the backlog has space again.
"""

KEEP_SECONDS: Final = 30.0
"""The time in seconds for which an unused connection for notifications stays open. Notifications come in bursts, so
the connection can often be reused.
"""

CLOSE_SECONDS: Final = 0.2
"""The maximum time in seconds for which `close` waits until other processes have read all messages. A process that
is not suspended needs less time. The limit is short, because a shutdown must be fast.
"""

Serve = Callable[[Connection], Coroutine[Any, Any, None]]


class UnixPeers:
    """The implementation of `Peers` with Unix sockets, for the processes that share a home directory."""

    def __init__(self, home: str | Callable[[], str], serve: Serve, *, keep_seconds: float = KEEP_SECONDS) -> None:
        """Create an object without connections. Connections are established when they are needed.

        `home` is the path of the home directory, or a function that returns the path when it is first needed. If
        this function raises an error, `listen` raises the same error. `serve` is awaited for each connection from
        another process. The connections for notifications are closed `keep_seconds` after the last notification.
        """
        self._home = home
        self._serve, self._keep_seconds = serve, keep_seconds
        self._listener: Listener | None = None
        self._links: set[SocketLink] = set()
        self._notification_links: dict[str, SocketLink] = {}
        """The connections that stay open for further notifications, keyed by the address of the other process.
        `_links` also contains them.
        """
        self._idle_timer: asyncio.TimerHandle | None = None
        self._pending_notifications: list[tuple[str, bytes]] = []
        self._served: dict[Connection, asyncio.Task[None]] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._closed = False

    @cached_property
    def _directory(self) -> str:
        home = self._home
        return os.path.join(home() if callable(home) else home, "run")

    @property
    def address(self) -> str:
        return "" if self._listener is None else self._listener.name

    async def listen(self) -> None:
        if self._listener is not None or self._closed:
            return
        try:
            prepare_directory(self._directory)
            self._listener = Listener(self._directory, unique_name(), on_channel=self.accept)
        except OSError as error:
            raise StoreFailed(f"{self._directory}: no socket for other processes: {os_detail(error)}") from error

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> SocketLink | None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while not self._closed:
                    try:
                        return self._connect(address, on_notification=on_notification, on_lost=on_lost)
                    except BlockingIOError:
                        await asyncio.sleep(BUSY_SECONDS)
        except OSError as error:  # `OSError` includes the timeout
            log.warning("cannot connect to %s: %s", address, str(error) or "its backlog is full")
        return None

    def can_reach(self, address: str) -> bool:
        try:
            return address in names_in(self._directory)
        except OSError:
            return True  # it is unknown whether the process is listening

    def notify_all(self, method: str, params: bytes) -> None:
        if self._closed:
            return
        if not self._pending_notifications:
            asyncio.get_running_loop().call_soon(self._send_notifications)
        self._pending_notifications.append((method, params))

    def has_others(self) -> bool:
        try:
            return any(name != self.address and self._is_alive(name) for name in names_in(self._directory))
        except OSError as error:
            log.warning("other processes cannot be listed: %s", error)
            return True

    async def close(self) -> None:
        self._send_notifications()
        self._closed = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in self._served:
            connection.stop_reading()
        tasks = (*self._served.values(), *self._reading)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for link in tuple(self._notification_links.values()):
                    await link.flush()
                while self._served:
                    await asyncio.wait(self._served.values())
        except TimeoutError:
            log.warning("closing although another process has not read all messages")
        finally:
            for link in tuple(self._links):
                link.close()
            for connection in tuple(self._served):
                connection.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections from other processes ------------------------------------------------------------

    def accept(self, channel: socket.socket, *, serve: Serve | None = None) -> None:
        """Serve the process at the other end of the socket `channel`. `serve` is awaited for the connection; by
        default, the function that was passed to the constructor is awaited.
        """
        if self._closed:
            channel.close()
            return
        connection = Connection(channel)
        task = asyncio.get_running_loop().create_task(self._have_served(connection, serve or self._serve))
        self._served[connection] = task
        task.add_done_callback(lambda _: self._served.pop(connection))

    async def _have_served(self, connection: Connection, serve: Serve) -> None:
        try:
            await serve(connection)
        except Exception:
            log.exception("failed to serve another process")
        else:
            await _flushed(connection)
        finally:
            connection.close()

    # --- connections to other processes -----------------------------------------------------------------------

    def _connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> SocketLink | None:
        connection = connect(self._directory, address)
        return (
            None if connection is None else self.link(connection, on_notification=on_notification, on_lost=on_lost)
        )

    def link(
        self,
        connection: Connection,
        *,
        on_notification: Callable[[str, Raw], None],
        on_lost: Callable[[], None],
        version: str = "",
    ) -> SocketLink:
        """Return a link that sends requests and notifications over `connection`, an established connection to
        another process. Begin to read the messages from the other process.

        `version` is the version of the protocol between nodes; empty for a process with the same home directory.
        `on_notification` and `on_lost` have the same meaning as for `connect`.
        """
        link = SocketLink(connection, on_notification=on_notification, on_lost=on_lost, version=version)
        self._links.add(link)
        task = asyncio.get_running_loop().create_task(link.read())
        self._reading.add(task)
        task.add_done_callback(lambda _: self._read(link, task))
        return link

    def _read(self, link: SocketLink, task: asyncio.Task[None]) -> None:
        self._links.discard(link)
        self._reading.discard(task)

    def _send_notifications(self) -> None:
        notifications, self._pending_notifications = self._pending_notifications, []
        if not notifications or self._closed:
            return
        try:
            names = names_in(self._directory)
        except OSError as error:
            log.warning("cannot notify other processes: %s", error)
            return
        for name in names:
            link = None if name == self.address else self._link_to(name)
            if link is not None and link.keeps_up:
                for method, params in notifications:
                    link.notify(method, params)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(self._keep_seconds, self._close_notification_links)

    def _link_to(self, name: str) -> SocketLink | None:
        if name not in self._notification_links:
            try:
                link = self._connect(
                    name, on_notification=lambda method, params: None, on_lost=lambda: self._lose(name)
                )
            except OSError as error:
                log.debug("cannot notify %s: %s", name, error)
                return None
            if link is None:
                return None
            self._notification_links[name] = link
        return self._notification_links[name]

    def _is_alive(self, name: str) -> bool:
        if name in self._notification_links:
            return True
        try:
            connection = connect(self._directory, name)
        except OSError:
            return True  # the process is busy, or the operating system refuses the connection
        if connection is not None:
            connection.close()
        return connection is not None

    def _lose(self, name: str) -> None:
        self._notification_links.pop(name, None)

    def _close_notification_links(self) -> None:
        links, self._notification_links = self._notification_links, {}
        for link in links.values():
            link.close()


async def _flushed(connection: Connection) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.outbox.flush()
    except TimeoutError:
        log.warning("another process has not read all messages")
