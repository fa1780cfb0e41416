"""The other processes of a home, by their sockets."""

from __future__ import annotations

from parley.peers.unix import UnixPeers

__all__ = ["UnixPeers"]
