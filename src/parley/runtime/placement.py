"""Decides which node runs the next turn of a conversation.

A node can run the turn only if it has the working directory. Among the nodes that can run the turn, a node with few
running turns is chosen.

The functions of this module are pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from typing import Final

from parley.common.paths import is_below_any
from parley.config.types import WorkspaceMode
from parley.ports.nodes import Node, WorkingDirectory
from parley.runtime.errors import NoNodeForDirectory

__all__ = ["SLACK", "choose_node"]

SLACK: Final = 4
"""The maximum difference in the number of running turns, between a node and the least busy node, at which the node
still runs a new turn itself.

A node learns the number of running turns of other nodes with a delay of several seconds. Without this tolerance,
all nodes would send their turns to the same node.
"""


def choose_node(
    nodes: Iterable[Node],
    directory: WorkingDirectory,
    *,
    mode: WorkspaceMode,
    here: str,
    exists_here: bool,
    refused: Collection[str] = (),
) -> Node:
    """Return the node that runs the next turn in a directory.

    `here` is the id of this node. `mode` is the setting `workspace.mode`. `exists_here` is True if the directory
    exists on this node. `refused` contains the ids of the nodes that do not accept the turn or cannot be reached.

    Raises:
        NoNodeForDirectory: no node can run the turn.
    """
    assigned = directory.node
    offering = [
        node for node in nodes if node.mode == mode and _offers(node, directory, here, exists_here=exists_here)
    ]
    able = [
        node
        for node in offering
        if node.is_alive and not node.is_draining and node.id not in refused and not _is_missing(node, directory)
    ]
    if mode != "shared" and any(node.id == assigned for node in able):
        able = [node for node in able if node.id == assigned]
    if not able:
        described = [_described(node, directory, refused) for node in offering]
        if assigned is not None and not any(node.id == assigned for node in offering):
            described.append(f"{assigned} (not running)")
        if directory.repository is not None:
            raise NoNodeForDirectory(f"repository {directory.repository}", described)
        raise NoNodeForDirectory(f"directory {directory.path}", described)
    best = min(able, key=lambda node: (node.running, node.id))
    own = next((node for node in able if node.id == here), None)
    return own if own is not None and own.running <= best.running + SLACK else best


def _offers(node: Node, directory: WorkingDirectory, here: str, *, exists_here: bool) -> bool:
    """Return whether a node can run turns in a directory.

    A repository must be one of the repositories that the node has announced. If the node has announced roots, the
    directory must be in one of them. A node without roots has every directory if its mode is `shared`. Otherwise,
    the node has only the directories that are assigned to it. A directory that is assigned to no node can be
    used only on this node (`here`), and only if it exists there (`exists_here`).
    """
    if directory.repository is not None:
        return directory.repository in node.repositories
    if node.roots:
        return is_below_any(posixpath.normpath(directory.path), node.roots)
    if node.mode == "shared":
        return True
    assigned = directory.node
    return node.id == assigned if assigned is not None else node.id == here and exists_here


def _is_missing(node: Node, directory: WorkingDirectory) -> bool:
    """Return whether `directory` is below a root that `node` announces, but every such root is currently missing on
    that node.
    """
    if directory.repository is not None or not node.roots:
        return False
    return not is_below_any(posixpath.normpath(directory.path), set(node.roots) - set(node.missing))


def _described(node: Node, directory: WorkingDirectory, refused: Collection[str]) -> str:
    if not node.is_alive:
        return f"{node.id} (not running)"
    if node.is_draining:
        return f"{node.id} (stopping)"
    if _is_missing(node, directory):
        return f"{node.id} (the root does not exist there now)"
    return f"{node.id} (does not answer)" if node.id in refused else node.id
