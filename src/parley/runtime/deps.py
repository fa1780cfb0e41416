"""The parts that all conversations of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner
from parley.ports.model import OpenModel
from parley.ports.store import Store
from parley.ports.tools import Tools
from parley.runtime.peer_registry import PeerRegistry

__all__ = ["RuntimeDeps"]


class RuntimeDeps(Struct, frozen=True):
    clock: Clock
    store: Store
    open_model: OpenModel
    tools: Tools
    commands: CommandRunner
    """Runs the commands of the tools."""
    peers: PeerRegistry
    started_at: float
    """When this server started, by the clock."""
    may_be_followed: Callable[[], bool]
    """True if a client of this or another process that does not follow a conversation yet may begin to."""
    closing: asyncio.Event
    """Set when the server shuts down."""
