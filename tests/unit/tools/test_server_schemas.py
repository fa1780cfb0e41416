"""The input schema of a tool, reduced to the keywords that every model API accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.servers.tool_server import TOOLS
from parley.tools.servers.schemas import reduced


def test_the_schemas_of_the_recorded_traffic_come_out_as_recorded() -> None:
    assert {tool["name"]: reduced(tool["inputSchema"]) for tool in TOOLS} == {
        "add": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
        "env": {"type": "object", "properties": {}},
        "fail": {"type": "object", "properties": {}},
        "image": {
            "type": "object",
            "properties": {
                "mode": {"type": "string"},
                "opt": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
        "rpc_error": {"type": "object", "properties": {}},
        "slow": {"type": "object", "properties": {"seconds": {"type": "number"}}},
    }


STRING = {"type": "string"}
NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("given_schema", "expected"),
    [
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": STRING}}),
        ({"items": {"type": "integer"}}, {"type": "array", "items": NUMBER}),
        ({"enum": ["a"]}, STRING),
        ({"const": 1}, STRING),
        ({"format": "uri"}, STRING),
        ({"minimum": 1}, NUMBER),
        ({"maximum": 1}, NUMBER),
        ({"exclusiveMinimum": 1}, NUMBER),
        ({"exclusiveMaximum": 1}, NUMBER),
        ({"multipleOf": 2}, NUMBER),
        ({}, STRING),
        ({"type": "null"}, STRING),
        ({"type": "integer"}, NUMBER),
        ({"type": "boolean"}, {"type": "boolean"}),
        ({"type": ["null", "integer", "string"]}, NUMBER),
        ({"type": ["null"]}, STRING),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, NUMBER),
        ({"oneOf": [{"type": "array"}, STRING]}, {"type": "array", "items": STRING}),
        (
            {"anyOf": [{"type": "string", "description": "a"}, {"type": "null"}], "description": "b"},
            {"type": "string", "description": "b"},
        ),
        ({"type": "array"}, {"type": "array", "items": STRING}),
        ({"type": "array", "items": True}, {"type": "array", "items": STRING}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object", "properties": {}}),
        (
            {"type": "string", "description": "words", "title": "Title", "default": ""},
            STRING | {"description": "words"},
        ),
        (True, STRING),
        ("nonsense", STRING),
        (None, STRING),
    ],
)
def test_a_property_is_reduced_to_its_type(given_schema: object, expected: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"it": given_schema}}

    assert reduced(schema) == {"type": "object", "properties": {"it": expected}}


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"properties": None}, {"properties": [1]}])
def test_the_input_of_a_tool_is_always_an_object(schema: dict[str, Any]) -> None:
    assert reduced(schema) == {"type": "object", "properties": {}}


def test_required_contains_names() -> None:
    assert reduced({"required": ["a", 1, None]}) == {"type": "object", "properties": {}, "required": ["a"]}


@pytest.mark.parametrize("kind", ["object", "array"])
def test_deep_schemas_become_strings(kind: str) -> None:
    schema: dict[str, Any] = {"type": "number"}
    expected: dict[str, Any] = STRING
    for _ in range(400):
        schema = {"type": "array", "items": schema} if kind == "array" else {"properties": {"a": schema}}
    for _ in range(29):
        inner = expected
        expected = {"type": "array", "items": inner}
        if kind == "object":
            expected = {"type": "object", "properties": {"a": inner}}

    assert reduced({"properties": {"a": schema}}) == {"type": "object", "properties": {"a": expected}}


def assert_understood(schema: dict[str, Any]) -> None:
    match schema:
        case {"type": "object", "properties": properties}:
            assert schema.keys() <= {"type", "properties", "required"}
            for one in properties.values():
                assert_understood(one)
        case {"type": "array", "items": items}:
            assert schema.keys() <= {"type", "items", "description"}
            assert_understood(items)
        case _:
            assert schema["type"] in ("string", "number", "boolean")
            assert schema.keys() <= {"type", "description"}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "anyOf", "oneOf", "required", "enum", "description"])
            | st.text(max_size=3),
            inner | st.sampled_from(["object", "array", "integer", "boolean", "null"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(schema=st.dictionaries(st.text(max_size=3) | st.just("properties"), anything, max_size=4))
def test_whatever_a_server_sends_comes_out_as_something_every_api_takes(schema: dict[str, Any]) -> None:
    assert_understood(reduced(schema))
