"""The Chat Completions API: the chunks for recorded bytes, and the request for a history."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from parley.config.types import ReplyLimits
from parley.conversation.history import History, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem, Record
from parley.errors import ModelStreamBroken, ReplyTooLarge
from parley.models.chat import encode_chat
from parley.models.chat_reply import ChatDecoder
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
    ToolSpec,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId
from parley.wire.items import ImageItem, TextItem


def decoded(data: bytes, *, stream_usage: bool = False, cuts: tuple[int, ...] = ()) -> list[Chunk]:
    """Decode the body `data`, read in the given pieces."""
    decoder = ChatDecoder(stream_usage=stream_usage)
    chunks: list[Chunk] = []
    start = 0
    for end in (*sorted(cuts), len(data)):
        if not decoder.done:
            chunks += decoder.feed(data[start:end])
        start = end
    return chunks + decoder.end()


def call(call_id: str, name: str, arguments: str) -> CallDone:
    return CallDone(CallItem(call_id=CallId(call_id), name=name, arguments=arguments))


MESSAGE = (
    b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "lo "}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "world"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
MESSAGE_CHUNKS: list[Chunk] = [
    TextDelta("Hel"),
    TextDelta("lo "),
    TextDelta("world"),
    MessageDone(MessageItem(text="Hello world")),
    ResponseDone(None),
]

FRAGMENTS = (
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": null, "tool_calls": [{"index": 0, '
    b'"id": "c1", "type": "function", "function": {"name": "shell", "arguments": ""}}]}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '
    b'"{\\"command"}}]}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '
    b'"\\": [\\"echo\\"]}"}}]}}]}\n\n'
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}\n\n'
    b"data: [DONE]\n\n"
)
FRAGMENTS_CHUNKS: list[Chunk] = [call("c1", "shell", '{"command": ["echo"]}'), ResponseDone(None)]

REASONING = (
    b'data: {"choices": [{"delta": {"reasoning": "think "}}]}\n\n'
    b'data: {"choices": [{"delta": {"reasoning": {"text": "hard "}}}]}\n\n'
    b'data: {"choices": [{"delta": {"reasoning": {"content": "now"}}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "An"}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "swer"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
REASONING_CHUNKS: list[Chunk] = [
    RawReasoningDelta("think "),
    RawReasoningDelta("hard "),
    RawReasoningDelta("now"),
    ReasoningDone(summaries=(), raw=("think hard now",)),
    TextDelta("An"),
    TextDelta("swer"),
    OpaqueDone(MessageFields(fields=msgspec.Raw(b'{"reasoning":"think hard now"}'), by="")),
    MessageDone(MessageItem(text="Answer")),
    ResponseDone(None),
]

SEVERAL_CALLS = (
    b'data: {"choices": [{"delta": {"content": "I will look."}}]}\n\n'
    b'data: {"choices": [{"delta": {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": '
    b'{"name": "shell", "arguments": "{2}"}}]}}]}\n\n'
    b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": '
    b'{"name": "", "arguments": "{not json"}}]}}]}\n\n'
    b'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\ndata: [DONE]\n\n'
)
SEVERAL_CALLS_CHUNKS: list[Chunk] = [
    TextDelta("I will look."),
    MessageDone(MessageItem(text="I will look.")),
    call("c1", "", "{not json"),
    call("c2", "shell", "{2}"),
    ResponseDone(None),
]

ODDITIES = (
    b"data: {not json\n\n: comment\n\ndata: 5\n\ndata: {}\n\ndata: DONE\n\n"
    b'event: response.strange\ndata: {"type":"response.strange"}\n\ndata: {"choices": 7}\n\n'
    b'data: {"choices": [], "error": null}\r\n\r\n'
    b'data:{"choices": [{"delta":\r\ndata: {"content": "Fine"}}], "usage": "none"}\r\n\r\n'
    b'data: {"choices": [{"delta": {"content": "half \\ud83d pair, "}}]}\n\n'
    b'data: {"choices": [{"delta": {"content": "bad byte \xff"}}]}\n\n'
    b'data: {"choices": [{"delta": null, "finish_reason": "length"}]}\n\n'
)
ODDITIES_CHUNKS: list[Chunk] = [
    TextDelta("Fine"),
    TextDelta("half \ufffd pair, "),
    TextDelta("bad byte \ufffd"),
    MessageDone(MessageItem(text="Finehalf \ufffd pair, bad byte \ufffd")),
    ResponseDone(None, "length"),
]

USAGE = b'"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}'
COUNTED = TokenCount(
    input_tokens=3, cached_input_tokens=None, output_tokens=2, reasoning_output_tokens=None, total_tokens=5
)

MESSAGE_BODY = b"""{
  "object": "chat.completion",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "I look.", "refusal": null,
    "reasoning_content": "hm", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{1}"}},
      {"id": "c2", "type": "function", "function": {"name": "shell", "arguments": "{2}"}}]},
    "finish_reason": "length"}],
  "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
}
"""
MESSAGE_BODY_CHUNKS: list[Chunk] = [
    RawReasoningDelta("hm"),
    ReasoningDone(summaries=(), raw=("hm",)),
    TextDelta("I look."),
    OpaqueDone(MessageFields(fields=msgspec.Raw(b'{"reasoning_content":"hm"}'), by="")),
    MessageDone(MessageItem(text="I look.")),
    call("c1", "shell", "{1}"),
    call("c2", "shell", "{2}"),
    ResponseDone(COUNTED, "length"),
]

RECORDED = [
    pytest.param(MESSAGE, MESSAGE_CHUNKS, id="message"),
    pytest.param(FRAGMENTS, FRAGMENTS_CHUNKS, id="fragments"),
    pytest.param(REASONING, REASONING_CHUNKS, id="reasoning"),
    pytest.param(SEVERAL_CALLS, SEVERAL_CALLS_CHUNKS, id="several calls"),
    pytest.param(ODDITIES, ODDITIES_CHUNKS, id="oddities"),
    pytest.param(b"data: [DONE]\n\n", [ResponseDone(None)], id="only the end mark"),
    pytest.param(b"\xef\xbb\xbf" + MESSAGE, MESSAGE_CHUNKS, id="byte order mark"),
    pytest.param(MESSAGE.replace(b"\n", b"\r"), MESSAGE_CHUNKS, id="CR line ends"),
    pytest.param(MESSAGE.replace(b"\n", b"\r\n"), MESSAGE_CHUNKS, id="CRLF line ends"),
    pytest.param(MESSAGE_BODY, MESSAGE_BODY_CHUNKS, id="not streamed"),
    pytest.param(b"\xef\xbb\xbf\r\n" + MESSAGE_BODY, MESSAGE_BODY_CHUNKS, id="not streamed, byte order mark"),
    pytest.param(b"data: %b\n\n" % MESSAGE_BODY.replace(b"\n", b""), MESSAGE_BODY_CHUNKS, id="one event"),
    pytest.param(
        FRAGMENTS.replace(b'"tool_calls": [{"index": 0', b'"tool_calls": [{"index": "0"'),
        FRAGMENTS_CHUNKS,
        id="index as a string",
    ),
]


@pytest.mark.parametrize(("data", "chunks"), RECORDED)
def test_a_recorded_reply_is_decoded_completely(data: bytes, chunks: list[Chunk]) -> None:
    assert decoded(data) == chunks


@pytest.mark.parametrize(("data", "chunks"), RECORDED)
@given(st.data())
@checked(deadline=None)
def test_a_reply_means_the_same_wherever_it_is_cut(data: bytes, chunks: list[Chunk], draw: st.DataObject) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))

    assert decoded(data, cuts=tuple(cuts)) == chunks


@pytest.mark.promises("model.chat-ends")
@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls", "whatever"])
def test_any_finish_reason_ends_the_response(reason: str) -> None:
    decoder = ChatDecoder(stream_usage=False)
    decoder.feed(b'data: {"choices": [{"delta": {}, "finish_reason": "%b"}]}\n\n' % reason.encode())

    assert decoder.done
    cut_by = reason if reason in ("length", "content_filter") else None
    assert decoder.end() == [ResponseDone(None, cut_by)]


def test_data_after_the_end_is_not_read() -> None:
    more = b'data: {"choices": [{"delta": {"content": " and more"}}]}\n\n'

    assert decoded(MESSAGE + more) == MESSAGE_CHUNKS
    assert decoded(b"data: [DONE]\n\n" + more) == [ResponseDone(None)]


def test_a_call_without_an_id_is_given_one_of_its_own() -> None:
    data = (
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": "{}"}},'
        b' {"index": 1, "function": {"name": "b", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]}\n\n'
    )

    first, second, _ = decoded(data)

    assert isinstance(first, CallDone)
    assert isinstance(second, CallDone)
    assert first.item.call_id
    assert first.item.call_id != second.item.call_id


FINISH = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": null}\n\n'


LATER = FINISH + b'data: {"choices": [], %b}\n\n' % USAGE
WITH_FINISH = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], %b}\n\n' % USAGE


@pytest.mark.promises("model.usage")
@pytest.mark.parametrize("data", [LATER, WITH_FINISH])
def test_requested_token_counts_are_waited_for(data: bytes) -> None:
    decoder = ChatDecoder(stream_usage=True)
    decoder.feed(data)

    assert decoder.done
    assert decoder.end()[-1] == ResponseDone(COUNTED)


@pytest.mark.promises("model.usage")
def test_token_counts_that_were_not_requested_are_used_but_not_waited_for() -> None:
    assert decoded(WITH_FINISH)[-1] == ResponseDone(COUNTED)
    assert decoded(LATER)[-1] == ResponseDone(None)


@pytest.mark.parametrize("rest", [b"", b"data: [DONE]\n\n", b'data: {"usage": {"odd": 1}}\n\ndata: [DONE]\n\n'])
def test_token_counts_that_do_not_come_are_not_missed(rest: bytes) -> None:
    assert decoded(FINISH + rest, stream_usage=True)[-1] == ResponseDone(None)


def test_token_counts_have_their_details() -> None:
    usage = (
        b'{"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens": 5, '
        b'"completion_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 15}'
    )

    assert decoded(FINISH + b'data: {"choices": [], "usage": %b}\n\n' % usage, stream_usage=True)[
        -1
    ] == ResponseDone(
        TokenCount(
            input_tokens=10,
            cached_input_tokens=2,
            output_tokens=5,
            reasoning_output_tokens=1,
            total_tokens=15,
        )
    )


@pytest.mark.promises("model.usage", "model.not-streamed")
def test_a_body_that_is_not_streamed_has_token_counts() -> None:
    assert decoded(MESSAGE_BODY, stream_usage=True)[-1] == ResponseDone(COUNTED, "length")


# --- bodies without a response -------------------------------------------------------------------

EMPTY = "the body of the response is empty"
PAGE = b"\n<!DOCTYPE html>\n<title>Log in\x1b[0m</title>"
PAGE_SHOWN = r"the body contains no response; it begins with: <!DOCTYPE html>\n<title>Log in\x1b[0m</title>"

NO_RESPONSE = [
    pytest.param(b"", EMPTY, id="empty"),
    pytest.param(b" \r\n", EMPTY, id="blank"),
    pytest.param(PAGE, PAGE_SHOWN, id="HTML"),
    pytest.param(
        b'{"detail":"Not Found"}',
        'the body contains no response; it begins with: {"detail":"Not Found"}',
        id="unknown object",
    ),
    pytest.param(
        b'{"choices":[]}', 'the body contains no response; it begins with: {"choices":[]}', id="no choices"
    ),
    pytest.param(
        b'{"choices":[{"mess', 'the body contains no response; it begins with: {"choices":[{"mess', id="cut off"
    ),
    pytest.param(
        b'data: {"hello":1}\n\n',
        'the body contains no response; it begins with: data: {"hello":1}',
        id="other events",
    ),
    pytest.param(b"x" * 5000, f"the body contains no response; it begins with: {'x' * 199}\u2026", id="long"),
    pytest.param(
        b"\0" * 5000,
        "the body contains no response; it begins with: " + (r"\x00" * 50)[:199] + "\u2026",
        id="binary",
    ),
    pytest.param(b'event: error\ndata: {"message":"no key"}\n\n', "no key", id="event named error"),
    pytest.param(b'data: {"message":"no key"}\nevent:error\n\n', "no key", id="name after data"),
    pytest.param(b"event: error\ndata: no key\n\n", "no key", id="event named error with text"),
    pytest.param(b'data: {"type":"error","message":"no key"}\n\n', "no key", id="type error"),
    pytest.param(b'{"type":"error","message":"no key"}', "no key", id="type error, no event"),
    pytest.param(b'{"error":{"message":"no key"}}', "no key", id="error, no event"),
    pytest.param(
        b'data: {"choices":null,"base_resp":{"status_code":1004,"status_msg":"no key"}}\n\n',
        "no key",
        id="base_resp",
    ),
    pytest.param(
        b'{"choices":null,"base_resp":{"status_code":1004,"status_msg":"no key"}}',
        "no key",
        id="base_resp, no event",
    ),
]


def failure(data: bytes, cuts: tuple[int, ...] = ()) -> str:
    with pytest.raises(ModelStreamBroken) as broken:
        decoded(data, cuts=cuts)
    return broken.value.detail


@pytest.mark.promises("failures.no-response", "failures.chat-stream")
@pytest.mark.parametrize(("data", "detail"), NO_RESPONSE)
def test_a_body_without_a_response_is_a_failure(data: bytes, detail: str) -> None:
    assert failure(data) == detail


@pytest.mark.parametrize(("data", "detail"), NO_RESPONSE)
@given(st.data())
@checked(deadline=None, max_examples=30)
def test_a_failure_is_the_same_wherever_the_body_is_cut(data: bytes, detail: str, draw: st.DataObject) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))

    assert failure(data, tuple(cuts)) == detail


@pytest.mark.parametrize(
    "error", [b'event: error\ndata: {"message":"no key"}\n\n', b'data: {"type":"error","message":"no key"}\n\n']
)
def test_an_error_after_text_is_a_failure_at_once(error: bytes) -> None:
    decoder = ChatDecoder(stream_usage=False)
    decoder.feed(MESSAGE[: MESSAGE.index(b"\n\n") + 2] + error)

    assert decoder.done
    with pytest.raises(ModelStreamBroken, match="no key"):
        decoder.end()


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\ndata: [DONE]\n\n',
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [{"delta": {"content": ""}}]}\n\n',
        b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": ""}}], "base_resp": {"status_code": 0, "status_msg": ""}}',
    ],
)
def test_an_empty_response_that_ends_properly_is_a_response(data: bytes) -> None:
    assert decoded(data) == [ResponseDone(None)]


@pytest.mark.parametrize(
    "event",
    [
        b'event: status\ndata: {"message": "loading the model"}\n\n',
        b'event: error\n\ndata: {"message": "the name belonged to no event"}\n\n',
        b'data: {"choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}}\n\n',
    ],
)
def test_other_events_are_not_errors(event: bytes) -> None:
    assert decoded(event + MESSAGE) == MESSAGE_CHUNKS


@pytest.mark.parametrize("index", [b'"one"', b'"-1"', b'"\\u0664"', b'"' + b"9" * 5000 + b'"'])
def test_an_index_that_is_no_number_is_as_good_as_none(index: bytes) -> None:
    data = FRAGMENTS.replace(b'"tool_calls": [{"index": 0', b'"tool_calls": [{"index": %b' % index)

    assert decoded(data) == FRAGMENTS_CHUNKS


# --- very many values ----------------------------------------------------------------------------


def event_of(before: bytes, value: bytes, after: bytes, size: int) -> bytes:
    return b"data: %b%b%b%b\n\n" % (before, (value + b",") * (size // (len(value) + 1)), value, after)


MANY_VALUES = [
    (b'{"choices":[', b"{}", b"]}"),
    (b'{"choices":[{"delta":{"tool_calls":[', b"{}", b"]}}]}"),
    (b'{"choices":[{"delta":{"content":[', b"{}", b"]}}]}"),
    (b'{"choices":[{"delta":{"content":[', b'{"thinking":1}', b"]}}]}"),
    (b'{"choices":[{"delta":{"content":[', b'{"text":"a"}', b"]}}]}"),
    (b'{"choices":[{"delta":{"reasoning_details":[', b"{}", b"]}}]}"),
    (b'{"choices":[{"delta":{"reasoning_details":[', b'"a"', b"]}}]}"),
]


@pytest.mark.promises("model.many-values")
@pytest.mark.parametrize("size", [1_000_000, 8_000_000])
@pytest.mark.parametrize(("before", "value", "after"), MANY_VALUES)
def test_an_event_of_very_many_values_is_refused(before: bytes, value: bytes, after: bytes, size: int) -> None:
    data = event_of(before, value, after, size)
    times, errors = [], set[str]()
    for _ in range(3):
        began_at = time.thread_time()
        with pytest.raises(ReplyTooLarge) as refused:
            decoded(data)
        times.append(time.thread_time() - began_at)
        errors |= {str(refused.value), str(refused.value.of_provider("local"))}
        assert not refused.value.worth_repeating

    assert errors == {"the model sent an event with more than 50000 JSON values"}
    assert min(times) < 0.05 + 0.01 * (size / 1e6 - 1)


def test_the_pieces_of_calls_in_one_event_are_counted_before_they_are_joined() -> None:
    piece = {"index": 0, "function": {"arguments": "x"}}

    def feed(pieces: int) -> None:
        event = json.dumps({"choices": [{"delta": {"tool_calls": [piece] * pieces}}]})
        ChatDecoder(stream_usage=False, limits=ReplyLimits(max_calls=3)).feed(f"data: {event}\n\n".encode())

    feed(3)
    with pytest.raises(ReplyTooLarge) as refused:
        feed(4)
    assert "3 calls" in str(refused.value)


def test_commas_and_brackets_in_a_long_text_are_not_values() -> None:
    text = '[{"a": "b\\\\"}, ' * 60_000
    data = (
        b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}).encode()
    )

    assert decoded(data)[0] == TextDelta(text)


def test_very_many_pieces_of_calls_are_refused() -> None:
    pieces = b",".join([b"{}"] * 5_000)
    with pytest.raises(ReplyTooLarge, match="4096 calls"):
        decoded(b'data: {"choices":[{"delta":{"tool_calls":[%b]}}]}\n\n' % pieces)


HISTORY = (
    UserItem((TextItem(text="go "), TextItem(text="on"))),
    OpaqueItem(verbatim=msgspec.Raw(b'{"type":"reasoning"}')),
    MessageItem(text="I will look.", id="msg_1"),
    CallItem(call_id=CallId("c1"), name="shell", arguments='{"command": ["ls"]}'),
    OutputItem(CallId("c1"), "README.md"),
    MessageItem(text="Done"),
)
SHELL = ToolSpec(name="shell", description="Runs a command", parameters={"type": "object", "properties": {}})


def test_a_request_holds_exactly_what_the_api_takes() -> None:
    request = ModelRequest(instructions="Be kind.", context=("Here.", "Now."), history=HISTORY, tools=(SHELL,))

    assert msgspec.json.decode(encode_chat(request, model="mock-model", stream_usage=False)) == {
        "model": "mock-model",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Here."},
            {"role": "user", "content": "Now."},
            {"role": "user", "content": "go on"},
            {
                "role": "assistant",
                "content": "I will look.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "shell", "arguments": '{"command": ["ls"]}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "README.md"},
            {"role": "assistant", "content": "Done"},
        ],
        "stream": True,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "shell",
                    "description": "Runs a command",
                    "strict": False,
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }


def test_a_request_without_tools_has_no_empty_list_and_asks_for_counts_where_they_are_wanted() -> None:
    request = ModelRequest(instructions="", context=(), history=())

    assert msgspec.json.decode(encode_chat(request, model="m", stream_usage=True)) == {
        "model": "m",
        "messages": [{"role": "system", "content": ""}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_an_image_makes_parts_of_the_message_it_stands_in_and_of_no_other() -> None:
    image = ImageItem(image_url="https://example.com/a.png", detail="low")
    history = (UserItem((TextItem(text="Look: "), image)), UserItem((TextItem(text="And?"),)))
    request = ModelRequest(instructions="", context=("here",), history=history)

    assert msgspec.json.decode(encode_chat(request, model="m", stream_usage=False)) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": ""},
            {"role": "user", "content": "here"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look: "},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                ],
            },
            {"role": "user", "content": "And?"},
        ],
        "stream": True,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (b'{"a":1}', '{"a":1}'),
        (b'{"a":1e999}', '{"a":1e999}'),
        (b'"odd \xff byte"', "odd \ufffd byte"),
        (b"null", ""),
        (b"7", "7"),
    ],
)
def test_arguments_of_any_kind_are_passed_on_as_text(arguments: bytes, expected: str) -> None:
    piece = b'{"index":0,"id":"c1","function":{"name":"shell","arguments":%b}}' % arguments
    data = b'data: {"choices":[{"delta":{"tool_calls":[%b]}}]}\n\ndata: [DONE]\n\n' % piece

    done, _ = decoded(data)

    assert done == CallDone(CallItem(call_id=CallId("c1"), name="shell", arguments=expected))


# --- differences between providers in calls, characters and errors -----------------------------------


def delta(**members: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": members}]}).encode()


@pytest.mark.promises("model.split-pairs")
def test_a_surrogate_pair_that_is_split_over_two_deltas_is_kept() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at": "\ud83d'}}
    rest = {"index": 0, "function": {"arguments": '\ude00"}'}}
    pieces = [
        delta(reasoning_content="hm \ud83d", reasoning="hm \ud83d"),
        delta(reasoning_content="\ude00!", reasoning="\ude00!"),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "\ud83d", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "\ude00", "index": 0}]),
        delta(content="one \ud83d"),
        delta(tool_calls=[call]),
        delta(content="\ude00 two \ud83d"),
        delta(tool_calls=[rest]),
        delta(content=" three \ud83d"),
    ]

    chunks = decoded(b"".join(pieces) + b"data: [DONE]\n\n")

    text = "one \U0001f600 two \ufffd three \ufffd"
    fields = {
        "reasoning_content": "hm \U0001f600!",
        "reasoning": "hm \U0001f600!",
        "reasoning_details": [{"type": "reasoning.text", "text": "\U0001f600", "index": 0}],
    }
    assert [chunk.text for chunk in chunks if isinstance(chunk, RawReasoningDelta)] == [
        "hm ",
        "\U0001f600!",
        "\U0001f600",
    ]
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)) == text
    kept, message, made, done = chunks[-4:]
    assert isinstance(kept, OpaqueDone)
    assert isinstance(kept.item, MessageFields)
    assert msgspec.json.decode(bytes(kept.item.fields)) == fields
    assert message == MessageDone(MessageItem(text=text))
    assert made == CallDone(CallItem(call_id=CallId("c1"), name="look", arguments='{"at": "\U0001f600"}'))
    assert done == ResponseDone(None)


@given(text=st.text(st.sampled_from("ab\U0001f600\u00e9"), max_size=20), data=st.data())
@checked(deadline=None)
def test_a_text_of_utf_16_units_is_whole_wherever_it_is_cut(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-be")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=5)))
    pieces = [
        units[2 * start : 2 * end].decode("utf-16-be", "surrogatepass")
        for start, end in pairwise((0, *cuts, len(units) // 2))
    ]
    body = b"".join(delta(content=piece) for piece in pieces) + b"data: [DONE]\n\n"

    said = "".join(chunk.text for chunk in decoded(body) if isinstance(chunk, TextDelta))

    assert said == text


def test_a_refusal_is_text() -> None:
    body = delta(refusal="I ") + delta(refusal="will not.") + b"data: [DONE]\n\n"

    assert decoded(body)[-2] == MessageDone(MessageItem(text="I will not."))


def test_null_errors_beside_choices_are_none() -> None:
    body = b'data: {"choices": [{"delta": {"content": "Fine"}, "error": null}], "error": null}\n\ndata: [DONE]\n\n'

    assert decoded(body)[-2] == MessageDone(MessageItem(text="Fine"))


def test_two_names_for_one_thought_are_shown_once_and_go_back_as_both() -> None:
    body = delta(reasoning_content="hm", reasoning="hm") + delta(content="Hi") + b"data: [DONE]\n\n"

    shown, thought, _, kept, *_ = decoded(body)

    assert shown == RawReasoningDelta("hm")
    assert thought == ReasoningDone(summaries=(), raw=("hm",))
    assert kept == OpaqueDone(
        MessageFields(fields=msgspec.Raw(b'{"reasoning_content":"hm","reasoning":"hm"}'), by="")
    )


def test_signed_blocks_of_reasoning_stay_apart() -> None:
    blocks = [
        {"type": "reasoning.summary", "summary": "one", "index": 0},
        {"type": "reasoning.encrypted", "data": "ENC", "id": "rs_1", "index": 0},
        {"type": "reasoning.text", "text": "two", "index": 1, "signature": None},
        {"type": "reasoning.text", "text": " three", "index": 1, "signature": "S"},
        {"type": "reasoning.text", "text": "four", "index": 2},
    ]
    body = b"".join(delta(reasoning_details=[block]) for block in blocks) + delta(content="Hi")

    kept = next(chunk for chunk in decoded(body) if isinstance(chunk, OpaqueDone)).item

    assert isinstance(kept, MessageFields)
    assert msgspec.json.decode(bytes(kept.fields)) == {
        "reasoning_details": [
            blocks[0],
            blocks[1],
            {"type": "reasoning.text", "text": "two three", "index": 1, "signature": "S"},
            blocks[4],
        ]
    }


@pytest.mark.promises("model.chat-reasoning-origin")
def test_records_of_an_older_version_are_sent_as_messages() -> None:
    """The records lack newer members, and a response ended between the calls."""
    old = [
        b'{"record":"model_said","item":{"type":"message","text":"I look.","id":null,"by":""}}',
        b'{"record":"model_said","item":{"type":"call","call_id":"c1","name":"look","arguments":"{}","by":""}}',
        b'{"record":"call_output","call_id":"c1","output":"nothing"}',
        b'{"record":"model_asked"}',
        b'{"record":"model_said","item":{"type":"call","call_id":"c2","name":"look","arguments":"{}"}}',
        b'{"record":"call_output","call_id":"c2","output":"still nothing"}',
    ]
    history = History()
    for line in old:
        history.apply(msgspec.json.decode(line, type=Record))
    request = ModelRequest(instructions="", context=(), history=history.items, breaks=history.cuts)

    def called(call_id: str, content: str | None) -> dict[str, object]:
        function = {"name": "look", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }

    assert msgspec.json.decode(encode_chat(request, model="m", stream_usage=False))["messages"][1:] == [
        called("c1", "I look."),
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
        called("c2", None),
        {"role": "tool", "tool_call_id": "c2", "content": "still nothing"},
    ]
