"""The beginning of a message's text (`parley.wire.items`)."""

from __future__ import annotations

from parley.wire.items import BEGINNING_BYTES, ImageItem, LongTextItem, TextItem, beginning_of

LONG = "€" * 300_000


def test_the_beginning_of_a_message_is_a_beginning_of_its_text() -> None:
    content = (TextItem(text="one "), ImageItem(image_url="data:,"), LongTextItem.of(LONG), TextItem(text=" two"))
    beginning = beginning_of(content)

    assert f"one {LONG} two".startswith(beginning)
    assert len(beginning.encode()) > BEGINNING_BYTES - 12


def test_short_texts_are_joined() -> None:
    assert beginning_of((TextItem(text="one "), TextItem(text="two"))) == "one two"
