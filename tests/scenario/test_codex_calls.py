"""`codex`: a call that runs one turn. The client gets each event twice, and the answer after all events."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import pytest

from kit.builders.events import agent_message, error, task_complete, task_started, user_message
from kit.builders.json import as_json
from kit.builders.tools import offered
from kit.clients.codex_calls import (
    EVERY_API,
    Assistant,
    CallSent,
    Output,
    User,
    answered,
    body,
    configured,
    events_in,
    failed,
    is_event,
    pairs,
    request_headers,
    shown,
    speaking,
    without_message_ids,
)
from kit.clients.messages import PATHS, turn_value
from kit.clients.traces import SPENT, Trace, Turn, said, traces_for
from kit.models.raw_provider import settings
from kit.system.needs import SANDBOX
from parley.testing import HOLD, Call, Failure, ParleyProcess, RawBody, RecordedRequest, Reply, Says, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.events import AgentMessageDelta
from parley.wire.mcp import FULL_VERSION

_UNREADABLE: Final = "failed to parse function arguments: "
_ODD_CALLS: Final = (
    (
        Call("shell", "{not json", "c1"),
        f"{_UNREADABLE}arguments cannot be read: JSON is malformed: object keys must be strings (byte 1)",
    ),
    (
        Call("shell", '{"command": "echo hi"}', "c2"),
        f'{_UNREADABLE}invalid type: string "echo hi", expected a sequence (command)',
    ),
    (Call("shell", "{}", "c3"), f"{_UNREADABLE}missing field `command`"),
    (Call("no_such_tool", '{"a": 1}', "c4"), "unsupported call: no_such_tool"),
    (Call("", "{}", "c5"), "unsupported call: "),
    (Call('100% "odd"', "", "c6"), 'unsupported call: 100% "odd"'),
)
"""Calls whose only effect is an output for the model."""
_ODD_OUTCOMES: Final = tuple(
    item
    for call, expected in _ODD_CALLS
    for item in (CallSent(str(call.call_id), call.name, str(call.arguments)), Output(str(call.call_id), expected))
)
_BAD_TOOL_CALLS: Final = Trace(
    replies=(*(Says((call,)) for call, _ in _ODD_CALLS), Says(("Done",))),
    turns=(Turn("go", (*(SPENT for _ in _ODD_CALLS), *said("Done")), "Done"),),
    requests=tuple((User("go"), *_ODD_OUTCOMES[: 2 * asked]) for asked in range(len(_ODD_CALLS) + 1)),
)


@pytest.mark.promises(
    "codex.result",
    "codex.pairs",
    "codex.configured",
    "codex.answer-last",
    "reply.result",
    "turn.order",
    "calls.unknown",
    "model.history",
    "model.cut-anywhere",
    "model.chat-ends",
)
@pytest.mark.parametrize("api", EVERY_API)
async def test_runs_of_calls_read_word_for_word(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as wire:
        for name, trace in {**traces_for(api, failing=False), "bad_tool_calls": _BAD_TOOL_CALLS}.items():
            print(name)  # pytest shows the last one if it fails
            await trace.play(wire, api)


@pytest.mark.promises("plan.update")
@pytest.mark.parametrize("api", EVERY_API)
async def test_the_plan_tool_is_offered_to_the_model_where_the_call_includes_it(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        for request_id, wanted in ((1, True), (2, False)):
            wire.codex(request_id, "go", **{"include-plan-tool": wanted})
            await wire.answer(request_id)

    def tools(*, with_plan: bool) -> list[Any]:
        chosen = settings(approval_policy="never", sandbox_mode="danger-full-access", include_plan_tool=with_plan)
        return offered(api, chosen)

    assert [request.body for request in parley_model.requests] == [
        body(api, User("go"), cwd=wire.work, session=session, tools=tools(with_plan=wanted))
        for session, wanted in zip(wire.sessions, (True, False), strict=True)
    ]


@SANDBOX
async def test_a_command_does_what_the_sandbox_of_the_call_lets_it(parley_model: ScriptedModel) -> None:
    made: dict[str, bool] = {}
    async with speaking(parley_model) as wire:
        for request_id, sandbox in enumerate(("read-only", "workspace-write", "danger-full-access"), start=1):
            parley_model.says(Call("shell", {"command": ["touch", sandbox]}, "c1"))
            wire.codex(request_id, "go", sandbox=sandbox)
            await wire.answer(request_id)
            made[sandbox] = (wire.work / sandbox).exists()

    assert made == {"read-only": False, "workspace-write": True, "danger-full-access": True}


# --- ids ---------------------------------------------------------------------------------


@pytest.mark.promises("codex.configured")
async def test_a_request_id_of_either_kind_names_the_turn(parley_model: ScriptedModel) -> None:
    events = (task_started(), *shown("chat", *said("Done")), task_complete("Done"))
    async with speaking(parley_model) as wire:
        for request_id in ("abc", "", 'with "quotes", 100%s and \\', 0, -7, 2**53):
            wire.codex(request_id, "go")
            messages = await wire.answer(request_id)

            event_id = "1" if request_id == 0 else str(request_id)  # `session_configured` has used the id `0`
            assert messages == [
                *configured(request_id, wire.sessions[-1]),
                *pairs(request_id, event_id, *events),
                answered(request_id, "Done"),
            ]
    assert [str(uuid.UUID(session)) for session in wire.sessions] == wire.sessions
    assert len(set(wire.sessions)) == 6


@pytest.mark.child_process
async def test_two_calls_at_once_are_never_mixed(parley_model: ScriptedModel) -> None:
    def by_prompt(request: RecordedRequest) -> Reply:
        prompt = request.body["messages"][-1]["content"]
        return Says((f"This is {prompt}", HOLD, "."))

    parley_model.set_handler(by_prompt)
    async with speaking(parley_model) as wire:
        wire.codex(1, "A")
        wire.codex(2, "B")
        await parley_model.wait_until_held(2)
        parley_model.release()
        messages = await wire.answer(1, 2)

    for request_id, prompt in ((1, "A"), (2, "B")):
        mine = [one for one in messages if _is_of(one, request_id)]
        events = (
            task_started(),
            *shown("chat", *said(f"This is {prompt}", ".")),
            task_complete(f"This is {prompt}."),
        )
        assert mine == [
            *configured(request_id, wire.sessions[request_id - 1]),
            *pairs(request_id, str(request_id), *events),
            answered(request_id, f"This is {prompt}."),
        ]
    assert len(messages) == 2 * len([one for one in messages if _is_of(one, 1)])


def _is_of(message: Any, request_id: int) -> bool:
    if "method" in message:
        return bool(message["params"]["_meta"] == {"requestId": request_id})
    return bool(message["id"] == request_id)


# --- requests to the model -----------------------------------------------------------------------


@pytest.mark.promises("model.chat", "model.responses", "model.anthropic", "model.environment")
@pytest.mark.parametrize("api", EVERY_API)
async def test_the_model_is_asked_with_exactly_this_body_and_these_headers(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "How are you, “Jürgen”? \U0001f642")
        await wire.answer(1)

    (request,) = parley_model.requests
    session = wire.sessions[0]
    assert request.path == (PATHS[api])
    assert request.headers == request_headers(api, request, model=parley_model, session=session)
    assert request.body == body(api, User("How are you, “Jürgen”? \U0001f642"), cwd=wire.work, session=session)


@pytest.mark.promises("model.instructions")
@pytest.mark.parametrize("api", EVERY_API)
async def test_arguments_of_the_call_reach_the_model(parley_model: ScriptedModel, api: Api) -> None:
    config = {"model_reasoning_effort": "high", "model_supports_reasoning_summaries": True}
    async with speaking(parley_model, api=api) as wire:
        folder = wire.work / "deeper"
        arguments = {"base-instructions": "Be brief.", "cwd": "deeper", "model": "my-model", "config": config}
        wire.codex(1, "go", **arguments)
        messages = await wire.answer(1)

    assert messages[:2] == configured(1, wire.sessions[0], "my-model")
    thinking: dict[Api, dict[str, Any]] = {
        "chat": {},
        "responses": {"reasoning": {"effort": "high", "summary": "auto"}},
        "anthropic": {"output_config": {"effort": "high"}},
    }
    assert [request.body for request in parley_model.requests] == [
        body(
            api,
            User("go"),
            cwd=folder,
            session=wire.sessions[0],
            model="my-model",
            instructions="Be brief.",
            **thinking[api],
        )
    ]


async def test_the_history_file_of_the_home_is_counted(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        file = wire.raw.home / "history.jsonl"
        file.write_text('{"text": "one"}\n{"text": "two"}\n')
        inode = file.stat().st_ino
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert events_in(messages)[0] == {
        "type": "session_configured",
        "session_id": wire.sessions[0],
        "model": MODEL,
        "history_log_id": inode,
        "history_entry_count": 2,
    }


# --- bodies in pieces --------------------------------------------------------------------------

_CHAT_BODY = (
    'data: {"choices":[{"delta":{"content":"Grüß"}}]}\r\n\r\n: \U0001f642\n\n'
    'data: {"choices":[{"delta":{"content":" \U0001f642"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
).encode()
_RESPONSES_BODY = (
    'event: x\r\ndata: {"type":"response.output_text.delta","delta":"Grüß"}\r\n\r\n: \U0001f642\n\n'
    'data: {"type":"response.output_text.delta","delta":" \U0001f642"}\n\n'
    'data: {"type":"response.output_item.done","item":{"type":"message","role":"assistant","id":"m",'
    '"content":[{"type":"output_text","text":"Grüß \U0001f642"}]}}\n\n'
    'data: {"type":"response.completed","response":{"id":"r"}}\n\n'
).encode()


@pytest.mark.promises("model.cut-anywhere")
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("api", "reply"), [("chat", _CHAT_BODY), ("responses", _RESPONSES_BODY)])
async def test_a_reply_reads_the_same_wherever_the_network_cuts_it(
    parley_model: ScriptedModel, api: Api, reply: bytes, step: int
) -> None:
    sizes = [*range(1, 40), *range(40, len(reply) + 1, step)]
    for size in sizes:
        parley_model.queue(RawBody(body=reply, cut_every=size))
    async with speaking(parley_model, api=api) as wire:
        for at in range(0, len(sizes), 20):
            numbers = range(at + 1, min(at + 20, len(sizes)) + 1)
            for number in numbers:
                wire.codex(number, "go")
            messages = await wire.answer(*numbers)
            for number in numbers:
                mine = [one for one in messages if _is_of(one, number)]
                events = (*shown("chat", *said("Grüß", " \U0001f642")), task_complete("Grüß \U0001f642"))
                assert mine[2:] == [
                    *pairs(number, str(number), task_started(), *events),
                    answered(number, "Grüß \U0001f642"),
                ]


# --- clients of the full version -------------------------------------------------------------


@pytest.mark.promises("versions.full")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_client_of_the_full_version_also_gets_the_session_and_what_it_said(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    events = (
        task_started(),
        user_message("go", principal="local"),
        *shown(api, *said("Done")),
        task_complete("Done"),
    )
    session = wire.sessions[0]
    assert without_message_ids(messages) == [
        *configured(1, session),
        *pairs(1, "1", *events),
        answered(1, "Done", structuredContent=turn_value(session, "Done")),
    ]


@pytest.mark.promises("versions.full", "codex.failed-turn")
async def test_a_failure_has_structured_content_too(parley_model: ScriptedModel) -> None:
    parley_model.queue(Failure(status=400, body="no"))
    async with speaking(parley_model, version=FULL_VERSION) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    message, code = "unexpected status 400 Bad Request: no", "unexpected_status"
    asked = user_message("go", principal="local")
    events = (task_started(), asked, error(message, "failed", code), task_complete())
    session = wire.sessions[0]
    assert without_message_ids(messages) == [
        *configured(1, session),
        *pairs(1, "1", *events),
        failed(1, message, structuredContent=turn_value(session, message, "failed", code)),
    ]


# --- progress --------------------------------------------------------------------------------


@pytest.mark.promises("codex.progress")
@pytest.mark.parametrize("token", ["tok%en", 7])
async def test_progress_is_sent_after_each_event_that_has_a_position(
    parley_model: ScriptedModel, token: str | int
) -> None:
    parley_model.says("In ", "pieces")
    async with speaking(parley_model, api="responses") as wire:
        wire.call(1, "codex", {"prompt": "go"}, progress_token=token)
        messages = [*await wire.answer(1), *await wire.silence()]

    def step(number: int, what: str) -> dict[str, Any]:
        params = {"progressToken": token, "progress": number, "message": what}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}

    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", task_started()),
        step(1, "task_started"),
        *pairs(1, "1", AgentMessageDelta(delta="In "), AgentMessageDelta(delta="pieces")),
        *pairs(1, "1", agent_message("In pieces")),
        step(2, "agent_message"),
        *pairs(1, "1", SPENT),
        step(3, "token_count"),
        *pairs(1, "1", task_complete("In pieces")),
        step(4, "task_complete"),
        answered(1, "In pieces"),
    ]


# --- one kind of conversation ------------------------------------------------------------------


@pytest.mark.promises("codex.conversation")
async def test_a_session_is_listed_streamed_and_continued_like_any_conversation(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("One")
    parley_model.says("Two")
    async with speaking(parley_model) as wire:
        wire.codex(1, "go\nand more")
        await wire.answer(1)
        session = wire.sessions[0]
        wire.call(2, "conversationsList", {})
        (listed,) = await wire.answer(2)
        wire.stream(3, session)
        opened = await wire.until(is_event("notifications/initial_state"))
        wire.send(4, session, "to a codex ", "session")
        live = await wire.until(is_event("task_complete"))

    assert listed["result"]["structuredContent"] == {"conversations": [{"conversation_id": session, "title": "go"}]}
    past = (task_started(), agent_message("One"), task_complete("One"))
    assert opened == [
        {
            "jsonrpc": "2.0",
            "id": 3,
            "result": {"content": [{"type": "text", "text": "{}"}], "isError": False, "structuredContent": {}},
        },
        {
            "jsonrpc": "2.0",
            "method": "notifications/initial_state",
            "params": {
                "_meta": {"conversationId": session},
                "initial_state": {"events": [{"msg": as_json(event)} for event in past]},
            },
        },
    ]
    accepted = {"content": [{"type": "text", "text": '{"status":"ok"}'}], "isError": False}
    turn = (task_started(), AgentMessageDelta(delta="Two"), agent_message("Two"), task_complete("Two"))
    assert live == [
        {"jsonrpc": "2.0", "id": 4, "result": {**accepted, "structuredContent": {"status": "ok"}}},
        *_live(turn),
    ]
    assert parley_model.requests[1].body == body(
        "chat",
        User("go\nand more"),
        Assistant("One"),
        User("to a codex session"),
        cwd=wire.work,
        session=session,
    )


def _live(events: tuple[Any, ...]) -> list[Any]:
    return [
        {"jsonrpc": "2.0", "method": as_json(event)["type"], "params": {"msg": as_json(event)}} for event in events
    ]


@pytest.mark.promises("codex.conversation")
async def test_the_call_and_a_stream_of_its_session_both_see_the_turn(parley_model: ScriptedModel) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        before = await wire.until(is_event("agent_message_delta"))
        session = wire.sessions[0]
        wire.stream(2, session)
        await wire.answer(2)
        (state,) = await wire.until(is_event("notifications/initial_state"))
        parley_model.release()
        after = [*await wire.answer(1), *await wire.silence()]

    assert before == [
        *configured(1, session),
        *pairs(1, "1", task_started(), AgentMessageDelta(delta="Hello, ")),
    ]
    assert state["params"]["initial_state"]["events"] == [
        {"msg": {"type": "task_started"}},
        {"msg": {"type": "agent_message_delta", "delta": "Hello, "}},
    ]
    rest = (AgentMessageDelta(delta="world"), agent_message("Hello, world"), task_complete("Hello, world"))
    of_the_call = [one for one in after if "id" in one or "id" in one["params"]]
    assert of_the_call == [*pairs(1, "1", *rest), answered(1, "Hello, world")]
    assert [one for one in after if one not in of_the_call] == _live(rest)


@pytest.mark.promises("codex.answer-last")
async def test_a_model_that_is_done_at_once_is_still_heard(parley_server: ParleyProcess) -> None:
    async with asyncio.timeout(90):
        results = await asyncio.gather(*(parley_server.client.codex(f"go {number}") for number in range(30)))

    assert [result.content[0].text for result in results] == ["Done"] * 30
