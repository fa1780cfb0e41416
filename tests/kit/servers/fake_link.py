"""A fake link to another process, which implements `Peers` and its only `Link`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from parley.wire.jsonrpc import Message

__all__ = ["FakeLink"]


class FakeLink:
    """Connects to itself and drops all messages; a subclass records or answers them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.version = ""

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> Any:
        self.on_notification, self.on_lost = on_notification, on_lost
        return self

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None: ...

    def notify(self, method: str, params: bytes) -> None: ...

    async def listen(self) -> None: ...

    def notify_all(self, method: str, params: bytes) -> None: ...

    def can_reach(self, address: str) -> bool:
        return True

    def has_others(self) -> bool:
        return True

    async def close(self) -> None: ...
