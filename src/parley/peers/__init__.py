"""Connections to the other processes of a home."""

from __future__ import annotations

from parley.peers.unix import UnixPeers

__all__ = ["UnixPeers"]
