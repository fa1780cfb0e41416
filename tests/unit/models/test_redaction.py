"""Redaction of recordings: which texts are secrets, and which are not (`parley.config.secret_settings`)."""

from __future__ import annotations

import pytest

from parley.models.redaction import Redactor


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("the key sk-ant-api03-0123456789abcdef.", "the key ***."),
        ("AKIAABCDEFGHIJKLMNOP and AIzaSyA0123456789012345678901234567", "*** and ***"),
        ("Authorization: Bearer abcdef0123456789abcdef", "Authorization: Bearer ***"),
        ("export DB_PASSWORD='correct-horse-battery'", "export DB_PASSWORD='***'"),
        ('{"api_key": "0123456789abcdef0"}', '{"api_key": "***"}'),
        ("postgres://me:pw@db.example/x", "postgres://me:***@db.example/x"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
            "***-----END RSA PRIVATE KEY-----",
        ),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK", "***"),
    ],
)
def test_texts_that_look_like_secrets_are_redacted(text: str, redacted: str) -> None:
    assert Redactor(()).text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8000/v1/chat/completions",
        "token = tokens[index]",
        "the PASSWORD is missing",
        "MAX_TOKENS=4096",
        "task-0123456789abcdef",
        "f(key=lambda item: item.name)",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert Redactor(()).text(text) == text


def test_a_known_secret_is_redacted_in_every_form() -> None:
    redactor = Redactor(['a/b "c" 0123', "short", "a/b"])
    value = {"x": ['a/b "c" 0123', 'in JSON: a/b \\"c\\" 0123', "?q=a%2Fb%20%22c%22%200123"], "y": 5, "z": None}

    assert redactor.value(value) == {"x": ["***", "in JSON: ***", "?q=***"], "y": 5, "z": None}
    assert redactor.text("short a/b") == "short a/b"


def test_a_secret_that_was_found_after_its_name_is_also_found_without_it() -> None:
    redactor = Redactor(())
    output = r'{"output": "MY_API_KEY=0123456789abcdef\n{\"token\": \"fedcba9876543210\"}"}'

    assert redactor.redact([output]) == [r'{"output": "MY_API_KEY=***\n{\"token\": \"***\"}"}']
    assert redactor.redact("0123456789abcdef, fedcba9876543210") == "***, ***"
