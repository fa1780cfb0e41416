"""The tools in a tool server's list that a model is offered."""

from __future__ import annotations

from typing import Any

from parley.ports.model import ToolSpec
from parley.tools.servers.tool_list import MAX_BYTES, MAX_TOOLS, ToolList

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": NOTHING}


def names(listed: ToolList) -> list[str]:
    return [spec.name for spec in listed.tools]


def test_invalid_tools_are_left_out_and_named() -> None:
    listed = ToolList()

    listed.add([{"name": "bare"}, tool("good"), None, {"name": "odd\nname" * 20, "inputSchema": 1}, [tool("in")]])
    listed.add([{"name": "described", "description": 5, "inputSchema": {"properties": 5}}])

    nothing = {"type": "object", "properties": {}}
    assert listed.tools == [
        ToolSpec(name="good", description="", parameters=nothing),
        ToolSpec(name="described", description="", parameters=nothing),
    ]
    assert listed.complaint == (
        "omitted tools: 4 without a name or an input schema "
        f"(`bare`, nameless, `{('odd name' * 20)[:80]}`, nameless)"
    )


def test_of_many_that_make_no_sense_a_few_are_named() -> None:
    listed = ToolList()

    listed.add([{"name": f"bad{number}"} for number in range(100)])

    assert listed.complaint == (
        "omitted tools: 100 without a name or an input schema (`bad0`, `bad1`, `bad2`, `bad3`, `bad4`)"
    )


def test_a_thousand_tools_are_enough() -> None:
    listed = ToolList()

    listed.add([tool(str(number)) for number in range(MAX_TOOLS - 1)])
    assert (listed.is_full, listed.complaint) == (False, "")
    listed.add([tool("the last"), tool("one more"), {"name": "bad"}])

    assert listed.is_full
    assert names(listed)[-1] == "the last"
    assert len(listed.tools) == MAX_TOOLS == 1000
    assert listed.complaint == "omitted tools: 2 beyond 1000 tools or 1048576 bytes"


def test_tools_that_are_too_large_together_are_left_out_and_smaller_ones_are_not() -> None:
    listed = ToolList()

    listed.add([tool("huge", "x" * MAX_BYTES), tool("half", "x" * (MAX_BYTES // 2))])
    listed.add([tool("other half", "x" * (MAX_BYTES // 2)), tool("small")])

    assert MAX_BYTES == 1024 * 1024
    assert names(listed) == ["half", "small"]
    assert listed.complaint == "omitted tools: 2 beyond 1000 tools or 1048576 bytes"


def test_without_anything_to_complain_of_there_is_no_complaint() -> None:
    listed = ToolList()
    listed.add([tool("good")])

    assert (names(listed), listed.is_full, listed.complaint) == (["good"], False, "")
