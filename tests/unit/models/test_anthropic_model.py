"""Requests to the Anthropic Messages API and the decoder of its replies."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from kit.builders.images import PNG, as_data_url
from kit.models.raw_provider import RecordingClock, anthropic_event, settings
from parley.config.types import ReplyLimits
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.errors import CannotConnect, ModelStreamBroken, ReplyTooLarge
from parley.models.anthropic import AnthropicModel, encode_anthropic
from parley.models.anthropic_reply import AnthropicDecoder
from parley.models.errors import NoResponse, TooManyValues
from parley.models.http import Http, Reply
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    OpaqueDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
    ToolSpec,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId
from parley.wire.items import FileItem, ImageItem, InputItem, TextItem

BY = "https://api.anthropic.com claude"


def begin(index: int, kind: str, **members: Any) -> bytes:
    return anthropic_event("content_block_start", index=index, content_block={"type": kind, **members})


def piece(index: int, **members: Any) -> bytes:
    return anthropic_event("content_block_delta", index=index, delta=members)


def stop(index: int) -> bytes:
    return anthropic_event("content_block_stop", index=index)


def ended(reason: str, *, details: Any = None, **usage: int) -> bytes:
    delta = {"stop_reason": reason, "stop_details": details}
    return anthropic_event("message_delta", delta=delta, usage=usage) + anthropic_event("message_stop")


START = anthropic_event(
    "message_start",
    message={
        "content": [],
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 100,
            "output_tokens": 1,
        },
    },
)

REPLY = b"".join(
    (
        START,
        anthropic_event("ping"),
        begin(0, "thinking", thinking="", signature=""),
        piece(0, type="thinking_delta", thinking="I look "),
        piece(0, type="thinking_delta", thinking="twice."),
        piece(0, type="signature_delta", signature="sig"),
        stop(0),
        begin(1, "redacted_thinking", data="c2VjcmV0"),
        stop(1),
        begin(2, "text", text=""),
        piece(2, type="text_delta", text="Look"),
        piece(2, type="text_delta", text="ing 🧀."),
        stop(2),
        begin(3, "tool_use", id="toolu_1", name="look", input={}),
        piece(3, type="input_json_delta", partial_json=""),
        piece(3, type="input_json_delta", partial_json='{"at": '),
        piece(3, type="input_json_delta", partial_json='"one"}'),
        stop(3),
        begin(4, "tool_use", id="toolu_2", name="wait", input={}),
        stop(4),
        ended("tool_use", output_tokens=7, input_tokens=3),
    )
)

ITEMS: list[Chunk] = [
    ReasoningDone(
        summaries=("I look twice.",),
        raw=(),
        item=OpaqueItem(verbatim=Raw(b'{"type":"thinking","thinking":"I look twice.","signature":"sig"}'), by=BY),
    ),
    ReasoningDone(
        summaries=(),
        raw=(),
        item=OpaqueItem(verbatim=Raw(b'{"type":"redacted_thinking","data":"c2VjcmV0"}'), by=BY),
    ),
    MessageDone(MessageItem(text="Looking 🧀.")),
    CallDone(CallItem(call_id=CallId("toolu_1"), name="look", arguments='{"at": "one"}')),
    CallDone(CallItem(call_id=CallId("toolu_2"), name="wait", arguments="{}")),
    ResponseDone(
        TokenCount(
            input_tokens=123,
            cached_input_tokens=100,
            output_tokens=7,
            reasoning_output_tokens=None,
            total_tokens=130,
        ),
        cache_write_tokens=20,
    ),
]


def decoded(*parts: bytes, limits: ReplyLimits | None = None) -> list[Chunk]:
    decoder = AnthropicDecoder(by=BY, limits=limits or ReplyLimits())
    chunks: list[Chunk] = []
    for part in parts:
        if decoder.done:
            break
        chunks += decoder.feed(part)
    return [*chunks, *decoder.end()]


def items(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if not isinstance(chunk, TextDelta | ReasoningDelta)]


def texts(chunks: list[Chunk], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, kind))


# --- the decoder -----------------------------------------------------------------------


@pytest.mark.promises("model.cut-anywhere", "model.anthropic-reasoning")
@pytest.mark.parametrize("size", [1, 7, 64, len(REPLY)])
def test_a_reply_means_the_same_however_its_bytes_are_split(size: int) -> None:
    chunks = decoded(*(REPLY[at : at + size] for at in range(0, len(REPLY), size)))

    assert items(chunks) == ITEMS
    assert texts(chunks, ReasoningDelta) == "I look twice."
    assert texts(chunks, TextDelta) == "Looking 🧀."


def test_blocks_are_assembled_by_index_and_returned_in_the_order_of_their_indices() -> None:
    chunks = decoded(
        begin(1, "tool_use", id="b", name="two", input={})
        + begin(0, "tool_use", id="a", name="one", input={})
        + piece(1, type="input_json_delta", partial_json='{"n":')
        + piece(0, type="input_json_delta", partial_json='{"n":1}')
        + piece(1, type="input_json_delta", partial_json="2}")
        + stop(1)
        + stop(0)
        + ended("tool_use")
    )

    assert [(chunk.item.call_id, chunk.item.arguments) for chunk in chunks if isinstance(chunk, CallDone)] == [
        ("a", '{"n":1}'),
        ("b", '{"n":2}'),
    ]


def test_consecutive_text_blocks_are_one_message_and_unknown_blocks_are_kept() -> None:
    search: dict[str, Any] = {"id": "s1", "name": "web_search", "input": {}}
    found: dict[str, Any] = {"tool_use_id": "s1", "content": [{"url": "u", "page_age": None}]}
    chunks = decoded(
        begin(0, "server_tool_use", **search)
        + piece(0, type="input_json_delta", partial_json='{"query":"cheese"}')
        + stop(0)
        + begin(1, "web_search_tool_result", **found)
        + stop(1)
        + begin(2, "text", text="Cheese ")
        + stop(2)
        + begin(3, "text", text="", citations=[])
        + piece(3, type="text_delta", text="is good.")
        + piece(3, type="citations_delta", citation={"url": "u"})
        + stop(3)
        + ended("end_turn")
    )

    opaque = [
        bytes(chunk.item.verbatim)
        for chunk in chunks
        if isinstance(chunk, OpaqueDone) and isinstance(chunk.item, OpaqueItem)
    ]
    assert [msgspec.json.decode(one) for one in opaque] == [
        {"type": "server_tool_use", **search, "input": {"query": "cheese"}},
        {"type": "web_search_tool_result", **found},
    ]
    assert items(chunks)[-2] == MessageDone(MessageItem(text="Cheese is good."))


@pytest.mark.promises("model.split-pairs")
def test_a_surrogate_pair_that_is_split_between_two_pieces_is_joined() -> None:
    def half(kind: str, member: str, escape: str) -> bytes:
        return b'data: {"type":"content_block_delta","index":0,"delta":{"type":"%b","%b":"%b"}}\n\n' % (
            kind.encode(),
            member.encode(),
            escape.encode(),
        )

    chunks = decoded(
        begin(0, "text", text="")
        + half("text_delta", "text", r"a\ud83e")
        + half("text_delta", "text", r"\uddc0b")
        + stop(0)
        + ended("end_turn")
    )

    assert texts(chunks, TextDelta) == "a🧀b"
    assert items(chunks)[0] == MessageDone(MessageItem(text="a🧀b"))


@pytest.mark.parametrize(
    ("given", "pieces", "arguments"),
    [
        ({}, (), "{}"),
        ({"n": 1}, (), '{"n":1}'),
        ({}, ('{"n"', ":1"), '{"n":1'),
    ],
)
def test_the_arguments_of_a_call(given: Any, pieces: tuple[str, ...], arguments: str) -> None:
    parts = b"".join(piece(0, type="input_json_delta", partial_json=one) for one in pieces)
    [call, _] = decoded(begin(0, "tool_use", id="a", name="one", input=given) + parts + stop(0) + ended("tool_use"))

    assert isinstance(call, CallDone)
    assert call.item.arguments == arguments


@pytest.mark.promises("model.cut-off")
@pytest.mark.parametrize("begun", ["", '{"n'])
def test_a_call_that_max_tokens_cut_off_has_no_valid_arguments(begun: str) -> None:
    call, last = decoded(
        begin(0, "tool_use", id="a", name="one", input={})
        + piece(0, type="input_json_delta", partial_json=begun)
        + ended("max_tokens")
    )

    assert isinstance(call, CallDone)
    assert call.item.arguments == begun
    assert last == ResponseDone(None, "max_tokens")


@pytest.mark.parametrize(
    ("details", "refused"),
    [
        (None, ""),
        ({"type": "refusal", "category": None, "explanation": None}, ""),
        ({"category": "cyber", "explanation": None}, " (cyber)"),
        ({"category": None, "explanation": "No."}, ": No."),
        ({"category": "cyber", "explanation": "No."}, " (cyber): No."),
    ],
)
def test_a_refusal_states_its_category_and_its_explanation(details: Any, refused: str) -> None:
    last = decoded(START + ended("refusal", details=details))[-1]
    assert isinstance(last, ResponseDone)
    assert last.refused == refused


def test_stop_reasons() -> None:
    def last(reason: str) -> Chunk:
        return decoded(ended(reason))[-1]

    for reason in ("end_turn", "tool_use", "stop_sequence", "something_new"):
        assert last(reason) == ResponseDone(None)
    assert last("pause_turn") == ResponseDone(None, is_paused=True)
    with pytest.raises(ModelStreamBroken, match="context window"):
        last("model_context_window_exceeded")


def test_a_stop_reason_suffices_if_the_stream_ends_without_message_stop() -> None:
    delta = anthropic_event("message_delta", delta={"stop_reason": "end_turn"}, usage={})
    assert items(decoded(begin(0, "text", text="Hi") + delta)) == [
        MessageDone(MessageItem(text="Hi")),
        ResponseDone(None),
    ]


@pytest.mark.promises("failures.messages")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (START + begin(0, "text", text="par"), "stream closed before message_stop"),
        (
            START
            + b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Busy"}}\n\n',
            "Busy",
        ),
        (b'{"type":"error","error":{"type":"api_error","message":"Broken"}}', "Broken"),
        (b"<html>", "the body contains no response; it begins with: <html>"),
        (b"{}", "the body contains no response; it begins with: {}"),
    ],
)
def test_a_broken_reply_is_a_failure(body: bytes, why: str) -> None:
    with pytest.raises(ModelStreamBroken) as broken:
        decoded(body)
    assert broken.value.detail == why
    assert isinstance(broken.value, NoResponse) == why.startswith("the body")


@pytest.mark.promises("model.not-streamed")
def test_a_response_that_is_not_streamed_means_the_same() -> None:
    content = [
        {"type": "thinking", "thinking": "I look twice.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "text", "text": "Looking 🧀."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "one"}},
        {"type": "tool_use", "id": "toolu_2", "name": "wait", "input": {}},
    ]
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 7,
    }
    body = {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use", "usage": usage}
    chunks = items(decoded(msgspec.json.encode(body)))

    assert isinstance(chunks[3], CallDone)
    assert msgspec.json.decode(chunks[3].item.arguments) == {"at": "one"}
    assert [*chunks[:3], *chunks[4:]] == [*ITEMS[:3], *ITEMS[4:]]


@pytest.mark.promises("model.skipped")
def test_what_the_decoder_does_not_know_is_skipped() -> None:
    noise = b"".join(
        (
            b"data: not JSON\n\n",
            b"data: []\n\n",
            b'data: {"type":"content_block_delta","index":9,"delta":{"thinking":"lost"}}\n\n',
            b'data: {"type":"content_block_stop","index":9}\n\n',
            anthropic_event("something_new", value={"deep": [1]}),
        )
    )
    assert items(decoded(noise + REPLY)) == ITEMS


@pytest.mark.promises("model.reply-limits", "model.many-values")
@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([piece(0, text="x" * 150)] * 3, "max_reply_characters"),
        ([begin(0, "thinking"), *[piece(0, thinking="x" * 150)] * 3], "max_reply_characters"),
        ([begin(0, "thinking"), *[piece(0, signature="x" * 150)] * 3], "max_reply_characters"),
        ([begin(0, "redacted_thinking", data="x" * 500)], "max_reply_characters"),
        ([begin(index, "text", text="") for index in range(4)], "max_reply_characters"),
        (
            [begin(0, "tool_use", id="a", name="b"), *[piece(0, partial_json="x" * 90)] * 3],
            "max_argument_characters",
        ),
        ([begin(0, "tool_use", id="a", name="b" * 300)], "max_argument_characters"),
        ([begin(index, "tool_use") for index in range(3)], "max_calls"),
        ([b"data: " + b"x" * 2000], "max_event_bytes"),
    ],
)
def test_a_reply_beyond_a_limit_fails_at_once(parts: list[bytes], what: str) -> None:
    limits = ReplyLimits(max_reply_characters=450, max_argument_characters=250, max_calls=2, max_event_bytes=1024)
    with pytest.raises(ReplyTooLarge) as too_large:
        decoded(*parts, limits=limits)
    assert too_large.value.setting == what

    with pytest.raises(TooManyValues):
        decoded(begin(0, "web_search_tool_result", content=[{}] * 60_000))


# --- the request -----------------------------------------------------------------------


def sent(*history: HistoryItem, to: str = BY, breaks: tuple[int, ...] = (), **changes: Any) -> Any:
    request = ModelRequest(instructions="Be kind.", context=("Here.",), history=history, breaks=breaks)
    return msgspec.json.decode(encode_anthropic(request, settings("anthropic", model="claude", **changes), to=to))


def said(text: str) -> UserItem:
    return UserItem((TextItem(text=text),))


def test_a_request_has_exactly_this_form() -> None:
    look = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    request = ModelRequest(
        instructions="Be kind.",
        developer_instructions="And quick.",
        context=("Here.",),
        history=(said("go"),),
        tools=(look,),
    )
    assert msgspec.json.decode(encode_anthropic(request, settings("anthropic", model="claude"), to=BY)) == {
        "model": "claude",
        "max_tokens": 32_000,
        "system": "Be kind.\n\nAnd quick.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Here."}, {"type": "text", "text": "go"}]}
        ],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        "stream": True,
        "cache_control": {"type": "ephemeral"},
    }


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"model_reasoning_effort": "none"}, {}),
        ({"model_reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
        ({"model_reasoning_effort": "max"}, {"output_config": {"effort": "max"}}),
        ({"model_thinking": "adaptive"}, {"thinking": {"type": "adaptive"}}),
        ({"model_thinking": "disabled"}, {"thinking": {"type": "disabled"}}),
        ({"model_thinking_budget": 2048}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ({"model_max_output_tokens": 100}, {"max_tokens": 100}),
    ],
)
def test_settings_of_reasoning_add_members(changes: dict[str, Any], more: dict[str, Any]) -> None:
    assert sent(**changes) == {**sent(), **more}


THOUGHT = b'{"type":"thinking","thinking":"Hm.","signature":"s"}'


def call(number: int, arguments: str = "{}") -> CallItem:
    return CallItem(call_id=CallId(f"c{number}"), name="look", arguments=arguments)


@pytest.mark.promises("model.history", "model.anthropic-reasoning")
def test_a_response_is_one_message_and_the_outputs_are_the_next() -> None:
    history = (
        said("go"),
        OpaqueItem(verbatim=Raw(THOUGHT), by=BY),
        MessageItem(text="Looking."),
        call(1, '{"b": 1, "a": 2}'),
        OutputItem(CallId("c1"), "one"),
        call(2, "not an object"),
        OutputItem(CallId("c2"), "two"),
        said("faster"),
        MessageItem(text="Done."),
    )
    thought = msgspec.json.decode(THOUGHT)
    calls = [
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"b": 1, "a": 2}},
        {"type": "tool_use", "id": "c2", "name": "look", "input": {"arguments": "not an object"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
    ]

    def spoken(*blocks: Any) -> Any:
        return {"role": "assistant", "content": list(blocks)}

    looking, done = {"type": "text", "text": "Looking."}, {"type": "text", "text": "Done."}
    rest = [
        {"role": "user", "content": [*results, {"type": "text", "text": "faster"}]},
        spoken(done),
    ]
    assert sent(*history)["messages"][1:] == [spoken(thought, looking, *calls), *rest]
    assert sent(*history, to="another model")["messages"][1:] == [spoken(looking, *calls), *rest]


def test_each_response_with_calls_is_followed_by_its_outputs() -> None:
    history = (said("go"), call(1), OutputItem(CallId("c1"), "one"), call(2), OutputItem(CallId("c2"), "two"))
    roles = [(message["role"], len(message["content"])) for message in sent(*history, breaks=(1, 3))["messages"]]
    assert roles == [("user", 2), ("assistant", 1), ("user", 1), ("assistant", 1), ("user", 1)]
    again = (said("go"), call(1), OutputItem(CallId("c1"), "one"), call(1), OutputItem(CallId("c1"), "two"))
    assert sent(*again) == {**sent(*again, breaks=(1, 3))}  # the same id cannot occur twice in one response


def test_blocks_that_the_api_refuses_are_left_out() -> None:
    history = (
        said("go"),
        OpaqueItem(verbatim=Raw(THOUGHT), by=BY),
        MessageItem(text=" \n"),
        said(" "),
        UserItem(()),
        MessageItem(text="Fine."),
        OpaqueItem(verbatim=Raw(b'{"type":"redacted_thinking","data":"x"}'), by=BY),
        MessageFields(fields=Raw(b'{"reasoning_content":"Hm."}'), by=BY),
        OpaqueItem(verbatim=Raw(b'{"type":"reasoning"}'), by=""),
    )
    assert sent(*history, breaks=(1,))["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Here."}, {"type": "text", "text": "go"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Fine."}]},
    ]


def test_ids_of_other_apis_are_replaced_in_the_call_and_in_its_output() -> None:
    odd = CallItem(call_id=CallId("functions.look:0"), name="look", arguments="{}")
    _, spoken, results = sent(said("go"), odd, OutputItem(odd.call_id, "seen"))["messages"]
    assert spoken["content"][0]["id"] == results["content"][0]["tool_use_id"]
    assert spoken["content"][0]["id"].startswith("call_")


PAPER = base64.b64encode(b"%PDF-1.7").decode()
NOTES = base64.b64encode(b"- bread\n").decode()


@pytest.mark.promises("send.items")
def test_images_and_files_of_a_message() -> None:
    content: tuple[InputItem, ...] = (
        TextItem(text="First"),
        ImageItem(image_url=as_data_url("image/png", PNG)),
        ImageItem(image_url="https://example.com/a.png"),
        FileItem(file_data=PAPER, filename="paper.pdf"),
        FileItem(file_url="https://example.com/a.pdf"),
        FileItem(file_data=NOTES, filename="notes.md"),
        ImageItem(file_id="file-1"),
    )
    [message] = sent(UserItem(content))["messages"]
    assert message["content"][1:] == [
        {"type": "text", "text": "First"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        },
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PAPER},
            "title": "paper.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
        {"type": "text", "text": "File notes.md:\n\n- bread\n"},
        {"type": "text", "text": "[Left out: an image by file id cannot be sent over the anthropic API.]"},
    ]


@pytest.mark.promises("send.items")
def test_items_that_the_api_does_not_support_are_refused() -> None:
    model = AnthropicModel(
        settings("anthropic", base_url="http://127.0.0.1:1"), http=Http(), clock=RecordingClock()
    )
    takes = "which takes only"
    assert [
        model.why_unsupported(item)
        for item in (
            ImageItem(file_id="f"),
            FileItem(file_id="f"),
            ImageItem(image_url="data:image/bmp;base64,AAAA"),
            FileItem(file_data="AAAA", filename="a.bin"),
            ImageItem(image_url=as_data_url("image/png", PNG)),
        )
    ] == [
        "an image by file id cannot be sent over the anthropic API",
        "a file by file id cannot be sent over the anthropic API",
        f"an image by URL cannot be sent over the anthropic API, {takes} JPEG, PNG, GIF and WebP in base64",
        f"the file a.bin cannot be sent over the anthropic API, {takes} text and PDF",
        None,
    ]


def test_an_image_that_the_only_call_attached_is_a_part_of_its_output() -> None:
    image = UserItem((ImageItem(image_url="https://example.com/a.png"),))
    block = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    one = sent(said("go"), call(1), OutputItem(CallId("c1"), "attached"), image)
    assert one["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "attached"}, block]}
    ]
    two = sent(
        said("go"), call(1), OutputItem(CallId("c1"), "attached"), call(2), OutputItem(CallId("c2"), "seen"), image
    )
    assert [part["type"] for part in two["messages"][2]["content"]] == ["tool_result", "tool_result", "image"]


# --- the version and the address -----------------------------------------------------------------


class _NoHttp(Http):
    """Stores the URL and the headers of each request, and opens no connection."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, Mapping[str, str]]] = []

    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, idle_seconds: float, environ: Mapping[str, str]
    ) -> Reply:
        self.requests.append((url, headers))
        raise CannotConnect(url, "no network")


@pytest.mark.promises("model.anthropic")
@pytest.mark.parametrize(
    ("base_url", "own", "address", "version"),
    [
        ("https://api.anthropic.com", {}, "https://api.anthropic.com/v1/messages", "2026-10-21"),
        ("https://api.anthropic.com/v1/", {}, "https://api.anthropic.com/v1/messages", "2026-10-21"),
        ("http://localhost:11434", {}, "http://localhost:11434/v1/messages", "2023-06-01"),
        (
            "https://api.anthropic.com",
            {"anthropic-version": "2023-06-01"},
            "https://api.anthropic.com/v1/messages",
            "2023-06-01",
        ),
    ],
)
async def test_the_version_of_the_api_depends_on_the_host(
    base_url: str, own: dict[str, str], address: str, version: str
) -> None:
    http = _NoHttp()
    chosen = settings("anthropic", base_url=base_url, http_headers=own)
    model = AnthropicModel(chosen, http=http, clock=RecordingClock())
    with pytest.raises(CannotConnect):
        async for _ in model.stream(ModelRequest(instructions="", context=("hi",), history=())):
            pass

    ((url, headers),) = http.requests
    assert (url, headers["anthropic-version"]) == (address, version)
