"""Images and files in a message: the content that each model API gets, and the items that are refused."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as checked
from hypothesis import strategies as st
from msgspec import UNSET

from kit.builders.images import PNG, as_data_url
from kit.models.raw_provider import CONVERSATION, RecordingClock, settings
from parley.config.types import WireApi
from parley.conversation.history import UserItem
from parley.models import model_opener
from parley.models.chat import encode_chat
from parley.models.content import flaw_of
from parley.models.http import Http
from parley.models.parts import SLICE_ITEMS
from parley.models.responses import encode_responses
from parley.ports.model import Model, ModelRequest
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem

Api = Literal["chat", "responses"]
APIS: tuple[Api, ...] = ("chat", "responses")
EVERY_API: tuple[WireApi, ...] = (*APIS, "anthropic", "scripted")

checked.register_profile("input parts", deadline=None)
anyhow = checked(checked.get_profile("input parts"))

ADDRESS = "https://example.com/a.png"
PICTURE = as_data_url("image/png", PNG)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


PAPER = base64_of(b"%PDF-1.7 and so on")
NOTES = base64_of("- Brötchen\n".encode())
ZIPPED = base64_of(b"PK\3\4\0\0")


def model(api: WireApi) -> Model:
    opener = model_opener(http=Http(), clock=RecordingClock())
    return opener(settings(api, base_url="http://127.0.0.1:1/v1"), CONVERSATION)


def sent(api: Api, content: Sequence[InputItem]) -> Any:
    """Return the content of the only message in a request."""
    request = ModelRequest(instructions="", context=(), history=(UserItem(tuple(content)),))
    if api == "chat":
        body = msgspec.json.decode(encode_chat(request, model="m", stream_usage=False))
        message = body["messages"][1]
    else:
        body = msgspec.json.decode(encode_responses(request, settings("responses"), CONVERSATION))
        [message] = body["input"]
    assert message["role"] == "user"
    return message["content"]


# --- accepted items ------------------------------------------------------------------------------


@pytest.mark.promises("send.items")
def test_a_message_with_images_and_files_keeps_its_order_over_chat() -> None:
    content = (
        TextItem(text="First"),
        ImageItem(image_url=PICTURE),
        TextItem(text="Second"),
        TextItem(text="Third"),
        ImageItem(image_url=ADDRESS, detail="high"),
        FileItem(file_data=PAPER, filename="paper.pdf"),
        FileItem(file_data=NOTES, filename="notes.md"),
        FileItem(file_id="file-1"),
    )

    assert sent("chat", content) == [
        {"type": "text", "text": "First"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "text", "text": "Second"},
        {"type": "text", "text": "Third"},
        {"type": "image_url", "image_url": {"url": ADDRESS, "detail": "high"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PAPER}", "filename": "paper.pdf"}},
        {"type": "text", "text": "File notes.md:\n\n- Brötchen\n"},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


@pytest.mark.promises("send.items")
@pytest.mark.parametrize("number", [SLICE_ITEMS - 1, SLICE_ITEMS, SLICE_ITEMS + 1, 3 * SLICE_ITEMS])
def test_a_message_of_very_many_items_is_sent_whole_and_in_order(number: int) -> None:
    texts = [f"Item {index}" for index in range(number - 1)]
    content: list[InputItem] = [*(TextItem(text=text) for text in texts), ImageItem(image_url=ADDRESS)]

    assert sent("chat", content) == [
        *({"type": "text", "text": text} for text in texts),
        {"type": "image_url", "image_url": {"url": ADDRESS}},
    ]
    assert sent("responses", content) == [
        *({"type": "input_text", "text": text} for text in texts),
        {"type": "input_image", "image_url": ADDRESS},
    ]


@pytest.mark.promises("send.items")
def test_a_message_with_images_and_files_keeps_its_order_over_responses() -> None:
    content = (
        TextItem(text="First"),
        ImageItem(image_url=PICTURE),
        TextItem(text="Second"),
        ImageItem(image_url=ADDRESS, detail="low"),
        ImageItem(file_id="file-1", detail="auto"),
        ImageItem(file_id="file-2", image_url=None, detail=None),
        FileItem(file_url="https://example.com/a.pdf"),
        FileItem(file_id="file-3"),
        FileItem(file_data=PAPER, filename="paper.pdf"),
    )

    assert sent("responses", content) == [
        {"type": "input_text", "text": "First"},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "input_text", "text": "Second"},
        {"type": "input_image", "image_url": ADDRESS, "detail": "low"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_image", "file_id": "file-2"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_file", "file_id": "file-3"},
        {
            "type": "input_file",
            "file_data": f"data:application/pdf;base64,{PAPER}",
            "filename": "paper.pdf",
        },
    ]


def test_texts_alone_are_one_text_over_chat_and_parts_over_responses() -> None:
    content = (TextItem(text="go "), TextItem(text="on"))

    assert sent("chat", content) == "go on"
    assert sent("responses", content) == [
        {"type": "input_text", "text": "go "},
        {"type": "input_text", "text": "on"},
    ]


@pytest.mark.parametrize(
    ("data", "filename", "media_type"),
    [
        (PAPER, "paper.pdf", "application/pdf"),
        (PAPER, "paper", "application/pdf"),
        (PAPER, "misleading.txt", "application/pdf"),
        ("AAAA", "REPORT.PDF", "application/pdf"),
        ("AAAA", "table.csv", "text/csv"),
        ("AAAA", "a.b.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        ("AAAA", "src/main.rs", "text/plain"),
        ("AAAA", "Makefile", "text/plain"),
        ("AAAA", ".pdf", "text/plain"),
    ],
)
def test_a_file_is_sent_with_its_type_over_responses(data: str, filename: str, media_type: str) -> None:
    file = {"file_data": f"data:{media_type};base64,{data}", "filename": filename}

    assert sent("responses", (FileItem(file_data=data, filename=filename),)) == [{"type": "input_file", **file}]


@pytest.mark.parametrize("filename", ["paper.pdf", "paper", "misleading.txt"])
def test_a_pdf_is_a_file_over_chat_whatever_it_is_called(filename: str) -> None:
    file = {"file_data": f"data:application/pdf;base64,{PAPER}", "filename": filename}

    assert sent("chat", (FileItem(file_data=PAPER, filename=filename),)) == [{"type": "file", "file": file}]


@pytest.mark.parametrize(
    ("data", "filename", "text"),
    [
        (b"a,b\r\n1,2\r\n", "table.csv", "a,b\r\n1,2\r\n"),
        (b"all:\n\ttrue\n", "Makefile", "all:\n\ttrue\n"),
        (b"no paper", "REPORT.PDF", "no paper"),
        (b"\xef\xbb\xbfmarked", "bom.txt", "marked"),
        ("Käse 🧀".encode(), "src/main.rs", "Käse 🧀"),
    ],
)
def test_a_text_is_put_in_after_its_name_over_chat(data: bytes, filename: str, text: str) -> None:
    item = FileItem(file_data=base64_of(data), filename=filename)

    assert model("chat").why_unsupported(item) is None
    assert sent("chat", (item,)) == [{"type": "text", "text": f"File {filename}:\n\n{text}"}]


def test_words_stand_in_the_history_for_what_chat_has_no_place_for() -> None:
    content = (
        TextItem(text="Look:"),
        ImageItem(file_id="file-1"),
        FileItem(file_url="https://example.com/a.pdf"),
        FileItem(file_data=ZIPPED, filename="table.xlsx"),
        LocalImageItem(path="shot.png"),
    )

    assert sent("chat", content) == [
        {"type": "text", "text": "Look:"},
        {"type": "text", "text": "[Left out: an image by file id cannot be sent over the chat API.]"},
        {"type": "text", "text": "[Left out: a file by URL cannot be sent over the chat API.]"},
        {"type": "text", "text": "[Left out: the file table.xlsx cannot be sent over the chat API.]"},
        {"type": "text", "text": "[Left out: the unread image shot.png cannot be sent over the chat API.]"},
    ]


def test_words_stand_in_the_history_for_an_image_that_was_never_read() -> None:
    assert sent("responses", (LocalImageItem(path="shot.png"),)) == [
        {
            "type": "input_text",
            "text": "[Left out: the unread image shot.png cannot be sent over the responses API.]",
        }
    ]


# --- refused items -------------------------------------------------------------------------------

SENDABLE_ANYWHERE: tuple[InputItem, ...] = (
    TextItem(text=""),
    ImageItem(image_url=ADDRESS),
    ImageItem(image_url=PICTURE, file_id=None, detail="high"),
    LocalImageItem(path="shot.png"),
    FileItem(file_id="file-1"),
    FileItem(file_id="file-1", filename="named.pdf"),
    FileItem(file_data=PAPER, filename="paper.pdf"),
    FileItem(file_data=NOTES, filename="notes.md"),
)


@pytest.mark.parametrize("api", [*APIS, "scripted"])
def test_items_for_every_api_are_accepted_by_all(api: WireApi) -> None:
    assert [model(api).why_unsupported(item) for item in SENDABLE_ANYWHERE] == [None] * len(SENDABLE_ANYWHERE)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (ImageItem(file_id="file-1"), "an image by file id cannot be sent over the chat API"),
        (FileItem(file_url=ADDRESS), "a file by URL cannot be sent over the chat API"),
        *(
            (
                FileItem(file_data=base64_of(data), filename=name),
                f"the file {name} cannot be sent over the chat API, which takes only text and PDF",
            )
            for name, data in {
                "table.xlsx": b"PK\3\4\0\0",
                "shot.png": PNG,
                "zero.txt": b"half\0text",
                "latin.txt": "Käse".encode("latin-1"),
                "wide.txt": "wide".encode("utf-16"),
                "half.txt": "ä".encode()[:1],
            }.items()
        ),
    ],
)
def test_items_that_chat_does_not_support_are_accepted_by_responses(item: InputItem, why: str) -> None:
    assert {api: model(api).why_unsupported(item) for api in EVERY_API if api != "anthropic"} == {
        "chat": why,
        "responses": None,
        "scripted": None,
    }


@pytest.mark.parametrize("api", EVERY_API)
@pytest.mark.parametrize(
    ("item", "why"),
    [
        (ImageItem(), "an image needs one of `image_url`, `file_id`"),
        (ImageItem(image_url=None, detail="low"), "an image needs one of `image_url`, `file_id`"),
        (ImageItem(image_url=""), "the `image_url` of an image is empty"),
        (ImageItem(image_url=ADDRESS, file_id="f"), "an image cannot have `image_url` and `file_id` at once"),
        (FileItem(), "a file needs one of `file_url`, `file_id`, `file_data`"),
        (FileItem(filename="a.pdf"), "a file needs one of `file_url`, `file_id`, `file_data`"),
        (FileItem(file_id=""), "the `file_id` of a file is empty"),
        (FileItem(file_data="", filename="a.pdf"), "the `file_data` of a file is empty"),
        (FileItem(file_url=ADDRESS, file_id="f"), "a file cannot have `file_url` and `file_id` at once"),
        (
            FileItem(file_url=ADDRESS, file_id="f", file_data="AAAA", filename="a"),
            "a file cannot have `file_url` and `file_id` and `file_data` at once",
        ),
        (FileItem(file_data="AAAA"), "a file with `file_data` needs a `filename`"),
        (FileItem(file_data="AAAA", filename=""), "a file with `file_data` needs a `filename`"),
        (FileItem(file_data=PICTURE, filename="a.png"), "the `file_data` of a file must be base64"),
        (FileItem(file_data="AAA", filename="a"), "the `file_data` of a file must be base64"),
    ],
)
def test_an_item_that_says_too_little_or_too_much_is_refused_everywhere(
    api: WireApi, item: InputItem, why: str
) -> None:
    assert model(api).why_unsupported(item) == why


# --- random input -------------------------------------------------------------------------

texts = st.text(max_size=5)
maybe: st.SearchStrategy[Any] = st.one_of(st.just(UNSET), st.none(), texts, st.just("AAAA"))
images = st.builds(
    ImageItem, image_url=maybe, file_id=maybe, detail=st.sampled_from([UNSET, None, "low", "high", "auto"])
)
data: st.SearchStrategy[Any] = st.one_of(maybe, st.binary(max_size=9).map(base64_of), st.just(PAPER))
files = st.builds(FileItem, file_url=maybe, file_id=maybe, file_data=data, filename=maybe)
items: st.SearchStrategy[InputItem] = st.one_of(
    st.builds(TextItem, text=texts), images, files, st.builds(LocalImageItem, path=texts)
)


@pytest.mark.parametrize("api", APIS)
@given(content=st.lists(items, min_size=1, max_size=6))
@anyhow
def test_whatever_a_history_holds_can_be_sent_item_by_item(api: Api, content: list[InputItem]) -> None:
    parts = sent(api, content)

    if isinstance(parts, str):
        assert parts == "".join(item.text for item in content if isinstance(item, TextItem))
    else:
        assert parts == [part for item in content for part in sent(api, (item, LocalImageItem(path="")))[:-1]]


@pytest.mark.parametrize("api", APIS)
@given(item=st.one_of(images, files))
@anyhow
def test_accepted_items_are_not_left_out(api: Api, item: InputItem) -> None:
    [part] = sent(api, (item,))

    if model(api).why_unsupported(item) is None:
        assert not part.get("text", "").startswith("[Left out")


@given(st.text(alphabet="Az09+/=\n -_,é", max_size=9))
@anyhow
@example("0000=")  # Python's own decoder accepts these three
@example("0000==")
@example("Az==")
def test_base64_is_what_an_encoder_writes(data: str) -> None:
    try:
        written = base64.b64encode(base64.b64decode(data, validate=True)).decode()
    except (binascii.Error, ValueError):
        written = None

    assert (flaw_of(FileItem(file_data=data, filename="a")) is None) == (data == written != "")


@given(st.binary(min_size=1))
@anyhow
def test_every_file_arrives_byte_by_byte(data: bytes) -> None:
    item = FileItem(file_data=base64.b64encode(data).decode(), filename="a.bin")

    [part] = sent("responses", (item,))

    assert flaw_of(item) is None
    assert base64.b64decode(part["file_data"].partition(";base64,")[2], validate=True) == data
