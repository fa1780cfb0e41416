"""Makes this process one of the nodes that share a PostgreSQL database."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from parley.common.paths import is_below_any
from parley.errors import BadSetting
from parley.peers import NodePeers
from parley.ports.nodes import Node, NodeLoad, Nodes, WorkingDirectory
from parley.runtime.placement import choose_node
from parley.transports.unix import Connection
from parley.version import __version__
from parley.wire.nodes import NODE_VERSIONS

if TYPE_CHECKING:
    from parley.config.load import Loader
    from parley.config.types import NodeSettings, NodeToken
    from parley.peers import UnixPeers

__all__ = ["NodeMembership"]


class NodeMembership:
    """The membership of this process in the cluster of nodes.

    Even before `join`, the process has the token that all nodes share, and can follow conversations on other nodes.
    `join` makes the process itself a node.
    """

    def __init__(
        self,
        store: Nodes,
        local: UnixPeers,
        loader: Loader,
        token: NodeToken,
        *,
        serve: Callable[[Connection, str], Coroutine[Any, Any, None]],
        versions: Sequence[str] = NODE_VERSIONS,
    ) -> None:
        """Create the membership. `local` connects to the processes with the same home, and `token` is the token of
        the nodes. `serve` is awaited for each connection from another node; its arguments are the connection and
        the version of the protocol between nodes. `versions` contains the supported versions of this protocol, the
        newest first.
        """
        self.token, self._store, self._loader = token, store, loader
        self._node: Node | None = None
        self._running: Callable[[], int] = lambda: 0
        self._missing: tuple[str, ...] = ()
        """The workspace roots of this node that did not exist at the last check."""
        self._looking: asyncio.Task[None] | None = None
        self.is_draining = False
        self.peers = NodePeers(
            local, token=token, serve=serve, urls=self._urls, on_refused=store.note_refused, versions=versions
        )

    @property
    def has_joined(self) -> bool:
        """True if the other nodes can find this node."""
        return self._node is not None

    @property
    def signing_key(self) -> bytes:
        """The key with which every node signs request states and event ids, which clients send back to a node. All
        nodes have the same key, so every node can verify a signature from another node.
        """
        return hmac.digest(self.token.encode(), b"signing key", "sha256")

    def settings(self) -> NodeSettings:
        """Return the settings of this node.

        Raises:
            BadSetting: the server listens on all addresses, and the settings do not contain the URL of the node.
            ConfigError: the settings cannot be read.
        """
        settings = self._loader.node_settings()
        host = self._loader.serve_settings().host
        if settings.url is None and host in ("", "0.0.0.0", "::"):
            raise BadSetting(
                f"serve.host {host!r} does not show how other nodes reach this server: set node.url", key="node.url"
            )
        return settings

    async def wait_for_database(self) -> None:
        """Wait until this process can use the database. If the database is being migrated, wait until the migration
        has ended.

        Raises:
            BadHome: the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        await self._store.wait_until_usable()

    async def join(self, url: str, *, running: Callable[[], int]) -> None:
        """Become a node that other nodes reach at `url`. `running` returns the number of turns that this process is
        running.

        Raises:
            BadHome: another running node has the same id, or the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        name = self.settings().id or os.uname().nodename
        workspace = self._loader.workspace_settings()
        roots = await asyncio.to_thread(_expanded, workspace.roots)
        node = Node(
            id=name,
            url=url,
            version=__version__,
            mode=workspace.mode,
            roots=roots,
            repositories=tuple(workspace.repositories) if workspace.mode == "git" else (),
        )
        self._running = running
        self._missing = await asyncio.to_thread(_missing, roots)
        self.peers.advertise(url)  # other nodes can connect as soon as the database contains this node
        await self._store.join(node, lambda: self._load(roots))
        self._node = node

    def _load(self, roots: Sequence[str]) -> NodeLoad:
        """Return the current load of this node. The load contains the workspace roots that did not exist at the
        last check.

        Begin a new check of `roots`, the workspace roots of this node. The check runs in the background, because
        the file system of a root may not respond.
        """
        if roots and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_for(roots))
        return NodeLoad(running=self._running(), is_draining=self.is_draining, missing=self._missing)

    async def _look_for(self, roots: Sequence[str]) -> None:
        self._missing = await asyncio.to_thread(_missing, roots)

    def drain(self) -> None:
        """Stop starting turns on this node, and announce to the other nodes that this node starts no turns."""
        self.is_draining = True
        self._store.announce_load()

    @property
    def node_id(self) -> str | None:
        """The id of this node; None if this process is not a node."""
        return None if self._node is None else self._node.id

    @property
    def description(self) -> str | None:
        """The id and the URL of this node, for people; None if this process is not a node."""
        return None if self._node is None else f"{self._node.id} at {self._node.url}"

    async def node_for(self, directory: WorkingDirectory, *, refused: Collection[str]) -> Node | None:
        if (own := self._node) is None:
            return None
        exists, self._missing, nodes = await asyncio.gather(
            asyncio.to_thread(os.path.isdir, directory.path),
            asyncio.to_thread(_missing, own.roots),
            self._store.announced(),
        )
        chosen = choose_node(
            (self._live(node, own) for node in nodes),
            directory,
            mode=own.mode,
            here=own.id,
            exists_here=exists,
            refused=refused,
        )
        return None if chosen.id == own.id else chosen

    def _live(self, node: Node, own: Node) -> Node:
        """If `node` is this node (`own`), return it with its current load.

        Return any other node unchanged, because its load is known only from the database.
        """
        if node.id != own.id:
            return node
        return replace(own, running=self._running(), is_draining=self.is_draining, missing=self._missing)

    def node_of(self, directory: str) -> str | None:
        own = self._node
        if own is None or own.mode == "shared":
            return None
        has_it = is_below_any(os.path.normpath(directory), own.roots) if own.roots else os.path.isdir(directory)
        return own.id if has_it else None

    async def _urls(self) -> list[str]:
        return [node.url for node in await self._store.nodes()]


def _missing(roots: Collection[str]) -> tuple[str, ...]:
    return tuple(root for root in roots if not os.path.isdir(root))


def _expanded(roots: Collection[str]) -> tuple[str, ...]:
    """Return the paths of the workspace roots `roots`, with a leading `~` expanded.

    For each root, return its normalized path, and its path with symbolic links resolved.
    """
    given = [os.path.normpath(os.path.expanduser(root)) for root in roots]
    return tuple(dict.fromkeys(path for root in given for path in (root, os.path.realpath(root))))
