"""The dependencies that all conversations of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner
from parley.ports.model import OpenModel
from parley.ports.nodes import Placement
from parley.ports.store import Store
from parley.ports.tools import Tools
from parley.ports.workspaces import Workspaces
from parley.runtime.activity import Activity
from parley.runtime.peer_registry import PeerRegistry
from parley.wire.ids import ConversationId
from parley.wire.tools import AttentionState

__all__ = ["RuntimeDeps"]


class RuntimeDeps(Struct, frozen=True):
    clock: Clock
    store: Store
    open_model: OpenModel
    tools: Tools
    commands: CommandRunner
    peers: PeerRegistry
    placement: Placement | None
    """The object that decides which node runs a turn; None if this process is not a node."""
    workspaces: Workspaces | None
    """The object that prepares and saves the worktrees of conversations in repositories; None if this process
    supports no worktrees.
    """
    started_at: float
    """The time when this server started, in seconds since the epoch."""
    may_be_followed: Callable[[], bool]
    """A function that returns True if this process has more than one client, or if another process uses the home
    directory. Clients other than the one that began a turn may then begin to follow the conversation.
    """
    continues_queues: bool
    """True if this process begins turns with the queued messages of each conversation that it loads. If False, this
    process begins such turns only after it has run a turn of the conversation or received a message for the
    conversation from a client.
    """
    is_store_silent: Callable[[], bool] | None
    """A function that returns whether the store has stopped responding; None if the store is a local database,
    which always responds.
    """
    draining: asyncio.Event
    """An event that is set when this process is about to stop and must begin no more turns."""
    closing: asyncio.Event
    """An event that is set when the server begins to shut down."""
    activity: Activity
    on_attention: Callable[[ConversationId, AttentionState], None]
    """The function that is called when a conversation of this process begins to wait for a person, or when a turn
    of the conversation has ended.
    """
