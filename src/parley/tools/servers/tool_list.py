"""The tools of a tool server that can be offered to a model.

Any list that a server sends is accepted. An invalid tool is omitted and does not affect the other tools.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from parley.ports.model import ToolSpec
from parley.tools.servers.failures import one_line
from parley.tools.servers.schemas import reduced

__all__ = ["MAX_BYTES", "MAX_TOOLS", "ToolList"]

MAX_TOOLS: Final = 1000
"""The maximum number of tools that one server may offer. Further tools are omitted, because a model cannot use so
many tools.
"""

MAX_BYTES: Final = 1024 * 1024
"""The maximum total size, in bytes, of the names, descriptions and schemas of one server's tools. The size is
limited because every request to a model contains them.
"""

MAX_NAMED: Final = 5
"""The maximum number of tools that the message about omitted tools names."""
MAX_NAME_CHARACTERS: Final = 80
"""The maximum length, in characters, of each name in the message about omitted tools."""


class ToolList:
    """The tools of one server, added page by page."""

    def __init__(self) -> None:
        self.tools: list[ToolSpec] = []
        """The tools that were accepted, under the server's own names."""
        self._bytes = self._unusable = self._beyond = 0
        self._named: list[str] = []

    @property
    def is_full(self) -> bool:
        return len(self.tools) >= MAX_TOOLS

    @property
    def complaint(self) -> str:
        """A log message about the tools that were omitted; empty if no tool was omitted."""
        parts: list[str] = []
        if self._unusable:
            named = ", ".join(self._named)
            parts.append(f"{self._unusable} without a name or an input schema ({named})")
        if self._beyond:
            parts.append(f"{self._beyond} beyond {MAX_TOOLS} tools or {MAX_BYTES} bytes")
        return f"omitted tools: {'; '.join(parts)}" if parts else ""

    def add(self, tools: list[Any]) -> None:
        for number, tool in enumerate(tools):
            if self.is_full:
                self._beyond += len(tools) - number
                return
            spec = _read(tool)
            if spec is None:
                self._unusable += 1
                if len(self._named) < MAX_NAMED:
                    self._named.append(_shown(tool))
            elif self._bytes + (size := len(msgspec.json.encode(spec))) > MAX_BYTES:
                self._beyond += 1
            else:
                self.tools.append(spec)
                self._bytes += size


def _read(tool: Any) -> ToolSpec | None:
    match tool:
        case {"name": str(name), "inputSchema": dict(schema)} if name:
            description = tool.get("description")
            return ToolSpec(
                name=name,
                description=description if isinstance(description, str) else "",
                parameters=reduced(schema),
            )
        case _:
            return None


def _shown(tool: object) -> str:
    match tool:
        case {"name": str(name)}:
            return f"`{one_line(name, MAX_NAME_CHARACTERS)}`"
        case _:
            return "nameless"
