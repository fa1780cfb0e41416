"""JSON-RPC messages: lenient decoding, exact encoding."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from parley.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ErrorObject,
    Message,
    RequestId,
    TooManySurrogates,
    decode_lenient,
    decode_message,
    encode,
    error_of,
    error_response,
    notification,
    read_outline,
    request,
    response,
)

ANY = msgspec.json.Decoder(Any)

REQUEST_IDS: list[RequestId] = [0, 1, -1, 2**63 - 1, -(2**63), "", "a", "1", 'say "hi"\n', "ü\U0001f600"]


# --- writing ---------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", REQUEST_IDS)
def test_a_response_returns_the_id_with_its_type(request_id: RequestId) -> None:
    assert json.loads(response(request_id, b'{"a":[1]}')) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "result": {"a": [1]},
    }


@pytest.mark.parametrize("request_id", REQUEST_IDS)
def test_an_error_response_has_a_code_and_a_message_and_no_data(request_id: RequestId) -> None:
    assert json.loads(error_response(request_id, INVALID_REQUEST, "initialize called more than once")) == {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": -32600, "message": "initialize called more than once"},
    }


def test_a_request_has_id_method_and_params() -> None:
    assert json.loads(request(0, "elicitation/create", b'{"message":"?"}')) == {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "elicitation/create",
        "params": {"message": "?"},
    }


def test_a_notification_has_no_id() -> None:
    assert json.loads(notification("agent_message", b'{"msg":{}}')) == {
        "jsonrpc": "2.0",
        "method": "agent_message",
        "params": {"msg": {}},
    }


def test_encoded_messages_have_one_line() -> None:
    frame = notification("error", encode({"msg": {"message": "two\nlines\r\n"}}))

    assert b"\n" not in frame
    assert b"\r" not in frame


def test_codes_are_those_of_json_rpc() -> None:
    assert (INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR) == (-32600, -32601, -32602, -32603)


# --- reading ---------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", REQUEST_IDS)
def test_a_request_id_is_read_with_its_type(request_id: RequestId) -> None:
    message = decode_message(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "ping"}).encode())

    assert message == Message(id=request_id, method="ping")


def test_params_stay_as_they_came() -> None:
    message = decode_message(b'{"jsonrpc":"2.0","id":1,"method":"m","params": {"a" : [1, 2]} }')

    assert isinstance(message.params, Raw)
    assert bytes(message.params).strip() == b'{"a" : [1, 2]}'


def test_an_answer_has_a_result() -> None:
    message = decode_message(b'{"jsonrpc":"2.0","id":0,"result":{"decision":"approved"}}')

    assert (message.id, message.method, message.error) == (0, UNSET, UNSET)
    assert isinstance(message.result, Raw)
    assert bytes(message.result) == b'{"decision":"approved"}'


def test_an_answer_may_be_an_error() -> None:
    message = decode_message(b'{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"no","data":[1]}}')

    assert (error_of(message), message.result) == (ErrorObject(-1, "no", Raw(b"[1]")), UNSET)


@pytest.mark.parametrize("error", ['"no"', "17", "[]", '{"code":"x"}', '{"message":1}'])
def test_an_error_that_is_none_is_an_error_all_the_same(error: str) -> None:
    assert error_of(decode_message(b'{"id":1,"error":%b}' % error.encode())) == ErrorObject()


@pytest.mark.parametrize("line", [b'{"id":1,"result":{}}', b'{"id":1,"result":{},"error":null}'])
def test_an_answer_without_an_error_has_none(line: bytes) -> None:
    assert error_of(decode_message(line)) is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"id":1,"method":"ping"}',
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":null,"id":1,"method":"ping","more":{"id":2,"method":"x"}}',
        b' \t{ "method" : "ping" , "id" : 1 }\r',
    ],
    ids=repr,
)
def test_a_wrong_jsonrpc_and_unknown_members_are_tolerated(line: bytes) -> None:
    assert decode_message(line) == Message(id=1, method="ping")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"nonsense",
        b"null",
        b"5",
        b'"ping"',
        b'[{"id":1,"method":"ping"}]',
        b'{"id":null,"method":"ping"}',
        b'{"id":1.5,"method":"ping"}',
        b'{"id":true,"method":"ping"}',
        b'{"id":{},"method":"ping"}',
        b'{"id":1,"method":5}',
        b'{"id":1,"method":"ping"',
        b'{"id":1,"method":"ping"}}',
        b'{"id":1,"method":"ping"} {}',
        b"\xff\xfe",
        b'{"id":1,"method":"\xff"}',
        b'{"id":"\xc3","method":"ping"}',
        '{"id":1,"method":"ping"}'.encode("utf-16"),
    ],
    ids=repr,
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(line)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (rb'"\ud800"', "�"),
        (rb'"\udfff"', "�"),
        (rb'"\uD800\uDBFF\uDC00"', "�\U0010fc00"),
        (rb'"\udc00\ud800"', "��"),
        (rb'"a\ud83db\ude00c"', "a�b�c"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ude00\ud83d"', "\U0001f600�"),
        (rb'"\ud83d\ud83d\ude00"', "�\U0001f600"),
        (rb'"\\ud800"', r"\ud800"),
        (rb'"\\\ud800"', "\\�"),
        (rb'"\\\\ud800\ud800"', "\\\\ud800�"),
        (rb'"\ud83d\\ude00"', r"�\ude00"),
        (rb'"\ud83d\n\ude00"', "�\n�"),
        (rb'"\"\ud800\""', '"�"'),
        (rb'{"\ud800":{"\udc00":"\udbff"}}', {"�": {"�": "�"}}),
        (rb'["\ud800",{"a":["\ud800"]}]', ["�", {"a": ["�"]}]),
    ],
    ids=repr,
)
def test_half_a_surrogate_pair_is_read_as_the_replacement_character(data: bytes, read: Any) -> None:
    assert decode_lenient(ANY, data) == read


def test_half_a_surrogate_pair_in_id_or_method_does_not_cost_the_message() -> None:
    assert decode_message(rb'{"id":"\ud800","method":"a\udc00","\ud800":1}') == Message(id="�", method="a�")


def test_a_message_has_a_limited_number_of_lone_surrogates() -> None:
    most: Any = decode_lenient(ANY, b'"%b"' % (rb"\ud800" * 10_000))
    assert most == "�" * 10_000
    with pytest.raises(TooManySurrogates):
        decode_lenient(ANY, b'"%b"' % (rb"\ud800" * 10_001))


@pytest.mark.parametrize(
    "unit",
    [rb"\ud800", rb"a\udc00", rb"\ud83d\ude00", rb"\\", b"a", rb"\n"],
    ids=["high", "low", "pair", "backslash", "letter", "escape"],
)
def test_the_cost_of_lone_surrogates_is_limited(unit: bytes) -> None:
    data = b'"%b%b"' % (unit * (2_000_000 // len(unit)), rb"\ud800")
    begin = time.process_time()
    with suppress(TooManySurrogates):
        decode_lenient(ANY, data)
    assert time.process_time() - begin < 0.15


def test_other_errors_besides_a_surrogate_are_still_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_lenient(ANY, rb'{"a":"\ud800"')


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_nesting_beyond_reason_is_refused_like_any_bad_line(opening: bytes, closing: bytes, depth: int) -> None:
    nested = opening * depth + b"1" + closing * depth

    with pytest.raises(msgspec.DecodeError):
        decode_lenient(ANY, nested)
    with pytest.raises(msgspec.DecodeError):
        decode_message(b'{"id":1,"method":"ping","params":%b}' % nested)


# --- the id of a message that is too long -------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"text":"aaa', 7),
        (b'{"id":-7,"par', -7),
        (b'{"id":9223372036854775807,"par', 2**63 - 1),
        (b'{"id":"abc","params":{', "abc"),
        (b'{"id":"","params":{', ""),
        (rb'{"id":"half \ud83d","params":{', "half \N{REPLACEMENT CHARACTER}"),
        (rb'{"id":"a\"b,c}\\","params":{', 'a"b,c}\\'),
        (b' {\n "method" : "x" ,\t"id" : 7 , "params" : {', 7),
        (b'{"params":{"a":[1,{"b":2}]},"id":7,"result":"aaa', 7),
    ],
    ids=repr,
)
def test_the_id_is_found_at_the_top_of_a_cut_off_message(prefix: bytes, found: RequestId) -> None:
    assert read_outline(prefix, b"").id == found


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        b"{",
        b"aaaaaaaa",
        b'{"method":"tools/call","params":{"text":"aaa',
        b'{"params":{"id":7,"text":"aaa',
        b'{"params":[{"id":7},"aaa',
        b'{"method":"id","params":7,"text":"aaa',
        rb'{"text":"},\"id\":7,","params":"aaa',
        rb'{"text":"},\"id\":7,\"params\":{',
        b'{"id":null,"params":{',
        b'{"id":1.5,"params":{',
        b'{"id":{"a":1},"params":{',
        b'{"id":"\xff","params":{',
        b'[1,"id",7,{',
    ],
    ids=repr,
)
def test_no_id_is_made_up_where_none_stands(prefix: bytes) -> None:
    assert read_outline(prefix, b"").id is None


@pytest.mark.parametrize(
    "request_id",
    [12, -12, 2**63 - 1, "abc", "12 34", "5a7b1c3e-0000-4000-8000-000000000001", "1,2", 'a"b', "{}", ""],
)
def test_an_id_that_the_cut_goes_through_is_not_guessed(request_id: RequestId) -> None:
    whole = b'{"id":' + encode(request_id)

    for cut in range(len(whole) + 1):
        assert read_outline(whole[:cut], b"").id is None, whole[:cut]


@pytest.mark.parametrize(
    ("prefix", "is_answer"),
    [
        (b'{"id":7,"method":"ping","more":"aaa', False),
        (b'{"id":7,"params":{"result":1},"more":"aaa', False),
        (b'{"id":7,"result":{"method":"ping"},"method":"ping","more":"aaa', False),
        (b'{"id":7,"result":{"method":"ping","params":"aaa', True),
        (b'{"error":{},"id":7,"more":"aaa', True),
        (b'{"id":7,"result":"aaa', True),
        (b'{"id":7,"result":', True),
        (b'{"id":7,"method":"tools/ca', False),
        (b'{"id":7,"method":null,"params":null,"result":{"more":"aaa', True),
        (b'{"id":7,"resu', None),
        (b'{"id":7,"more":{"result":1,"method":"aaa', None),
        (rb'{"id":7,"more":",\"method\":\"ping\"', None),
        (b'{"id":7,"result":{"more":NaN},"method":5}', True),
        (b'{"id":7,"method":5}', None),
    ],
    ids=repr,
)
def test_a_beginning_says_whether_it_is_an_answer_by_the_members_at_its_top(
    prefix: bytes, is_answer: bool | None
) -> None:
    assert read_outline(prefix, b"") == (7, is_answer)


@pytest.mark.parametrize(
    ("prefix", "suffix", "outline"),
    [
        (b'{"result":{"more":"aaa', b'aaa"},"jsonrpc":"2.0","id":7}', (7, True)),
        (b'{"result":{"more":"aaa', b'aaa"} , "id" : "a\\"b" ,\t"jsonrpc" : "2.0" }\r', ('a"b', True)),
        (b'{"method":"ping","params":{"more":"aaa', b'aaa"},"id":-7}', (-7, False)),
        (b'{"id":7,"result":"aaa', b'aaa","id":8}', (7, True)),
        (b' {"more":"aaa', b'aaa","id":""}', ("", None)),
    ],
    ids=repr,
)
def test_an_id_is_found_at_the_end_where_the_beginning_has_none(
    prefix: bytes, suffix: bytes, outline: tuple[RequestId, bool | None]
) -> None:
    assert read_outline(prefix, suffix) == outline


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        (b'{"result":"aaa', b'aaa"}'),
        (b'{"result":{"more":"aaa', b'aaa","id":7}}'),
        (b'{"result":"aaa', rb'aaa,\"id\":7}"}'),
        (b'{"result":"aaa', rb"aaa,\"id\":7}"),
        (b'{"result":"aaa', b'aaa","id":7,"more":1}'),
        (b'{"result":"aaa', b'aaa","id":7.5}'),
        (b'{"result":"aaa', b'aaa","id":null}'),
        (b'{"result":"aaa', b'aaa","id":7'),
        (b'{"result":"aaa', b'"id":7}'),
        (b'[{"result":"aaa', b'aaa","id":7}'),
        (b"aaa", b'aaa,"id":7}'),
        (b"", b""),
    ],
    ids=repr,
)
def test_no_id_is_made_up_at_the_end(prefix: bytes, suffix: bytes) -> None:
    assert read_outline(prefix, suffix).id is None


def test_a_method_that_is_null_is_not_there() -> None:
    message = decode_message(b'{"id":0,"method":null,"params":null,"error":null,"result":{}}')

    assert (message.id, message.method, message.result) == (0, UNSET, Raw(b"{}"))
