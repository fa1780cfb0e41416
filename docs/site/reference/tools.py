"""The reference page of the tools, from the table of tools and the types of their arguments and results."""

from __future__ import annotations

from typing import Any

import msgspec
from docs.site.reference.types import field_table, inner_structs
from msgspec import Struct

from parley.server.tools import TOOLS
from parley.server.tooltable import Tool
from parley.wire.events import EVENT_TYPES

__all__ = ["tools_page"]

_HEAD = """\
# Tools

The arguments and results of each tool, at protocol version `2025-11-25` and newer.
[Protocol](../protocol.md#tools) describes the behaviour of the tools. `parley schema tools` prints the JSON
Schemas. Clients at earlier versions get fewer tools, arguments and results.

An argument that is `null` has the same meaning as an absent argument.
"""


def tools_page() -> str:
    """Return the page as Markdown."""
    tools = list(TOOLS)
    table = "".join(f"| [`{tool.name}`](#{tool.name.lower()}) | {tool.title} | {_role(tool)} |\n" for tool in tools)
    structs = [struct for tool in tools for struct in (tool.args, tool.result)]
    events = set(EVENT_TYPES.values())
    inner = [struct for struct in inner_structs(structs) if struct not in events]
    return "\n".join(
        [
            _HEAD,
            f"| tool | | lowest role |\n| --- | --- | --- |\n{table}",
            *(_section(tool) for tool in tools),
            "## Types\n",
            *(_type_section(struct) for struct in sorted(inner, key=lambda struct: struct.__name__)),
        ]
    )


def _role(tool: Tool[Any]) -> str:
    return f"`{tool.role.name.lower()}`"


def _section(tool: Tool[Any]) -> str:
    hints = tool.annotations
    kind = (
        "only reads" if hints.read_only_hint else "may destroy data" if hints.destructive_hint else "changes data"
    )
    facts = [f"lowest role {_role(tool)}", kind]
    if tool.can_be_task:
        facts.append("can run as a task")
    if tool.creates_conversation:
        facts.append("not for a token that is bound to a conversation")
    arguments = field_table(tool.args, is_argument=True)
    result = field_table(tool.result)
    return (
        f"## `{tool.name}`\n\n{tool.description}\n\n"
        f"*{_sentence(facts)}* [Behaviour](../protocol.md#{tool.name.lower()})\n\n"
        + (f"**Arguments**\n\n{arguments}\n" if arguments else "The tool has no arguments.\n\n")
        + (f"**Result**\n\n{result}" if result else "The result has no fields.\n")
    )


def _sentence(facts: list[str]) -> str:
    text = ", ".join(facts)
    return f"{text[0].upper()}{text[1:]}."


def _type_section(struct: type[Struct]) -> str:
    tag = msgspec.inspect.type_info(struct).tag  # type: ignore[attr-defined]  # the type is that of a struct
    text = " ".join((struct.__doc__ or "").split())
    shown = f"`type` is `{tag}`.\n\n" if tag else ""
    return f"### `{struct.__name__}`\n\n{text}\n\n{shown}{field_table(struct)}"
