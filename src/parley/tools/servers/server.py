"""A tool server: started when it is needed, started again after a crash, and ended after a time without use.

Has one connection at a time. Does not know the names under which it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from parley.config.types import ToolServer
from parley.ports.model import ToolSpec
from parley.tools.servers.connection import Connection

__all__ = ["ANSWER_SECONDS", "IDLE_SECONDS", "RETRY_SECONDS", "Key", "Server", "Timing", "key_of"]

ANSWER_SECONDS: Final = 10.0
"""The time limit of `initialize` and of `tools/list`, each."""

RETRY_SECONDS: Final = 30.0
"""Time before a server that failed to start is started again: long enough not to retry with every turn, and
short enough for a user who repairs the settings.
"""

IDLE_SECONDS: Final = 300.0
"""How long an unused server is kept: people return to a conversation within minutes."""

Key = tuple[Any, ...]


class Timing(Struct, frozen=True, kw_only=True):
    """Time limits of a tool server: for an answer, before a retry, and without use."""

    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    idle_seconds: float = IDLE_SECONDS


def key_of(settings: ToolServer) -> Key:
    """Return the settings that two conversations must have in common to share a server. The name of the server
    is not among them.
    """
    env = tuple(sorted(settings.env.items()))
    return (
        settings.command,
        settings.args,
        env,
        settings.cwd,
        settings.url,
        settings.bearer_token_env_var,
        settings.max_answer_bytes,
    )


class Server:
    """One tool server with its users. `idle` is called after a time without users."""

    def __init__(
        self,
        settings: ToolServer,
        environ: Mapping[str, str],
        timing: Timing,
        *,
        opened: Callable[[Connection], None],
        idle: Callable[[], None],
    ) -> None:
        self._settings, self._environ, self._timing = settings, environ, timing
        self._opened, self._idle = opened, idle
        self.last_connection: Connection | None = None
        self._first_connection: Connection | None = None
        self._tools: tuple[ToolSpec, ...] = ()
        self._failure: str | None = None
        self._holders = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of the server, under the names that the server gave; after a crash, the tools from before."""
        self._update()
        return self._tools

    @property
    def failure(self) -> str | None:
        """The reason why the server failed to start, kept while it is being started again; None: it did not
        fail.
        """
        self._update()
        return self._failure

    @property
    def is_awaited(self) -> bool:
        """True if the server is starting for the first time, so its tools are unknown. Turns do not wait for
        later starts.
        """
        connection = self.last_connection
        return connection is not None and connection is self._first_connection and not connection.is_settled

    def hold(self) -> None:
        """Keep the server running until `release`."""
        self._holders += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._timer = asyncio.get_running_loop().call_later(self._timing.idle_seconds, self._idle)

    def connection(self) -> Connection:
        """Return the connection that is usable or starting; open a new one if there is none.

        After a failed start, the failed connection is returned until it is time to retry.
        """
        found = self.last_connection
        if found is None or not (found.is_usable or self._is_backing_off(found)):
            found = self.last_connection = Connection(
                self._settings, self._environ, answer_seconds=self._timing.answer_seconds
            )
            self._first_connection = self._first_connection or found
            self._opened(found)
        return found

    def stop(self) -> None:
        """Cancel the timer that calls `idle`."""
        if self._timer is not None:
            self._timer.cancel()

    def _update(self) -> None:
        connection = self.last_connection
        if connection is not None and (connection.has_started or connection.failure is not None):
            self._tools, self._failure = connection.tools, connection.failure

    def _is_backing_off(self, connection: Connection) -> bool:
        if connection.failure is None:
            return False
        return asyncio.get_running_loop().time() < connection.failed_at + self._timing.retry_seconds
