"""The implementation of `Peers` for a process that shares its conversations with no other process."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

__all__ = ["NoPeers"]


class NoPeers:
    """An implementation of `Peers` that finds and notifies no other process."""

    address = ""

    async def listen(self) -> None:
        pass

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> None:
        return None

    def can_reach(self, address: str) -> bool:
        return False

    def notify_all(self, method: str, params: bytes) -> None:
        pass

    def has_others(self) -> bool:
        return False

    async def close(self) -> None:
        pass
