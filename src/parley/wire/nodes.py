"""The link between nodes: a WebSocket that carries the messages of `wire/peers.py`, one JSON object on each line.

The versions of the link are WebSocket subprotocols. A node offers all versions that it knows, and the other node
chooses the newest version that it also knows. A node ignores unknown members and unknown notifications.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["NODE_PATH", "NODE_VERSIONS", "common_version"]

NODE_PATH: Final = "/node"

NODE_VERSIONS: Final = ("parley-node.1",)
"""The versions of the link that this version of Parley knows, the newest first."""


def common_version(offered: Sequence[str]) -> str | None:
    """Return the newest version that both nodes know; None if there is none."""
    names = [name.strip() for value in offered for name in value.split(",")]
    return next((version for version in NODE_VERSIONS if version in names), None)
