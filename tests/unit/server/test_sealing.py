"""Sealed texts, which the server gives to clients and gets back."""

from __future__ import annotations

import pytest

from parley.server.sealing import Sealer

SEALER = Sealer(b"key", b"purpose")


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256))])
def test_a_sealed_text_opens_with_its_context(content: bytes) -> None:
    text = SEALER.seal(content, context="one")

    assert SEALER.open(text, context="one") == content
    assert SEALER.open(text, context="other") is None
    assert SEALER.open(text) is None


def test_a_text_of_another_key_or_purpose_does_not_open() -> None:
    text = SEALER.seal(b"content")

    assert Sealer(b"other", b"purpose").open(text) is None
    assert Sealer(b"key", b"other").open(text) is None


@pytest.mark.parametrize("spoiled", ["", "A", "é", "{}=", "{}\n", "+{}", "{}AA"])
def test_a_changed_text_does_not_open(spoiled: str) -> None:
    assert SEALER.open(spoiled.format(SEALER.seal(b"content"))) is None


def test_a_context_is_not_confused_with_the_content() -> None:
    assert SEALER.open(SEALER.seal(b"bc", context="a"), context="ab") is None
