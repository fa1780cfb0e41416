"""The shape of a tool of the model."""

from __future__ import annotations

from typing import Protocol

from parley.conversation.records import CallItem
from parley.ports.model import ToolSpec

__all__ = ["Tool"]


class Tool(Protocol):
    """One tool, for one turn."""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything a model may call it; the first is what it is offered as."""
        ...

    def spec(self) -> ToolSpec | None:
        """How it is offered; None: it is not, but a call of it is understood all the same."""
        ...

    async def run(self, call: CallItem) -> str:
        """Do it, and return what the model is told.

        Raises:
            ToolError: it cannot be done; its text is what the model is told.
        """
        ...
