"""Signed texts, which the server sends to clients and gets back."""

from __future__ import annotations

import pytest

from parley.server.signing import Signer

SIGNER = Signer(b"key", b"purpose")


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256))])
def test_a_signed_text_is_verified_with_its_context(content: bytes) -> None:
    text = SIGNER.sign(content, context="one")

    assert SIGNER.verify(text, context="one") == content
    assert SIGNER.verify(text, context="other") is None
    assert SIGNER.verify(text) is None


def test_a_text_of_another_key_or_purpose_is_not_accepted() -> None:
    text = SIGNER.sign(b"content")

    assert Signer(b"other", b"purpose").verify(text) is None
    assert Signer(b"key", b"other").verify(text) is None


@pytest.mark.parametrize("spoiled", ["", "A", "é", "{}=", "{}\n", "+{}", "{}AA"])
def test_a_changed_text_is_not_accepted(spoiled: str) -> None:
    assert SIGNER.verify(spoiled.format(SIGNER.sign(b"content"))) is None


def test_a_context_is_not_confused_with_the_content() -> None:
    assert SIGNER.verify(SIGNER.sign(b"bc", context="a"), context="ab") is None
