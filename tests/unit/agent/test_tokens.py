"""The context window of a model by its name, and estimates of the tokens of a request."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from parley.agent.instructions import BASE_INSTRUCTIONS, PATCH_INSTRUCTIONS, instructions_for
from parley.agent.tokens import context_window, estimate
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageItem, OpaqueItem
from parley.ports.model import ModelRequest, ToolSpec
from parley.wire.ids import CallId
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem

EMPTY = 1
"""The estimate for an empty request."""


def of(*history: HistoryItem) -> int:
    return estimate(ModelRequest(instructions="", context=(), history=history)) - EMPTY


def of_input(item: InputItem) -> int:
    return of(UserItem((item,)))


@pytest.mark.parametrize(
    ("text", "at_least", "at_most"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 100, 900, 1_400),
        ("for place, item in enumerate(content):\n    " * 100, 900, 1_400),
        ("Съешь ещё этих мягких французских булок. " * 100, 1_000, 2_400),
        ("这是一个用来估计长度的句子。" * 100, 900, 1_400),
        ("😀" * 100, 100, 300),
    ],
    ids=["English", "code", "Russian", "Chinese", "signs"],
)
def test_a_text_is_estimated_a_little_high_in_every_script(text: str, at_least: int, at_most: int) -> None:
    assert at_least <= of(MessageItem(text=text)) <= at_most


def test_every_kind_of_item_counts_by_its_length() -> None:
    said = "x" * 700

    assert [
        of(MessageItem(text=said)),
        of(OutputItem(CallId("c1"), said)),
        of(CallItem(call_id=CallId("c1"), name="", arguments=said)),
        of(OpaqueItem(verbatim=Raw(said))),
        of(UserItem((TextItem(text=said),))),
        of(UserItem((TextItem(text=said), TextItem(text=said)))),
    ] == [205, 205, 206, 205, 205, 406]


def test_all_parts_of_a_request_count() -> None:
    tool = ToolSpec(name="shell", description="x" * 350, parameters={"type": "object"})
    request = ModelRequest(instructions="x" * 350, context=("x" * 350, ""), history=(), tools=(tool,))

    assert estimate(request) == 101 + 105 + 5 + 123
    assert estimate(replace(request, developer_instructions="x" * 350)) == 101 + 105 + 105 + 5 + 123


def test_images_cost_the_same_whatever_they_weigh() -> None:
    heavy = "data:image/png;base64," + "A" * 10_000_000

    assert [
        of_input(ImageItem(image_url=heavy)),
        of_input(ImageItem(image_url="https://example.com/a.png", detail="high")),
        of_input(LocalImageItem(path="a.png")),
        of_input(ImageItem(image_url=heavy, detail="low")),
    ] == [1_504, 1_504, 1_504, 104]


def test_a_file_of_text_counts_by_its_length_and_a_document_by_less() -> None:
    text = base64.b64encode(b"x" * 7_000).decode()
    paper = base64.b64encode(b"%PDF-1.7" + b"x" * 7_000).decode()

    assert [
        of_input(FileItem(file_data=text, filename="a.txt")),
        of_input(FileItem(file_data=paper, filename="a.pdf")),
        of_input(FileItem(file_url="https://example.com/a.pdf")),
        of_input(FileItem(file_id="file-1")),
    ] == [2_005, 471, 5_004, 5_004]


@given(st.text(), st.text())
@settings(deadline=None)
def test_more_text_never_counts_less(text: str, more: str) -> None:
    assert of(MessageItem(text=text)) <= of(MessageItem(text=text + more))


def test_half_a_surrogate_pair_is_counted_too() -> None:
    assert of(MessageItem(text="\ud83d")) == 5


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-5", 272_000),
        ("gpt-5-codex", 272_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-4.1-mini", 1_047_576),
        ("gpt-4o-2024-11-20", 128_000),
        ("o3", 200_000),
        ("o4-mini", 200_000),
        ("codex-mini-latest", 200_000),
        ("gpt-oss:20b", 131_072),
        ("openai/gpt-oss-120b", 131_072),
        ("mock-model", None),
        ("my-gpt-5", None),
        ("", None),
    ],
)
def test_the_window_of_a_model_is_known_by_its_name_or_not_at_all(model: str, window: int | None) -> None:
    assert context_window(model, None) == window


def test_a_configured_window_wins() -> None:
    assert context_window("gpt-5", 8_000) == 8_000
    assert context_window("mock-model", 8_000) == 8_000


def test_only_models_without_training_on_patches_get_instructions_for_them() -> None:
    assert instructions_for("gpt-4.1") == BASE_INSTRUCTIONS + PATCH_INSTRUCTIONS
    assert instructions_for("gpt-4.1-nano") == BASE_INSTRUCTIONS + PATCH_INSTRUCTIONS
    assert instructions_for("gpt-5") == BASE_INSTRUCTIONS
