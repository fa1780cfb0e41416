"""Connections to the other processes of a home, and to the other nodes of a database."""

from __future__ import annotations

from parley.peers.nodes import NodePeers
from parley.peers.unix import UnixPeers

__all__ = ["NodePeers", "UnixPeers"]
