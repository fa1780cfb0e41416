"""What all conversations of a process have in common."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from parley.ports.clock import Clock
from parley.ports.commands import CommandRunner
from parley.ports.model import OpenModel
from parley.ports.store import Store
from parley.ports.tools import Tools
from parley.runtime.elsewhere import Neighbours

__all__ = ["Means"]


class Means(NamedTuple):
    clock: Clock
    store: Store
    open_model: OpenModel
    tools: Tools
    commands: CommandRunner
    """With which the tools run commands."""
    neighbours: Neighbours
    started_at: float
    """When this server was started, by the clock."""
    closing: asyncio.Event
    """Set when the server is on its way out."""
