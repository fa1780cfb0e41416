"""Connections to other processes with the same home directory, and to other nodes with the same database."""

from __future__ import annotations

from parley.peers.nodes import NodePeers
from parley.peers.unix import UnixPeers

__all__ = ["NodePeers", "UnixPeers"]
