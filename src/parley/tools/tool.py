"""The interface of a tool that the model can call."""

from __future__ import annotations

from typing import Protocol

from parley.conversation.records import CallItem
from parley.ports.model import ToolSpec

__all__ = ["Tool"]


class Tool(Protocol):
    """One tool, for one turn."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which a model may call the tool. The first is the name in its spec."""
        ...

    def spec(self) -> ToolSpec | None:
        """Return its description for the model; None if it is not offered, though calls of it still work."""
        ...

    async def run(self, call: CallItem) -> str:
        """Run a call and return the text for the model.

        Raises:
            ToolError: the call failed; the text of the error is for the model.
        """
        ...
