"""The headers of requests at 2026-07-28."""

from __future__ import annotations

from typing import Any

import pytest

from parley.rpc.modern import MAX_HEADERS, MAX_HEADERS_BYTES, header_names, modern_headers

SCHEMA = {
    "type": "object",
    "x-mcp-header": "Root",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
        "list": {"type": "array", "items": {"x-mcp-header": "Item"}},
        "bad": {"x-mcp-header": "two words"},
        "worse": {"x-mcp-header": 5},
        "plain": {"type": "string"},
    },
}


def test_the_headers_of_a_tool_are_found_in_the_properties_of_its_schema() -> None:
    assert header_names(SCHEMA) == {("region",): "Region", ("deep", "flag"): "Flag"}


@pytest.mark.parametrize("schema", [None, [], {"properties": 5}, {"properties": {"a": 5}}])
def test_a_schema_of_another_shape_has_no_headers(schema: Any) -> None:
    assert header_names(schema) == {}


def test_a_server_cannot_ask_for_many_headers() -> None:
    many = {"properties": {str(number): {"x-mcp-header": f"H{number}"} for number in range(1000)}}

    assert len(header_names(many)) == MAX_HEADERS


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("eu-1", "eu-1"),
        ("Zürich", "=?base64?WsO8cmljaA==?="),
        (" x", "=?base64?IHg=?="),
        ("a\r\nX: 1", "=?base64?YQ0KWDogMQ==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
        (7, "7"),
        (True, "true"),
        (None, None),
        (1.5, None),
        ({}, None),
        ("x" * 11_900, "x" * 11_900),
        ("x" * 12_000, None),
        ("\N{GRINNING FACE}" * 4000, None),
    ],
)
def test_an_argument_is_repeated_in_its_header(value: Any, header: str | None) -> None:
    params = {"name": "locate", "arguments": {"region": value}}
    expected = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "locate"}
    if header is not None:
        expected["Mcp-Param-Region"] = header

    assert modern_headers("tools/call", params, {("region",): "Region"}) == expected


def test_arguments_that_do_not_fit_into_all_headers_together_have_no_header() -> None:
    arguments = {"a": "x" * 7000, "b": "x" * 7000, "c": "x" * 4000}
    headers = modern_headers("tools/call", {"name": "locate", "arguments": arguments}, {(n,): n for n in arguments})
    sent = {name: value for name, value in headers.items() if name.startswith("Mcp-Param-")}

    assert sorted(sent) == ["Mcp-Param-a", "Mcp-Param-c"]
    assert sum(len(f"{name}: {value}\r\n") for name, value in sent.items()) <= MAX_HEADERS_BYTES
