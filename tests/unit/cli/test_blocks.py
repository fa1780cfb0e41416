"""Splitting a Markdown text into blocks while it is being written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.cli.chat.blocks import CODE_LINES, Block, BlockSplitter
from parley.common.limited_time import limited_time


def blocks(text: str) -> list[Block]:
    splitter = BlockSplitter()
    return [*splitter.add(text), *splitter.end()]


def test_an_empty_line_ends_a_paragraph() -> None:
    splitter = BlockSplitter()

    assert splitter.add("one\ntwo\n\nthr") == [Block("text", "one\ntwo")]
    assert splitter.open_block == Block("text", "thr")
    assert splitter.add("ee") == []
    assert splitter.end() == [Block("text", "three")]
    assert splitter.open_block is None


def test_a_heading_is_a_block() -> None:
    assert blocks("text\n# Title\nmore") == [Block("text", "text"), Block("text", "# Title"), Block("text", "more")]


def test_code_keeps_its_empty_lines_and_its_language() -> None:
    assert blocks("Look:\n```python\na = 1\n\n# no heading\n```\ndone") == [
        Block("text", "Look:"),
        Block("code", "a = 1\n\n# no heading", "python"),
        Block("text", "done"),
    ]


@pytest.mark.parametrize(
    ("line", "is_code", "language"),
    [
        ("~~~~~ a b", True, "a"),
        ("   ```\tpython title=x", True, "python"),
        ("``` a`b", False, ""),
        ("~~~ a`b", False, ""),
        ("    ```", False, ""),
        ("``", False, ""),
    ],
)
def test_a_fence_begins_code(line: str, is_code: bool, language: str) -> None:
    (block,) = blocks(f"{line}\ncode")

    assert (block.kind == "code", block.language) == (is_code, language)


@pytest.mark.parametrize("line", ["~" * 20_000 + "`", "```" + "a" * 20_000 + "`", "~~~" + " " * 20_000 + "`"])
def test_a_long_line_that_is_almost_a_fence_takes_little_time(line: str) -> None:
    with limited_time(5):
        assert blocks(line) == [Block("text", line)]


def test_a_longer_fence_contains_shorter_ones() -> None:
    assert blocks("````\n```\nx\n```\n````\n") == [Block("code", "```\nx\n```")]


def test_long_code_is_split_without_gaps() -> None:
    lines = [str(number) for number in range(2 * CODE_LINES + 1)]

    assert blocks("```\n" + "\n".join(lines) + "\n```\n") == [
        Block("code", "\n".join(lines[:CODE_LINES])),
        Block("code", "\n".join(lines[CODE_LINES : 2 * CODE_LINES]), gap=False),
        Block("code", lines[-1], gap=False),
    ]


def test_each_item_of_a_list_is_a_block() -> None:
    assert blocks("- one\n  more\n- two\n\n  still two\n\n- three\nend\n\nafter") == [
        Block("item", "- one\n  more"),
        Block("item", "- two\n\n  still two", gap=False),
        Block("item", "- three\nend"),
        Block("text", "after"),
    ]


def test_code_in_an_item_belongs_to_the_item() -> None:
    text = "1. run\n   ```sh\n   a\n\n   b\n   ```\n2. done"

    assert blocks(text) == [
        Block("item", "1. run\n   ```sh\n   a\n\n   b\n   ```"),
        Block("item", "2. done", gap=False),
    ]


def test_a_paragraph_after_a_list_is_a_block() -> None:
    assert blocks("- one\n\nnot in the list") == [Block("item", "- one"), Block("text", "not in the list")]


MARKDOWN = st.lists(
    st.sampled_from(
        ["a", "b c", "\n", "\n\n", "- ", "1. ", "# ", "```", "```py", "  ", "~~~", "| x |", "---", "日本", "🙂"]
    )
).map("".join)


@given(text=MARKDOWN, cuts=st.lists(st.integers(0, 60)))
def test_the_blocks_do_not_depend_on_the_pieces(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    splitter = BlockSplitter()
    found = [block for start, end in pairwise(places) for block in splitter.add(text[start:end])]

    assert [*found, *splitter.end()] == blocks(text)


@given(text=MARKDOWN)
def test_no_word_is_lost(text: str) -> None:
    shown = "\n".join(block.text for block in blocks(text))

    for word in ("a", "b c", "日本", "🙂"):
        assert shown.count(word) <= text.count(word)
        if "`" not in text and "~" not in text:
            assert shown.count(word) == text.count(word)
