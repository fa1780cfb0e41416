"""Determines whether the settings make a server a node."""

from __future__ import annotations

from parley.config.load import NODE_VARIABLE, Loader

__all__ = ["why_not_node"]


def why_not_node(loader: Loader) -> str | None:
    """Return the reason why a server that serves HTTP with the settings of `loader` is not a node; None if the
    server is a node.

    Raises:
        ConfigError: the settings, the URL of the database or the token cannot be used.
    """
    if loader.node_token() is None:
        return f"{NODE_VARIABLE} is not set"
    return "its conversations are not in PostgreSQL" if loader.store_url() is None else None
