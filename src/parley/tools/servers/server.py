"""A tool server as the settings name it: started when it is needed, again after a crash, ended when
nobody has needed it for a while.

Holds one connection after another. Does not know under which names it is used.
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
"""How long `initialize` and `tools/list` may take, each."""

RETRY_SECONDS: Final = 30.0
"""How long a server that did not start is left alone: a broken setting is not tried at every turn,
and one that was mended is soon found to work."""

IDLE_SECONDS: Final = 300.0
"""How long a server that nobody uses is kept: people come back to a conversation within minutes."""

Key = tuple[Any, ...]


class Timing(Struct, frozen=True, kw_only=True):
    """How long a tool server is waited for, left alone, and kept."""

    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    idle_seconds: float = IDLE_SECONDS


def key_of(settings: ToolServer) -> Key:
    """What two conversations must have in common to share a server; the name is not part of it."""
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
    """One tool server, whoever uses it; `idle` is called when nobody has for long."""

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
        """What it offers, under its own names; after a crash, what it offered before."""
        self._learn()
        return self._tools

    @property
    def failure(self) -> str | None:
        """Why it does not run, where it could not be started; while it is tried again, why it could not before."""
        self._learn()
        return self._failure

    @property
    def is_awaited(self) -> bool:
        """Whether it starts for the first time, so that nothing is known of it. Later starts hold up nobody."""
        connection = self.last_connection
        return connection is not None and connection is self._first_connection and not connection.is_settled

    def hold(self) -> None:
        """Keep it until `release`."""
        self._holders += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._timer = asyncio.get_running_loop().call_later(self._timing.idle_seconds, self._idle)

    def connection(self) -> Connection:
        """The one that runs or starts. A new one where there is none, unless the last did not come
        about and it is too early to try again."""
        found = self.last_connection
        if found is None or not (found.is_usable or self._is_left_alone(found)):
            found = self.last_connection = Connection(
                self._settings, self._environ, answer_seconds=self._timing.answer_seconds
            )
            self._first_connection = self._first_connection or found
            self._opened(found)
        return found

    def stop(self) -> None:
        """Call `idle` no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _learn(self) -> None:
        connection = self.last_connection
        if connection is not None and (connection.has_started or connection.failure is not None):
            self._tools, self._failure = connection.tools, connection.failure

    def _is_left_alone(self, connection: Connection) -> bool:
        if connection.failure is None:
            return False
        return asyncio.get_running_loop().time() < connection.failed_at + self._timing.retry_seconds
