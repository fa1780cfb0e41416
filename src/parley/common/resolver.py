"""Looks up host names in daemon threads.

The event loop waits for the threads of its own pool when it closes. A look-up in that pool could delay the exit of
the server while a name server does not respond.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from parley.common.threads import start_thread

__all__ = ["DaemonResolver"]


class DaemonResolver:
    """A resolver for the HTTP library that looks up host names in daemon threads."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[dict[str, Any]]:
        """Return the addresses of a host, each as the dict that the HTTP library expects.

        Raises:
            OSError: the host has no address, or the look-up failed.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Any]] = loop.create_future()

        def settle(addresses: list[Any] | None, error: OSError | None) -> None:
            if found.done():
                return  # the request was cancelled
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(addresses or [])

        def look_up() -> None:
            addresses, failed = None, None
            try:
                addresses = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
                )
            except (OSError, UnicodeError) as error:
                failed = error if isinstance(error, OSError) else OSError(str(error))
            try:
                loop.call_soon_threadsafe(settle, addresses, failed)
            except RuntimeError:
                pass  # the event loop was closed

        start_thread(look_up, name="resolve")
        return [
            {
                "hostname": host,
                "host": address[0],
                "port": address[1],
                "family": family,
                "proto": protocol,
                "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            }
            for family, _, protocol, _, address in await found
        ]

    async def close(self) -> None:
        """Do nothing. The HTTP library requires this method, but the resolver holds no resources."""
