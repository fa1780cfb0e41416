"""This process as one of several nodes that share a PostgreSQL database."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from parley.errors import BadSetting
from parley.peers import NodePeers
from parley.ports.nodes import Node, Nodes
from parley.version import __version__

if TYPE_CHECKING:
    from parley.config.load import Loader
    from parley.config.types import NodeSettings, NodeToken
    from parley.peers import UnixPeers

__all__ = ["NodeMembership"]


class NodeMembership:
    """A process with the token of the nodes. It can follow conversations on nodes, and `join` makes it a node."""

    def __init__(self, store: Nodes, local: UnixPeers, loader: Loader, token: NodeToken) -> None:
        self.token, self._store, self._loader = token, store, loader
        self.peers = NodePeers(local, token=token, urls=self._urls, on_refused=store.note_refused)

    @property
    def signing_key(self) -> bytes:
        """The key with which all nodes seal data, so that any node can open it."""
        return hmac.digest(self.token.encode(), b"signing key", "sha256")

    def settings(self) -> NodeSettings:
        """Return the settings of the node.

        Raises:
            BadSetting: the server listens on all addresses, and the settings do not name its URL.
            ConfigError: the settings cannot be read.
        """
        settings = self._loader.node_settings()
        host = self._loader.serve_settings().host
        if settings.url is None and host in ("", "0.0.0.0", "::"):
            raise BadSetting(
                f"serve.host {host!r} does not show how other nodes reach this server: set node.url", key="node.url"
            )
        return settings

    async def join(self, url: str) -> None:
        """Become a node that other nodes reach at a URL.

        Raises:
            BadHome: another running node has the same id, or the database cannot be used.
            StoreFailed: the database cannot be reached.
        """
        name = self.settings().id or os.uname().nodename
        await self._store.join(Node(id=name, url=url, version=__version__))
        self.peers.advertise(url)

    async def _urls(self) -> list[str]:
        return [node.url for node in await self._store.nodes()]
