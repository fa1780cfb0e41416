"""The interface of a tool that the model can call."""

from __future__ import annotations

from typing import Protocol

from parley.conversation.records import CallItem
from parley.ports.model import ToolSpec

__all__ = ["Tool"]


class Tool(Protocol):
    """One tool that the model can call during one turn."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which a model may call the tool. The first one is the name in the tool's description for
        the model.
        """
        ...

    def spec(self) -> ToolSpec | None:
        """Return the tool's description for the model; None if the tool is not offered to the model. The model can
        call the tool in both cases.
        """
        ...

    async def run(self, call: CallItem) -> str:
        """Run a tool call and return its output for the model.

        Raises:
            ToolError: the call failed. The caller uses the text of the error as the output for the model.
        """
        ...
