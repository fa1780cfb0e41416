"""The other processes that share the home."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from parley.wire.jsonrpc import Message

__all__ = ["Link", "Peers"]


class Link(Protocol):
    """A connection to one of them. What is sent on one that is gone is lost without a word: `gone` was called."""

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        """Ask something. `answered` is called before the next message is looked at; never, if the link breaks."""
        ...

    def notify(self, method: str, params: bytes) -> None: ...

    def close(self) -> None:
        """Hear nothing more from it; `gone` is not called."""
        ...


class Peers(Protocol):
    """How they are found."""

    @property
    def address(self) -> str:
        """Where this process listens to the others; empty while it does not."""
        ...

    async def listen(self) -> None:
        """Be there for the others, if that was not yet so.

        Raises:
            StoreFailed: the system refuses.
        """
        ...

    async def connect(
        self, address: str, *, hear: Callable[[str, Raw], None], gone: Callable[[], None]
    ) -> Link | None:
        """A connection to the process that listens there; None: there is none any more.

        `hear` is called with the method and the parameters of each notification, in order; `gone` once, when
        the connection breaks.
        """
        ...

    def tell_all(self, method: str, params: bytes) -> None:
        """Notify every other process, soon; whoever cannot be reached finds out by itself."""
        ...

    def has_others(self) -> bool:
        """Whether another process listens now; also where this cannot be found out."""
        ...

    async def close(self) -> None:
        """Listen no more, and let go of every connection."""
        ...
