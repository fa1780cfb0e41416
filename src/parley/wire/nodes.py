"""The connection between nodes, called a link: a WebSocket that carries the messages of `wire/peers.py`, one JSON
object on each line.

Before a node opens a link, it requests a challenge from the other node (`common/node_challenge.py`). The nodes
never send their shared token.

The versions of the link are WebSocket subprotocols. A node offers all versions that it knows, and the other node
chooses the newest version that it also knows. A node ignores unknown members and unknown notifications.

Version 2 adds the request `parley/place` and the notification `parley/released`. Each version of Parley knows at
least one version of the link that the previous version of Parley also knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["FIRST_VERSION", "NODE_PATH", "NODE_VERSIONS", "common_version"]

NODE_PATH: Final = "/node"

FIRST_VERSION: Final = "parley-node.1"
"""The first version of the protocol between nodes. This version lacks `parley/place` and `parley/released`."""

NODE_VERSIONS: Final = ("parley-node.2", FIRST_VERSION)
"""The versions of the protocol between nodes that this version of Parley knows; the newest is first."""


def common_version(offered: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the newest version that both nodes know; None if they have no version in common.

    `offered` contains the values of the other node's header `Sec-WebSocket-Protocol`. `known` contains the versions
    that this node knows, the newest first.
    """
    names = [name.strip() for value in offered for name in value.split(",")]
    return next((version for version in known if version in names), None)
