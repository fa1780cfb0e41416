"""The other processes of a home, by their sockets."""

from __future__ import annotations

from parley.peers.home import HomePeers

__all__ = ["HomePeers"]
