"""The interface to the nodes that share a database. A node is a server that other servers can reach over HTTP."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct

__all__ = ["Node", "Nodes"]


class Node(Struct, frozen=True, kw_only=True):
    """A server that other servers can reach."""

    id: str
    url: str
    """The address at which the other nodes reach this node (`Owner.address`)."""
    version: str
    """The version of Parley that the node runs."""


@runtime_checkable
class Nodes(Protocol):
    """A store that several nodes share."""

    async def join(self, node: Node) -> None:
        """Announce this process as a node until the store is closed.

        Raises:
            BadHome: another running node has the same id, or the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        ...

    async def nodes(self) -> list[Node]:
        """Return the other nodes that are running.

        Raises:
            StoreFailed: the database cannot be reached.
        """
        ...

    def note_refused(self, url: str) -> None:
        """Note that the computer of a node refuses connections to the node, because the node has ended."""
        ...
