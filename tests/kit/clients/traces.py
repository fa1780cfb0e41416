"""A table of `codex` and `codex-reply` runs: prompts, replies of the model, and the expected messages.

The calls of a run are made in sequence, each after the answer to the one before. Every message to the client and
every request to the model is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final, NamedTuple

from kit.builders.events import agent_message, background_event, error, task_complete, task_started, token_count
from kit.clients.codex_calls import (
    EVERY_API,
    AskedFor,
    Assistant,
    CallSent,
    Output,
    User,
    Wire,
    answered,
    body,
    configured,
    failed,
    pairs,
    shown,
    without_delays,
)
from parley.testing import Call, Cut, Data, Failure, RawBody, Reply, Says, Usage
from parley.testing.home import ServerOptions
from parley.testing.render import Api
from parley.wire.events import AgentMessageDelta, EventMsg

__all__ = ["REPEATING", "RETRYING", "SPENT", "TRACES", "Trace", "Turn", "said", "traces_for"]

SPENT: Final = token_count(input_tokens=10, output_tokens=5, cached=0, reasoning=0)
"""The usage that the scripted model reports by default."""


RETRYING: Final = ServerOptions(stream_max_retries=2)
"""Options of a server whose turns retry after a broken reply."""
REPEATING: Final = ServerOptions(request_max_retries=2)
"""Options of a server that repeats requests after transient errors."""


class Turn(NamedTuple):
    """One call: its prompt, its events and its answer."""

    prompt: str
    events: tuple[EventMsg, ...]
    """The events without `task_started`, `error` and `task_complete`, which follow from the other fields."""
    answer: str
    """The text of the answer, and of the `error` if the turn failed."""
    failed: bool = False


class Trace(NamedTuple):
    replies: tuple[Reply, ...]
    turns: tuple[Turn, ...]
    requests: tuple[tuple[AskedFor, ...], ...]
    """The history in each request to the model, after the context."""
    apis: tuple[Api, ...] = EVERY_API
    options: ServerOptions = ServerOptions()
    sessions: tuple[int, ...] = ()
    """The session of each request, if every turn is a `codex` call. By default there is one session, and all
    turns except the first are replies.
    """

    async def play(self, wire: Wire, api: Api) -> None:
        """Run the calls against a server that uses this API, and compare."""
        model, asked_before, first = wire.model, len(wire.model.requests), wire.calls_made + 1
        sessions_before = len(wire.sessions)
        for reply in self.replies:
            model.queue(reply)
        messages: list[Any] = []
        for request_id, turn in enumerate(self.turns, start=first):
            if request_id == first or self.sessions:
                wire.codex(request_id, turn.prompt)
            else:
                wire.reply(request_id, turn.prompt)
            messages += await wire.answer(request_id)

        sessions = wire.sessions[sessions_before:]
        assert without_delays(messages) == self._messages(first, sessions, api)
        requests = model.requests[asked_before:]
        assert [request.body for request in requests] == self._bodies(wire, sessions, api)

    def _messages(self, first: int, sessions: list[str], api: Api) -> list[Any]:
        expected: list[Any] = []
        numbers = (str(number) for number in count(1) if number != first)  # an event id is used once
        for request_id, turn in enumerate(self.turns, start=first):
            begins = request_id == first or bool(self.sessions)
            if begins:
                expected += configured(request_id, sessions[request_id - first])
            ends: tuple[EventMsg, ...] = (task_complete(turn.answer or None),)
            if turn.failed:
                ends = (error(turn.answer), task_complete(None))
            events = (task_started(), *shown(api, *turn.events), *ends)
            expected += pairs(request_id, str(request_id) if begins else next(numbers), *events)
            answer = failed if turn.failed else answered
            expected.append(answer(request_id, turn.answer))
        return expected

    def _bodies(self, wire: Wire, sessions: list[str], api: Api) -> list[Any]:
        asked_by = self.sessions or (0,) * len(self.requests)
        return [
            body(api, *items, cwd=wire.work, session=sessions[index])
            for items, index in zip(self.requests, asked_by, strict=True)
        ]


def said(*pieces: str) -> tuple[EventMsg, ...]:
    """Build the events of a text: its deltas, the whole text, and the token count."""
    return (*(AgentMessageDelta(delta=piece) for piece in pieces), agent_message("".join(pieces)), SPENT)


def _pieces(*pieces: str) -> tuple[EventMsg, ...]:
    return tuple(AgentMessageDelta(delta=piece) for piece in pieces)


GO: Final = User("go")
AGAIN: Final = User("again")


def _refused(status: int, message: str, apis: tuple[Api, ...] = EVERY_API) -> Trace:
    """Build a run in which the model answers with an HTTP error, and the session continues with the next turn."""
    return Trace(
        replies=(Failure(status=status, body='{"error":{"message":"scripted failure"}}'), Says(("Later",))),
        turns=(Turn("go", (), message, failed=True), Turn("again", said("Later"), "Later")),
        requests=((GO,), (GO, AGAIN)),
        apis=apis,
    )


def _broken(reply: Reply, detail: str, *seen: str, apis: tuple[Api, ...] = EVERY_API) -> Trace:
    """Build a run with an incomplete reply. The text of the reply is discarded, and the session continues."""
    message = f"stream disconnected before completion: {detail}"
    return Trace(
        replies=(reply, Says(("Later",))),
        turns=(
            Turn("go", _pieces(*seen), message, failed=True),
            Turn("again", said("Later"), "Later"),
        ),
        requests=((GO,), (GO, AGAIN)),
        apis=apis,
    )


def _sse(*data: str) -> bytes:
    return b"".join(b"data: %b\n\n" % one.encode() for one in data)


_CUT_OFF: Final = "The model's reply was cut off"
_BROKE_OFF: Final = "stream disconnected before completion: the response broke off"
_RETRY_1: Final = background_event(f"stream error: {_BROKE_OFF}; retrying 1/2 in <delay>…")
_RETRY_2: Final = background_event(f"stream error: {_BROKE_OFF}; retrying 2/2 in <delay>…")
_ODD_CALLS: Final = (
    Call("shell", "{not json", "c1"),
    Call("shell", '{"command": "echo hi"}', "c2"),
    Call("no_such_tool", '{"a": 1}', "c3"),
    Call("", "{}", "c4"),
    Call('100% "odd"', "", "c5"),
)
_ODD_OUTCOMES: Final = tuple(
    item
    for call in _ODD_CALLS
    for item in (
        CallSent(str(call.call_id), call.name, str(call.arguments)),
        Output(str(call.call_id), f"unsupported call: {call.name}"),
    )
)

TRACES: Final[dict[str, Trace]] = {
    "codex_and_reply": Trace(
        replies=(Says(("One",)), Says(("Two",)), Says(("Three",))),
        turns=(
            Turn("first prompt", said("One"), "One"),
            Turn("second prompt", said("Two"), "Two"),
            Turn("third prompt", said("Three"), "Three"),
        ),
        requests=(
            (User("first prompt"),),
            (User("first prompt"), Assistant("One"), User("second prompt")),
            (
                User("first prompt"),
                Assistant("One"),
                User("second prompt"),
                Assistant("Two"),
                User("third prompt"),
            ),
        ),
    ),
    "message_deltas": Trace(
        replies=(
            Says(
                (
                    "Hel",
                    "lo ",
                    "world",
                    Usage(input_tokens=10, cached_input_tokens=2, output_tokens=5, reasoning_output_tokens=1),
                )
            ),
            Says(("Next",)),
        ),
        turns=(
            Turn(
                "go",
                (
                    *_pieces("Hel", "lo ", "world"),
                    agent_message("Hello world"),
                    token_count(input_tokens=10, output_tokens=5, cached=2, reasoning=1),
                ),
                "Hello world",
            ),
            Turn("again", said("Next"), "Next"),
        ),
        requests=((GO,), (GO, Assistant("Hello world"), AGAIN)),
    ),
    "preamble": Trace(
        replies=(Says(("I will look.", Call("look", '{"at": "x"}', "c1"))), Says(("Done",))),
        turns=(Turn("go", (*said("I will look."), *said("Done")), "Done"),),
        requests=(
            (GO,),
            (
                GO,
                Assistant("I will look."),
                CallSent("c1", "look", '{"at": "x"}', "fc_2"),
                Output("c1", "unsupported call: look"),
            ),
        ),
    ),
    "several_calls": Trace(
        replies=(
            Says((Call("look", '{"at": "one"}', "c1"), Call("look", '{"at": "two"}', "c2"))),
            Says(("Done",)),
        ),
        turns=(Turn("go", (SPENT, *said("Done")), "Done"),),
        requests=(
            (GO,),
            (
                GO,
                CallSent("c1", "look", '{"at": "one"}', "fc_1"),
                Output("c1", "unsupported call: look"),
                CallSent("c2", "look", '{"at": "two"}', "fc_2", same_response=True),
                Output("c2", "unsupported call: look"),
            ),
        ),
    ),
    "bad_tool_calls": Trace(
        replies=(*(Says((call,)) for call in _ODD_CALLS), Says(("Done",))),
        turns=(Turn("go", (*(SPENT for _ in _ODD_CALLS), *said("Done")), "Done"),),
        requests=tuple((GO, *_ODD_OUTCOMES[: 2 * asked]) for asked in range(len(_ODD_CALLS) + 1)),
    ),
    "a_call_without_a_last_word": Trace(
        replies=(Says(("Looking.", Call("look", "{}", "c1"))), Says(())),
        turns=(Turn("go", (*said("Looking."), SPENT), "Looking."),),
        requests=(
            (GO,),
            (
                GO,
                Assistant("Looking."),
                CallSent("c1", "look", "{}", "fc_2"),
                Output("c1", "unsupported call: look"),
            ),
        ),
    ),
    "chat_fragments": Trace(
        replies=(
            RawBody(
                body=_sse(
                    '{"choices": [{"delta": {"role": "assistant", "content": null, "tool_calls": [{"index": 0, '
                    '"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]}}]}',
                    '{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{\\"a"}}]}}]}',
                    '{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "t\\": 1}"}}]}}]}',
                    '{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}',
                    '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}',
                    "[DONE]",
                )
            ),
            RawBody(
                body=_sse('{"choices": [{"delta": {"content": "Done"}, "finish_reason": "stop"}]}', "DONE"),
            ),
        ),
        turns=(Turn("go", said("Done"), "Done"),),
        requests=((GO,), (GO, CallSent("c1", "look", '{"at": 1}'), Output("c1", "unsupported call: look"))),
        apis=("chat",),
    ),
    "finish_reasons": Trace(
        replies=tuple(
            RawBody(body=_sse(*parts, "[DONE]"))
            for parts in (
                (
                    '{"choices": [{"delta": {"content": "cut short"}}]}',
                    '{"choices": [{"delta": {}, "finish_reason": "length"}]}',
                ),
                ('{"choices": [{"delta": {}}]}', '{"choices": [{"delta": {}, "finish_reason": "content_filter"}]}'),
                (
                    '{"choices": [{"delta": {"content": "text"}}]}',
                    '{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}',
                ),
            )
        ),
        turns=(
            Turn("go", (*said("cut short"), background_event(f"{_CUT_OFF}: length")), "cut short"),
            Turn("go", (background_event(f"{_CUT_OFF}: content_filter"),), ""),
            Turn("go", said("text"), "text"),
        ),
        requests=((GO,), (GO,), (GO,)),
        apis=("chat",),
        sessions=(0, 1, 2),
    ),
    "response_incomplete": Trace(
        replies=(
            Cut(
                steps=(
                    "cut short",
                    Data(
                        '{"type": "response.incomplete", "response": {"id": "r", '
                        '"incomplete_details": {"reason": "max_output_tokens"}}}'
                    ),
                ),
                how="end",
            ),
        ),
        turns=(
            Turn(
                "go",
                (
                    *_pieces("cut short"),
                    agent_message("cut short"),
                    background_event(f"{_CUT_OFF}: max_output_tokens"),
                ),
                "cut short",
            ),
        ),
        requests=((GO,),),
        apis=("responses",),
    ),
    "empty_reply": Trace(replies=(Says(()),), turns=(Turn("go", (SPENT,), ""),), requests=((GO,),)),
    "empty_prompt": Trace(
        replies=(Says(("Yes?",)),), turns=(Turn("", said("Yes?"), "Yes?"),), requests=((User(""),),)
    ),
    "stream_invalid_json": Trace(
        replies=(Says((Data("{not json"), Data("5"), Data("{}"), Data('{"type": "response.strange"}'), "Fine")),),
        turns=(Turn("go", said("Fine"), "Fine"),),
        requests=((GO,),),
    ),
    "stream_comments": Trace(
        replies=(
            RawBody(
                body=b': comment\r\n\r\nevent: x\r\nid: 7\r\nretry: 1\r\n\r\ndata: {"choices": \r\n'
                b'data: [{"delta": {"content": "OK"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'
            ),
        ),
        turns=(Turn("go", said("OK"), "OK"),),
        requests=((GO,),),
        apis=("chat",),
    ),
    "stream_unfinished_chat": Trace(
        replies=(Cut(steps=("par", "tial"), how="end"),),
        turns=(Turn("go", said("par", "tial"), "partial"),),
        requests=((GO,),),
        apis=("chat",),
    ),
    "stream_unfinished_responses": _broken(
        Cut(steps=("par",), how="end"), "stream closed before response.completed", "par", apis=("responses",)
    ),
    "stream_cut": _broken(Cut(steps=("par", "tial"), how="close"), "the response broke off", "par", "tial"),
    "response_failed": _broken(
        Says((Data('{"type": "response.failed", "response": {"id": "r", "error": {"message": "model broke"}}}'),)),
        "model broke",
        apis=("responses",),
    ),
    "stream_retries": Trace(
        replies=(Cut(steps=("par",)), Cut(steps=("tial",)), Says(("Whole",)), Says(("Next",))),
        turns=(
            Turn("go", (*_pieces("par"), _RETRY_1, *_pieces("tial"), _RETRY_2, *said("Whole")), "Whole"),
            Turn("again", said("Next"), "Next"),
        ),
        requests=((GO,), (GO,), (GO,), (GO, Assistant("Whole"), AGAIN)),
        options=RETRYING,
    ),
    "stream_retries_in_vain": Trace(
        replies=(Cut(steps=("a",)), Cut(steps=("b",)), Cut(steps=("c",)), Says(("Next",))),
        turns=(
            Turn(
                "go",
                (*_pieces("a"), _RETRY_1, *_pieces("b"), _RETRY_2, *_pieces("c")),
                _BROKE_OFF,
                failed=True,
            ),
            Turn("again", said("Next"), "Next"),
        ),
        requests=((GO,), (GO,), (GO,), (GO, AGAIN)),
        options=RETRYING,
    ),
    "stream_cut_after_call": Trace(
        # The call of a broken reply was not run, so the next request does not contain it.
        replies=(Cut(steps=(Call("look", "{}", "c1"),)), Says(("Done",))),
        turns=(
            Turn(
                "go",
                (_RETRY_1, *said("Done")),
                "Done",
            ),
        ),
        requests=((GO,), (GO,)),
        options=RETRYING,
    ),
    "model_http_400": _refused(400, 'unexpected status 400 Bad Request: {"error":{"message":"scripted failure"}}'),
    "model_http_401": _refused(401, 'unexpected status 401 Unauthorized: {"error":{"message":"scripted failure"}}'),
    "model_http_404": _refused(404, 'unexpected status 404 Not Found: {"error":{"message":"scripted failure"}}'),
    "model_http_429": _refused(429, "exceeded retry limit, last status: 429 Too Many Requests"),
    "model_http_500_chat": _refused(
        500, "exceeded retry limit, last status: 500 Internal Server Error", apis=("chat",)
    ),
    "model_http_500_responses": _refused(
        500,
        "We're currently experiencing high demand, which may cause temporary errors.",
        apis=("responses",),
    ),
    "model_http_503": _refused(503, "exceeded retry limit, last status: 503 Service Unavailable"),
    "model_http_400_stream_retries": _refused(
        400, 'unexpected status 400 Bad Request: {"error":{"message":"scripted failure"}}'
    )._replace(options=RETRYING),
    "model_request_retries": Trace(
        replies=(
            Failure(status=500),
            Failure(status=429, headers={"retry-after": "0"}),
            Says(("Third time",)),
            Failure(status=400, body="bad"),
            *(Failure(status=503, headers={"retry-after": "0"}) for _ in range(3)),
        ),
        turns=(
            Turn("go", said("Third time"), "Third time"),
            Turn("go", (), "unexpected status 400 Bad Request: bad", failed=True),
            Turn("go", (), "exceeded retry limit, last status: 503 Service Unavailable", failed=True),
        ),
        requests=((GO,),) * 7,
        options=REPEATING,
        sessions=(0, 0, 0, 1, 2, 2, 2),
    ),
}


def traces_for(api: Api, options: ServerOptions | None = None, *, failing: bool) -> Mapping[str, Trace]:
    """Return the runs over one API, keyed by name, for a server with these options.

    `failing` selects the runs with a failure, or the others.
    """
    return {
        name: trace
        for name, trace in TRACES.items()
        if api in trace.apis and _fails(trace) is failing and trace.options == (options or {})
    }


def _fails(trace: Trace) -> bool:
    broken = any(not isinstance(reply, Says | RawBody) for reply in trace.replies)
    return broken or any(turn.failed for turn in trace.turns)
