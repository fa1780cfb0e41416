"""A tool server, which is started when it is needed, started again after a crash, and ended when it has not been
used for some time.

A server has one connection at a time. It may have different names in the settings of different conversations.
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
"""The time limit, in seconds, for each of the requests `initialize` and `tools/list`."""

RETRY_SECONDS: Final = 30.0
"""The minimum time, in seconds, between a failed start of a server and the next attempt to start it. The time is
long enough to avoid a retry in every turn, and short enough for a user who has just repaired the settings.
"""

IDLE_SECONDS: Final = 300.0
"""The time, in seconds, for which an unused server is kept running. The time is several minutes long because users
often return to a conversation.
"""

Key = tuple[Any, ...]


class Timing(Struct, frozen=True, kw_only=True):
    """The time limit for a response from a tool server, the pause before a failed start is repeated, and the time
    for which an unused server is kept running. All times are in seconds.
    """

    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    idle_seconds: float = IDLE_SECONDS


def key_of(settings: ToolServer) -> Key:
    """Return the values in the settings of a server that must be equal for two conversations to share the server.
    The name of the server is not one of these values.
    """
    env, headers, env_headers = (
        tuple(sorted(table.items())) for table in (settings.env, settings.http_headers, settings.env_http_headers)
    )
    return (
        settings.command,
        settings.args,
        env,
        settings.cwd,
        settings.url,
        settings.bearer_token_env_var,
        headers,
        env_headers,
        settings.max_answer_bytes,
    )


class Server:
    """One tool server, and the number of turns that use it. `opened` is called for each new connection, with the
    connection as its argument. `idle` is called when no turn has used the server for some time.
    """

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
        """The tools that the server has listed, under the server's own names. After a crash, these are the tools
        from before the crash, until the server has listed its tools again.
        """
        self._update()
        return self._tools

    @property
    def failure(self) -> str | None:
        """The reason why the last start of the server failed; None if the last start did not fail.

        The reason stays set while the server is being started again.
        """
        self._update()
        return self._failure

    @property
    def is_awaited(self) -> bool:
        """True if turns wait for the server, because it is starting for the first time and its tools are
        unknown.
        """
        connection = self.last_connection
        return connection is not None and connection is self._first_connection and not connection.is_settled

    def hold(self) -> None:
        """Keep the server from being ended as idle until `release` is called. The number of calls is counted: each
        call of `hold` needs a call of `release`.
        """
        self._holders += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._timer = asyncio.get_running_loop().call_later(self._timing.idle_seconds, self._become_idle)

    @property
    def is_in_use(self) -> bool:
        """True if a turn is using the server, or if the last turn that used the server ended less than
        `Timing.idle_seconds` ago.
        """
        return self._holders > 0 or self._timer is not None

    def _become_idle(self) -> None:
        self._timer = None
        self._idle()

    def connection(self) -> Connection:
        """Return the current connection. If no connection is usable or starting, open a new connection.

        After a failed start, the failed connection is returned until it is time for another attempt.
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
        """Cancel the idle timer, so that `idle` is not called. The connection stays open."""
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
