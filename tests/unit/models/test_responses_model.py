"""The Responses API: the chunks for recorded bytes, and the request for a history."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from kit.models.raw_provider import CONVERSATION, RESPONSES_END, responses_event, settings
from parley.conversation.history import OutputItem, UserItem
from parley.conversation.records import CallItem, MessageItem, OpaqueItem
from parley.errors import ModelStreamBroken, ReplyTooLarge
from parley.models.responses import encode_responses
from parley.models.responses_reply import ResponsesDecoder
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
    ToolSpec,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId
from parley.wire.items import ImageItem, TextItem


def decoded(data: bytes, cuts: tuple[int, ...] = (), *, by: str = "") -> list[Chunk]:
    """Decode the body `data`, read in the given pieces."""
    decoder = ResponsesDecoder(by=by)
    chunks: list[Chunk] = []
    start = 0
    for end in (*sorted(cuts), len(data)):
        if not decoder.done:
            chunks += decoder.feed(data[start:end])
        start = end
    return chunks + decoder.end()


def item_done(item: object) -> bytes:
    return responses_event("response.output_item.done", item=item)


def compared(chunks: list[Chunk]) -> list[Any]:
    """Return chunks as plain values; verbatim items are compared as JSON."""
    return [(type(chunk).__name__, msgspec.json.decode(msgspec.json.encode(chunk))) for chunk in chunks]


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


MESSAGE_ITEM = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "content": [{"type": "output_text", "text": "Hello world"}],
}
MESSAGE = (
    responses_event("response.created", response={"id": "resp_1"})
    + responses_event("response.output_text.delta", delta="Hel")
    + responses_event("response.output_text.delta", delta="")
    + responses_event("response.output_text.delta", delta="lo world")
    + item_done(MESSAGE_ITEM)
    + responses_event(
        "response.completed",
        response={
            "id": "resp_1",
            "usage": {
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 2},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": 15,
            },
        },
    )
)
MESSAGE_CHUNKS: list[Chunk] = [
    TextDelta("Hel"),
    TextDelta("lo world"),
    MessageDone(MessageItem(text="Hello world", id="msg_1")),
    ResponseDone(
        TokenCount(
            input_tokens=10,
            cached_input_tokens=2,
            output_tokens=5,
            reasoning_output_tokens=1,
            total_tokens=15,
        )
    ),
]

REASONING_ITEM = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [
        {"type": "summary_text", "text": "First thought"},
        {"type": "summary_text", "text": "Second thought"},
    ],
    "content": [{"type": "reasoning_text", "text": "raw thinking"}],
    "encrypted_content": "ENC",
}
REASONING = (
    responses_event("response.reasoning_summary_part.added")
    + responses_event("response.reasoning_summary_text.delta", delta="First thought")
    + responses_event("response.reasoning_text.delta", delta="raw thinking")
    + item_done(REASONING_ITEM)
    + RESPONSES_END
)
REASONING_CHUNKS: list[Chunk] = [
    ReasoningDelta("First thought"),
    RawReasoningDelta("raw thinking"),
    ReasoningDone(
        summaries=("First thought", "Second thought"),
        raw=("raw thinking",),
        item=OpaqueItem(verbatim=raw(REASONING_ITEM)),
    ),
    ResponseDone(None),
]

FUNCTION_CALL = {"type": "function_call", "id": "fc_c1", "call_id": "c1", "name": "shell", "arguments": "{not json"}
NAMELESS_CALL = {"type": "function_call", "id": "fc_c2", "call_id": "c2", "name": "", "arguments": "{}", "new": [1]}
LOCAL_SHELL_CALL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": None,
    "status": "completed",
    "action": {"type": "exec", "command": ["echo", "local"], "timeout_ms": 5000},
}
SEARCH_CALL = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
CALLS = (
    item_done(FUNCTION_CALL)
    + item_done(NAMELESS_CALL)
    + item_done(LOCAL_SHELL_CALL)
    + item_done(SEARCH_CALL)
    + RESPONSES_END
)
CALLS_CHUNKS: list[Chunk] = [
    CallDone(CallItem(call_id=CallId("c1"), name="shell", arguments="{not json", verbatim=raw(FUNCTION_CALL))),
    CallDone(CallItem(call_id=CallId("c2"), name="", arguments="{}", verbatim=raw(NAMELESS_CALL))),
    CallDone(
        CallItem(
            call_id=CallId("lsh_1"),
            name="local_shell",
            arguments='{"type":"exec","command":["echo","local"],"timeout_ms":5000}',
            verbatim=raw(LOCAL_SHELL_CALL),
        )
    ),
    OpaqueDone(OpaqueItem(verbatim=raw(SEARCH_CALL))),
    ResponseDone(None),
]

EMPTY_MESSAGE = {"type": "message", "role": "assistant", "id": "msg_2", "content": []}
REFUSAL = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Sorry: "}, {"type": "refusal", "refusal": "no."}],
}
ODDITIES = (
    b"data: {not json\n\n: comment\n\ndata: 5\n\ndata: {}\n\ndata\n\n"
    b'event: response.strange\ndata: {"type":"response.strange"}\n\n'
    b'data: {"type":"response.output_text.delta","delta":{"odd":1}}\r\n\r\n'
    b'data:{"type":"response.output_text.delta",\r\ndata: "delta":"half \\ud83d pair, "}\r\n\r\n'
    b'data: {"type":"response.output_text.delta","delta":"bad byte \xff"}\n\n'
    b'data: {"type":"response.output_item.done","item":{"type":"thing","of":"\xff \\ud83d"}}\n\n'
    + item_done(7)
    + item_done({"type": "function_call", "call_id": "c1", "name": "shell", "arguments": {"command": []}})
    + item_done({"type": "message", "role": "assistant", "content": "text"})
    + responses_event("response.output_item.done")
    + item_done(EMPTY_MESSAGE)
    + item_done(REFUSAL)
    + responses_event("response.completed", response={"usage": {"input_tokens": "many"}})
)
ODDITIES_CHUNKS: list[Chunk] = [
    TextDelta("half \ufffd pair, "),
    TextDelta("bad byte \ufffd"),
    OpaqueDone(OpaqueItem(verbatim=raw({"type": "thing", "of": "\ufffd \ufffd"}))),
    CallDone(CallItem(call_id=CallId("c1"), name="shell", arguments='{"command":[]}')),
    MessageDone(MessageItem(text="", id="msg_2")),
    MessageDone(MessageItem(text="Sorry: no.")),
    ResponseDone(None),
]

RECORDED = [
    pytest.param(MESSAGE, MESSAGE_CHUNKS, id="message"),
    pytest.param(REASONING, REASONING_CHUNKS, id="reasoning"),
    pytest.param(CALLS, CALLS_CHUNKS, id="calls"),
    pytest.param(ODDITIES, ODDITIES_CHUNKS, id="oddities"),
    pytest.param(RESPONSES_END, [ResponseDone(None)], id="nothing"),
]


@pytest.mark.parametrize(("data", "chunks"), RECORDED)
def test_a_recorded_reply_is_decoded_completely(data: bytes, chunks: list[Chunk]) -> None:
    assert compared(decoded(data)) == compared(chunks)


@pytest.mark.parametrize(("data", "chunks"), RECORDED)
@given(st.data())
@checked(deadline=None)
def test_a_reply_means_the_same_wherever_it_is_cut(data: bytes, chunks: list[Chunk], draw: st.DataObject) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))

    assert compared(decoded(data, cuts=tuple(cuts))) == compared(chunks)


def test_data_after_the_completion_is_not_read() -> None:
    assert decoded(MESSAGE + item_done(MESSAGE_ITEM)) == MESSAGE_CHUNKS


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "stream closed before response.completed"),
        (responses_event("response.in_progress"), "stream closed before response.completed"),
        (responses_event("error", code="server_error", message="model broke"), "model broke"),
        (responses_event("response.failed", response={"error": {"message": "model broke"}}), "model broke"),
        (responses_event("response.failed", response={"error": None}), "the provider gave no reason"),
        (responses_event("response.failed"), "the provider gave no reason"),
    ],
)
def test_a_reply_that_is_not_completed_is_no_response(data: bytes, detail: str) -> None:
    decoder = ResponsesDecoder()
    text = responses_event("response.output_text.delta", delta="par")

    assert decoder.feed(text + data) == [TextDelta("par")]
    with pytest.raises(ModelStreamBroken) as broken:
        decoder.end()
    assert broken.value.detail == detail


@pytest.mark.promises("failures.no-response")
@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "the body of the response is empty"),
        (b"<html>", "the body contains no response; it begins with: <html>"),
        (b'{"detail":"Not Found"}', 'the body contains no response; it begins with: {"detail":"Not Found"}'),
        (b'{"type":"error","message":"no key"}', "no key"),
        (b'{"error":{"message":"no key"}}', "no key"),
        (b'{"error":"no key"}', "no key"),
        (b'event: error\ndata: {"message":"no key"}\n\n', "no key"),
        (b"event: error\ndata: no key\n\n", "no key"),
        (b'event: error\ndata: {"error":{"message":"no key"}}\n\n', "no key"),
        (b'data: {"error":{"message":"no key"}}\n\n', "no key"),
        (b'data: {"type":"error","error":"no key"}\n\n', "no key"),
        (b'{"object":"response","status":"failed","error":{"message":"no key"},"output":[]}', "no key"),
    ],
)
@pytest.mark.parametrize("every", [1, 7, 1000])
def test_a_body_without_a_response_is_a_failure(data: bytes, detail: str, every: int) -> None:
    with pytest.raises(ModelStreamBroken) as broken:
        decoded(data, tuple(range(every, len(data), every)))
    assert broken.value.detail == detail


def test_a_byte_order_mark_and_cr_line_ends_are_accepted() -> None:
    for data in (MESSAGE.replace(b"\n", b"\r"), MESSAGE.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + MESSAGE):
        assert decoded(data) == MESSAGE_CHUNKS


@pytest.mark.promises("model.not-streamed")
@pytest.mark.parametrize(
    ("status", "cut_by"), [("completed", None), ("incomplete", "max_output_tokens"), (None, None)]
)
def test_a_body_that_is_not_streamed_is_read_like_one_that_is(status: str | None, cut_by: str | None) -> None:
    response = {
        "object": "response",
        "output": [REASONING_ITEM, MESSAGE_ITEM, FUNCTION_CALL],
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        **({"status": status} if status else {}),
        "incomplete_details": {"reason": cut_by} if cut_by else None,
    }
    events = b"".join(map(item_done, (REASONING_ITEM, MESSAGE_ITEM, FUNCTION_CALL)))
    events += responses_event("response.incomplete" if cut_by else "response.completed", response=response)
    body = json.dumps(response, indent=2).encode()

    assert compared(decoded(body)) == compared(decoded(events))


@pytest.mark.promises("model.many-values")
def test_an_event_of_very_many_values_is_refused() -> None:
    part = b'{"type":"a"},'
    item = b'{"type":"message","content":[%b{"type":"a"}]}' % (part * 500_000)
    with pytest.raises(ReplyTooLarge, match="the model sent an event with more than 50000 JSON values"):
        decoded(b'data: {"type":"response.output_item.done","item":%b}\n\n' % item)


HISTORY = (
    UserItem((TextItem(text="go "), TextItem(text="on"))),
    OpaqueItem(verbatim=raw(REASONING_ITEM)),
    MessageItem(text="I will look.", id="msg_1"),
    CallItem(call_id=CallId("c1"), name="shell", arguments="{not json", verbatim=raw(FUNCTION_CALL)),
    OutputItem(CallId("c1"), "no"),
    CallItem(call_id=CallId("c2"), name="shell", arguments="{}"),
    OutputItem(CallId("c2"), "yes"),
    MessageItem(text="Done"),
)
SHELL = ToolSpec(name="shell", description="Runs a command", parameters={"type": "object"})
PLAN = ToolSpec(name="update_plan", description="Keeps a plan", parameters={"type": "object"})


def said(role: str, kind: str, *texts: str, item_id: str | None = None) -> dict[str, Any]:
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "id": item_id, "role": role, "content": content}


def function(name: str, description: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {"type": "object"},
    }


def body(request: ModelRequest, **changes: Any) -> dict[str, Any]:
    encoded = encode_responses(request, settings("responses", **changes), CONVERSATION)
    result: dict[str, Any] = msgspec.json.decode(encoded)
    return result


def test_a_request_holds_exactly_what_the_api_takes() -> None:
    request = ModelRequest(instructions="Be kind.", context=("Here.", "Now."), history=HISTORY, tools=(SHELL,))

    assert body(request) == {
        "model": "mock-model",
        "instructions": "Be kind.",
        "input": [
            said("user", "input_text", "Here."),
            said("user", "input_text", "Now."),
            said("user", "input_text", "go ", "on"),
            REASONING_ITEM,
            said("assistant", "output_text", "I will look.", item_id="msg_1"),
            FUNCTION_CALL,
            {"type": "function_call_output", "call_id": "c1", "output": "no"},
            {"type": "function_call", "id": None, "name": "shell", "arguments": "{}", "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c2", "output": "yes"},
            said("assistant", "output_text", "Done"),
        ],
        "tools": [function("shell", "Runs a command")],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": True,
        "stream": True,
        "include": [],
        "prompt_cache_key": CONVERSATION,
    }


EMPTY = ModelRequest(instructions="", context=(), history=())
MEDIUM = {"effort": "medium", "summary": "auto"}


@pytest.mark.promises("model.responses")
@pytest.mark.parametrize(
    ("changes", "reasoning"),
    [
        ({"model": "o3-pro"}, MEDIUM),
        ({"model": "o4-mini"}, MEDIUM),
        ({"model": "codex-mini-latest"}, MEDIUM),
        ({"model": "gpt-5-mini"}, MEDIUM),
        ({"model": "gpt-4.1"}, None),
        ({"model": "gpt-4.1", "model_supports_reasoning_summaries": True}, MEDIUM),
        ({"model": "o3", "model_reasoning_effort": "none"}, None),
        (
            {"model": "o3", "model_reasoning_effort": "high", "model_reasoning_summary": "detailed"},
            {"effort": "high", "summary": "detailed"},
        ),
        ({"model": "o3", "model_reasoning_summary": "none"}, {"effort": "medium"}),
    ],
)
def test_reasoning_is_requested_from_models_that_support_it(
    changes: dict[str, Any], reasoning: dict[str, str] | None
) -> None:
    assert body(EMPTY, **changes)["reasoning"] == reasoning


@pytest.mark.parametrize(("model", "include"), [("o3", ["reasoning.encrypted_content"]), ("mock-model", [])])
def test_without_storage_thoughts_travel_encrypted(model: str, include: list[str]) -> None:
    asked = body(EMPTY, model=model, disable_response_storage=True)

    assert asked["store"] is False
    assert asked["include"] == include


def test_the_model_that_has_its_own_shell_is_offered_that() -> None:
    request = ModelRequest(instructions="", context=(), history=(), tools=(SHELL, PLAN))

    assert body(request, model="codex-mini-latest")["tools"] == [
        {"type": "local_shell"},
        function("update_plan", "Keeps a plan"),
    ]


def test_an_image_is_a_part_of_the_message_it_stands_in() -> None:
    image = ImageItem(image_url="https://example.com/a.png", detail="low")
    history = (UserItem((TextItem(text="Look: "), image)), UserItem((TextItem(text="And?"),)))

    assert body(ModelRequest(instructions="", context=("here",), history=history))["input"] == [
        {"type": "message", "id": None, "role": "user", "content": content}
        for content in (
            [{"type": "input_text", "text": "here"}],
            [
                {"type": "input_text", "text": "Look: "},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
            ],
            [{"type": "input_text", "text": "And?"}],
        )
    ]


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ({"type": "function_call", "name": "shell", "arguments": "{}"}, "shell", "{}"),
        ({"type": "function_call", "call_id": 7, "name": "shell", "arguments": "{}"}, "shell", "{}"),
        ({"type": "function_call", "call_id": "", "name": "shell"}, "shell", ""),
        ({"type": "local_shell_call", "action": {"command": []}}, "local_shell", '{"command":[]}'),
        ({"type": "local_shell_call"}, "local_shell", ""),
    ],
)
def test_a_call_without_an_id_is_given_one_and_goes_back_with_it(call: Any, name: str, arguments: str) -> None:
    first, _ = decoded(item_done(call) + RESPONSES_END)

    assert isinstance(first, CallDone)
    assert (first.item.name, first.item.arguments, first.item.verbatim) == (name, arguments, UNSET)
    assert first.item.call_id.startswith("call_")


def test_another_provider_is_sent_neither_reasoning_nor_ids_of_the_first() -> None:
    said = [chunk for reply in (MESSAGE, REASONING, CALLS) for chunk in decoded(reply, by="http://elsewhere/v1")]
    items = [chunk.item for chunk in said if isinstance(chunk, MessageDone | CallDone | OpaqueDone | ReasoningDone)]
    request = ModelRequest(instructions="", context=(), history=[item for item in items if item is not None])

    sent = str(body(request)["input"])

    assert items
    assert [name for name in ("fc_c1", "rs_", "msg_", "encrypted_content") if name in sent] == []


@pytest.mark.promises("model.split-pairs")
@pytest.mark.parametrize(
    "kind", ["response.output_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_text.delta"]
)
def test_a_surrogate_pair_that_is_split_over_two_deltas_is_kept(kind: str) -> None:
    pieces = [
        b'data: {"type": "%b", "delta": "%b"}\n\n' % (kind.encode(), piece)
        for piece in (rb"a \ud83d", rb"\ude00 b \ud83d", b"c", rb"\ude00")
    ]
    other = b'data: {"type": "response.refusal.delta", "delta": "x"}\n\n'
    decoder = ResponsesDecoder()

    chunks = decoder.feed(other.join(pieces))

    said = [getattr(chunk, "text", None) for chunk in chunks]
    assert said == ["a ", "\U0001f600 b ", "\ufffdc", "\ufffd"]


@pytest.mark.promises("model.cut-off")
def test_an_incomplete_response_says_why() -> None:
    details = {"reason": "content_filter"}
    decoder = ResponsesDecoder()
    decoder.feed(responses_event("response.incomplete", response={"id": "r", "incomplete_details": details}))

    assert decoder.done
    assert decoder.end() == [ResponseDone(None, "content_filter")]


def test_halves_of_pairs_in_unknown_events_take_no_memory() -> None:
    decoder = ResponsesDecoder()
    tracemalloc.start()
    try:
        for number in range(20):
            kind = b"response.%b%d.delta" % (b"x" * 25_000, number)
            assert decoder.feed(b'data: {"type": "%b", "delta": "\\ud83d"}\n\n' % kind) == []
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 100_000


def test_a_negative_token_count_takes_nothing_back() -> None:
    usage = {"input_tokens": -5, "output_tokens": -(10**30), "total_tokens": -1}
    decoder = ResponsesDecoder()
    decoder.feed(responses_event("response.completed", response={"usage": usage}))

    (done,) = decoder.end()
    assert isinstance(done, ResponseDone)
    assert done.usage == TokenCount(
        input_tokens=0, cached_input_tokens=None, output_tokens=0, reasoning_output_tokens=None, total_tokens=0
    )
