"""The interface to the nodes that share a PostgreSQL database. A node is a server that other servers can reach
over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

from msgspec import Struct

from parley.config.types import WorkspaceMode

__all__ = ["Node", "NodeLoad", "Nodes", "Placement", "WorkingDirectory"]


class Node(Struct, frozen=True, kw_only=True):
    """A server that other servers with the same PostgreSQL database can reach over HTTP."""

    id: str
    url: str
    """The URL at which the other nodes reach this node. It is also the `Owner.address` of this node."""
    version: str
    """The version of Parley that the node runs."""
    mode: WorkspaceMode = "local"
    """The location of the working directories of conversations: `local` means the node's own disk, `shared` means a
    file system that all nodes share, and `git` means worktrees of Git repositories on the node's own disk.
    """
    roots: tuple[str, ...] = ()
    """The directories below which the node can run turns. If the tuple is empty, the node can run turns in every
    directory that exists on its disk.
    """
    missing: tuple[str, ...] = ()
    """The directories in `roots` that currently do not exist, for example because a file system is not mounted."""
    repositories: tuple[str, ...] = ()
    """The names of the Git repositories for which the node can create worktrees."""
    running: int = 0
    """The number of turns that the node is running."""
    is_draining: bool = False
    """True if the node begins no more turns, because its server is shutting down."""
    is_alive: bool = True
    """False if the node has ended, or if its connection to the database has been lost for longer than a lease is
    valid.
    """


class WorkingDirectory(Struct, frozen=True, kw_only=True):
    """The directory or worktree in which a conversation works. Its properties determine which node can run the
    turns of the conversation.
    """

    path: str
    """The absolute path of the directory."""
    repository: str | None = None
    """The name of the Git repository, if the directory is a worktree; otherwise None."""
    node: str | None = None
    """The id of the node on whose disk the directory is; None if that node is unknown, or if every node can use the
    directory.
    """


class NodeLoad(Struct, frozen=True, kw_only=True):
    """The part of a node's description that changes while the node is running. The fields are the same as in
    `Node`.
    """

    running: int
    is_draining: bool
    missing: tuple[str, ...] = ()
    """The directories in `Node.roots` that currently do not exist."""


class Placement(Protocol):
    """Decides which node runs the next turn of a conversation."""

    @property
    def is_draining(self) -> bool:
        """True if this node begins no more turns, because its server is shutting down."""
        ...

    async def node_for(self, directory: WorkingDirectory, *, refused: Collection[str]) -> Node | None:
        """If another node is to run the next turn in `directory`, return that node. If this node is to run the
        turn, return None. Nodes whose ids are in `refused` are not considered, because they have already refused
        the turn.

        Raises:
            NoNodeForDirectory: no node can run the turn.
            StoreFailed: the database cannot be reached.
        """
        ...

    def node_of(self, directory: str) -> str | None:
        """Return the id of this node if `directory` is on this node's own disk, which other nodes cannot access;
        otherwise None.
        """
        ...


@runtime_checkable
class Nodes(Protocol):
    """The part of a shared store that lists the nodes."""

    async def wait_until_usable(self) -> None:
        """Wait until the database accepts connections and its schema is up to date. The time for the
        connection is limited, but the time for a migration of the schema is not.

        Raises:
            BadHome: the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        ...

    async def join(self, node: Node, load: Callable[[], NodeLoad] | None = None) -> None:
        """List this process as the node `node` in the database until the store is closed.

        The store calls `load` regularly, and stores the result for the other nodes. None means that the load of
        `node` does not change.

        Raises:
            BadHome: another running node has the same id, or the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        ...

    def announce_load(self) -> None:
        """Store the load of this process immediately. Call this method after a change of the load that the other
        nodes must see without delay.
        """
        ...

    async def nodes(self) -> list[Node]:
        """Return the other nodes that are running.

        Raises:
            StoreFailed: the database cannot be reached.
        """
        ...

    async def announced(self) -> list[Node]:
        """Return every node in the database: this node, the other running nodes, and nodes that have ended.

        Raises:
            StoreFailed: the database cannot be reached.
        """
        ...

    def note_refused(self, url: str) -> None:
        """Record that the computer of the node at `url` refused a connection, which means that the node has ended.
        For some seconds, this process then treats the leases of the node as free without waiting for their expiry.
        """
        ...
