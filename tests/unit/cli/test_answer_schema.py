"""The check of an answer agrees with an independent implementation of JSON Schema (`parley.cli.answer_schema`)."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # has no types
import pytest

from parley.cli import answer_schema
from parley.cli.answer_schema import AnswerSchema, read_schema, why_invalid_schema

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 1.5, 3, 6, 1e999, 10**400, "", "a", "ab", "abc", "é" * 4),
    *([], [1], [1, 1], [1, True], [1, 2, "a"], [[1], [1]], [{"a": 1}, {"a": 1.0}]),
    *({}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": {"a": {"a": 1}}}, {"x-1": True}),
]
SCHEMAS: list[Any] = [
    *({"type": kind} for kind in ("null", "boolean", "number", "integer", "string", "array", "object")),
    {"type": ["string", "null"]},
    {"enum": [1, "a", None, [1]]},
    {"enum": [True]},
    {"const": {"a": 1}},
    {"const": False},
    {"minimum": 1, "maximum": 3},
    {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 1.5},
    {"multipleOf": 3},
    {"minLength": 1, "maxLength": 2},
    {"pattern": "^a.?$"},
    {"items": {"type": "integer"}, "minItems": 1},
    {"prefixItems": [{"type": "integer"}, {"type": "integer"}], "items": False},
    {"prefixItems": [True, {"const": 1}], "items": {"type": "string"}},
    {"maxItems": 1},
    {"uniqueItems": True},
    {"contains": {"type": "integer"}, "minContains": 2},
    {"contains": {"const": 1}, "maxContains": 1},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"properties": {"a": {}}, "additionalProperties": {"type": "boolean"}},
    {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
    {"propertyNames": {"maxLength": 1}},
    {"minProperties": 1, "maxProperties": 1},
    {"allOf": [{"type": "number"}, {"minimum": 1}]},
    {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"type": "array"}},
    {"if": {"type": "string"}, "then": False},
    {"$defs": {"node": {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {"$defs": {"a/b": {"type": "string"}}, "anyOf": [{"$ref": "#/$defs/a~1b"}, False]},
    {"properties": {"a": {"$ref": "#"}}, "type": ["object", "integer"]},
    {"format": "email", "title": "not a check"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_the_check_agrees_with_another_implementation(schema: Any) -> None:
    expected = jsonschema.Draft202012Validator(schema)
    values = [json.loads(json.dumps(one, allow_nan=True).replace("Infinity", "1e999")) for one in VALUES]
    wrong = [one for one in values if (_why(schema, one) is None) != _is_valid(expected, one)]

    assert wrong == []
    assert isinstance(schema, bool) or why_invalid_schema(schema) is None


def _why(schema: Any, value: Any) -> str | None:
    return AnswerSchema(schema).why_invalid(json.dumps(value).replace("Infinity", "1e999"))


def _is_valid(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except OverflowError:  # the other implementation cannot handle infinite numbers
        return False


@pytest.mark.parametrize(
    ("schema", "answer", "why"),
    [
        ({"type": "object"}, "Sure!", "the answer is not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"type": "number"}, "NaN", "the answer is not valid JSON: NaN is not a JSON value"),
        ({"type": "object"}, "[]", "the answer does not match the schema: $ is not of the type object: []"),
        (
            {"properties": {"a": {"items": {"type": "integer"}}}},
            '{"a": [1, "x"]}',
            'the answer does not match the schema: $.a[1] is not of the type integer: "x"',
        ),
        ({"required": ["a"]}, "{}", 'the answer does not match the schema: $ has no "a"'),
        (
            {"additionalProperties": False},
            '{"b c": 1}',
            'the answer does not match the schema: $["b c"] is not allowed',
        ),
        ({"$ref": "#/missing"}, "1", "the answer cannot be checked, because the schema is invalid: 'missing'"),
        ({"$ref": "https://example.com"}, "1", "$ref 'https://example.com' is not in the schema"),
        ({"pattern": "("}, '"x"', "the answer cannot be checked, because the schema is invalid"),
        ({"type": "text"}, '"x"', "the answer cannot be checked, because the schema is invalid: 'text'"),
        ({"$ref": 1}, "1", "the answer cannot be checked, because the schema is invalid"),
        ({"not": []}, "{}", "the answer cannot be checked, because the schema is invalid"),
        ({"$ref": "#"}, "1", "the answer cannot be checked: the schema or the answer has too many levels"),
    ],
    ids=str,
)
def test_an_answer_that_does_not_match_is_explained(schema: Any, answer: str, why: str) -> None:
    assert why in str(AnswerSchema(schema).why_invalid(answer))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"type": 5},
            "$.type is not one of null, boolean, number, integer, string, array, object, or a list of them: 5",
        ),
        ({"type": []}, "$.type is not one of"),
        ({"properties": {"a": {"type": "text"}}}, "$.properties.a.type is not one of"),
        ({"properties": []}, "$.properties is not an object: []"),
        ({"items": [{}]}, "$.items is not a schema: [{}]"),
        ({"anyOf": [{}, 1]}, "$.anyOf[1] is not a schema: 1"),
        ({"not": {"pattern": "("}}, '$.not.pattern is not a regular expression: "("'),
        (
            {"patternProperties": {"(": {}}},
            "$.patternProperties is not an object with regular expressions as names",
        ),
        ({"required": "a"}, '$.required is not a list of strings: "a"'),
        ({"minLength": -1}, "$.minLength is not a number that is not negative: -1"),
        ({"multipleOf": 0}, "$.multipleOf is not a number greater than 0: 0"),
        ({"$ref": "#/missing"}, '$.$ref names no part of the schema: "#/missing"'),
        ({"$ref": "https://example.com"}, "$.$ref names no part of the schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": 1}}}, "#/$defs/a.enum is not a list: 1"),
    ],
    ids=str,
)
def test_an_invalid_schema_is_explained(schema: Any, why: str) -> None:
    assert str(why_invalid_schema(schema)).startswith(why)


def test_a_schema_may_refer_to_itself_and_have_other_keywords() -> None:
    node = {"properties": {"next": {"$ref": "#"}, "type": {"const": 1}}, "format": 1, "additionalProperties": False}

    assert why_invalid_schema({"$schema": "x", "type": ["object", "null"], **node}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {
            "$ref": "#/d/40",
            "d": {
                "0": {"type": "string"},
                **{str(n): {"allOf": [{"$ref": f"#/d/{n - 1}"}] * 2} for n in range(1, 41)},
            },
        },
    ],
    ids=["pattern", "references"],
)
def test_a_check_that_takes_too_long_ends(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_schema, "CHECK_SECONDS", 0.2)

    assert "takes longer than 0.2 s" in str(AnswerSchema(schema).why_invalid(json.dumps("a" * 60 + "!")))


def test_a_schema_is_read_from_a_pipe_whose_writer_is_slow(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for part in (b'{"type": ', b'"string"}'):
                time.sleep(0.05)
                file.write(part)

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        assert read_schema(str(path)) == {"type": "string"}
        writing.result()
