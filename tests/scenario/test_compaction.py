"""A conversation that exceeds the context window of its model continues with a summary."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from kit.clients.codex_calls import AskedFor, Assistant, User, body, history
from kit.clients.messages import (
    APIS,
    EITHER_API,
    TASK_STARTED,
    TOKEN_COUNT,
    agent_message,
    answered,
    delta,
    error,
    live,
    spoken,
    task_complete,
    user_message,
)
from kit.clients.wire_client import WireClient, speaking
from parley.agent.compaction import INSTRUCTIONS, SUMMARY_PREFIX
from parley.testing import HOLD, Call, RecordedRequest, Says, ScriptedModel, Usage
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION

both_apis = pytest.mark.parametrize("api", APIS)
either_api = pytest.mark.parametrize("api", EITHER_API)

WINDOW: Final = 20_000
CONFIG: Final = f"model_context_window = {WINDOW}"

M1, M2, M3, M4 = (str(UUID(int=number)) for number in range(1, 5))


def tokens(number: int, letter: str) -> str:
    """Return a text with this number of estimated tokens."""
    return letter * int(number * 3.5)


A1: Final = tokens(9_000, "a")
A2: Final = tokens(3_500, "b")
Q3: Final = tokens(6_000, "q")
"""A message that overfills the window.

The second turn fits into the window with this message, but the first turn does not.
"""

OLD: Final = f"USER: one\n\nAGENT: {A1}"
SUMMARY: Final = f"{SUMMARY_PREFIX}In short."
RECENT: Final = (User("two"), Assistant(A2))


async def talk(client: WireClient, model: ScriptedModel) -> str:
    """Create a conversation of two turns, which fit into the window."""
    conversation = await client.create()
    for answer, question, message_id in ((A1, "one", M1), (A2, "two", M2)):
        model.says(answer)
        await client.say(conversation, question, message_id=message_id)
        await client.over(conversation)
    return conversation


def asks_for_summary(api: Api, record: str, session: str, **changes: Any) -> Any:
    """Return the complete body of the request for a summary."""
    asked = history(api, User(f"<record>\n{record}\n</record>"))
    if api == "chat":
        messages = [{"role": "system", "content": INSTRUCTIONS}, *asked]
        return {"model": MODEL, "messages": messages, "stream": True, **changes}
    usual = body(api, cwd=Path("/"), session=session, instructions=INSTRUCTIONS, tools=[])
    return {**usual, "input": asked, **changes}


def bodies(model: ScriptedModel) -> list[Any]:
    return [request.body for request in model.requests]


def covered(messages: list[Any]) -> list[Any]:
    """Replace the number of tokens in the messages with `N`, after checking that it exceeds the limit."""

    def cover(found: re.Match[str]) -> str:
        assert int(found[1]) > 0.85 * int(found[2])
        return f"Context compacted: N of {found[2]} tokens"

    def look_into(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: look_into(one) for key, one in value.items()}
        if not isinstance(value, str):
            return value
        return re.sub(r"^Context compacted: (\d+) of (\d+) tokens$", cover, value)

    return [look_into(message) for message in messages]


COMPACTED: Final = {"type": "background_event", "message": f"Context compacted: N of {WINDOW} tokens"}


def counted(api: Api) -> list[Any]:
    return [TOKEN_COUNT] if api == "responses" else []


# --- the usual course ------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("context.compacted")
@both_apis
async def test_a_long_conversation_continues_with_a_summary_and_the_recent_turns(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.says("In ", "short", ".")
        parley_model.says("Three", ".")
        await client.say(conversation, Q3)
        third = await client.until_method("task_complete")
        parley_model.says("Four.")
        await client.say(conversation, "four")
        fourth = await client.until_method("task_complete")
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

        # Clients see only the event that reports the summary, and its usage.
        begun, *said = spoken(api, "Three", ".")
        assert covered(third) == [live(event) for event in (begun, *counted(api), COMPACTED, *said)]
        assert fourth == [live(event) for event in spoken(api, "Four.")]
        if api == "responses":
            assert (status["tokens"]["input_tokens"], status["tokens"]["total_tokens"]) == (50, 75)
        else:
            assert status["tokens"] is None

        def asked(*items: AskedFor) -> Any:
            return body(api, *items, cwd=client.work, session=conversation)

        first = (User("one"), Assistant(A1))
        after = (User(SUMMARY), *RECENT, User(Q3))
        assert bodies(parley_model) == [
            asked(*first[:1]),
            asked(*first, User("two")),
            asks_for_summary(api, OLD, conversation),
            asked(*after),
            asked(*after, Assistant("Three."), User("four")),
        ]


async def test_the_compaction_is_part_of_what_happened(parley_model: ScriptedModel) -> None:
    api: Final = "responses"
    async with speaking(parley_model, api=api, version=FULL_VERSION, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        parley_model.says("In short.")
        await client.say(conversation, Q3, message_id=M3)
        await client.over(conversation)
        read = await client.value_of(client.call("conversationRead", conversation_id=conversation))

        def turn(question: str, message_id: str, answer: str, *between: Any) -> list[Any]:
            said = user_message(question, message_id)
            return [TASK_STARTED, said, *between, agent_message(answer), *counted(api), task_complete(answer)]

        assert covered([one["msg"] for one in read["events"]]) == [
            *turn("one", M1, A1),
            *turn("two", M2, A2),
            *turn(Q3, M3, "Done", *counted(api), COMPACTED),
        ]


@either_api
async def test_within_a_turn_of_many_large_outputs_calls_stay_with_their_outputs(
    parley_model: ScriptedModel, api: Api
) -> None:
    calls = iter(range(16))

    def choose(request: RecordedRequest) -> Says | None:
        if is_summary(request):
            return Says(("So far so good.",))
        number = next(calls, None)
        if number is None:
            return Says(("Done.",))
        return Says((Call("shell", {"command": ["printf", "%09000d", str(number)]}, f"c{number}"),))

    parley_model.set_handler(choose)
    async with speaking(parley_model, api=api, config="model_context_window = 16000") as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "print them")
        events = await client.until_method("task_complete")

        assert events[-1] == live(task_complete("Done."))
        requests = parley_model.requests
        asked = [request for request in requests if not is_summary(request)]
        after_summaries = [after for before, after in pairwise(requests) if is_summary(before)]
        assert [one["method"] for one in events].count("background_event") == len(after_summaries)
        assert len(asked) == 17
        assert 2 <= len(after_summaries) <= 5  # each summary has made room for several more outputs
        for number, request in enumerate(asked):
            shown = call_ids(request)
            assert shown == [f"c{one}" for one in range(number - len(shown), number)]
            assert len(request.raw) / 3.5 < 16_000
        for request in after_summaries:
            assert texts(request) == [f"{SUMMARY_PREFIX}So far so good."]
            assert len(call_ids(request)) == 1


def is_summary(request: RecordedRequest) -> bool:
    instructions = request.body["messages"][0]["content"] if request.api == "chat" else request.body["instructions"]
    return bool(instructions == INSTRUCTIONS)


def texts(request: RecordedRequest) -> list[str]:
    """Return the messages of the user, after the environment."""
    if request.api == "chat":
        return [one["content"] for one in request.body["messages"][2:] if one["role"] == "user"]
    return [one["content"][0]["text"] for one in request.body["input"][1:] if one.get("role") == "user"]


def call_ids(request: RecordedRequest) -> list[str]:
    """Return the calls of a request, after checking that each is followed by its output."""
    items = request.body["messages"] if request.api == "chat" else request.body["input"]
    calls = [(place, _call_id(item)) for place, item in enumerate(items) if _call_id(item)]
    outputs = [item.get("tool_call_id") or item.get("call_id") for item in items if _is_output(item)]
    assert [call_id for _, call_id in calls] == outputs
    for place, call_id in calls:
        assert _is_output(items[place + 1]), f"{call_id} has no output after it"
    return [str(call_id) for _, call_id in calls]


def _call_id(item: Any) -> str | None:
    if item.get("tool_calls"):
        (call,) = item["tool_calls"]
        return str(call["id"])
    return str(item["call_id"]) if item.get("type") == "function_call" else None


def _is_output(item: Any) -> bool:
    return bool(item.get("role") == "tool" or item.get("type") == "function_call_output")


@either_api
async def test_input_that_joins_while_the_summary_is_made_is_sent_after_it(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        parley_model.says("In ", HOLD, "short.")
        await client.say(conversation, Q3)
        await parley_model.wait_until_held()
        await client.say(conversation, "and this")
        parley_model.release()
        await client.over(conversation)

        assert bodies(parley_model)[3:] == [
            body(api, User(SUMMARY), *RECENT, User(Q3), User("and this"), cwd=client.work, session=conversation)
        ]


# --- branches --------------------------------------------------------------------------


@pytest.mark.promises("context.branches")
@either_api
async def test_a_branch_from_before_a_summary_sees_what_was_said_and_one_from_after_it_the_summary(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        parley_model.says("In short.")
        parley_model.says("Three.")
        await client.say(conversation, Q3, message_id=M3)
        await client.over(conversation)
        parley_model.requests.clear()
        for parent in (M2, M3, M1, conversation):
            await client.say(conversation, "elsewhere", parent_message_id=parent)
            await client.over(conversation)

        def asked(*items: AskedFor) -> Any:
            return body(api, *items, User("elsewhere"), cwd=client.work, session=conversation)

        first = (User("one"), Assistant(A1))
        assert bodies(parley_model) == [
            asked(*first, *RECENT),
            asked(User(SUMMARY), *RECENT, User(Q3), Assistant("Three.")),
            asked(*first),
            asked(),
        ]


async def test_each_branch_has_its_own_summary(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        for summary, message_id in (("Left.", M3), ("Right.", M4)):
            parley_model.says(summary)
            await client.say(conversation, Q3, message_id=message_id, parent_message_id=M2)
            await client.over(conversation)
        parley_model.requests.clear()
        for parent in (M3, M4):
            await client.say(conversation, "and", parent_message_id=parent)
            await client.over(conversation)

        assert bodies(parley_model) == [
            body(
                "chat",
                User(f"{SUMMARY_PREFIX}{summary}"),
                *RECENT,
                User(Q3),
                Assistant("Done"),
                User("and"),
                cwd=client.work,
                session=conversation,
            )
            for summary in ("Left.", "Right.")
        ]


# --- when there is no summary ----------------------------------------------------------


@either_api
async def test_where_a_summary_is_refused_the_users_own_words_take_its_place(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.fails(400, body="too long")
        await client.say(conversation, Q3)
        events = await client.until_method("task_complete")

        begun, *said = spoken(api, "Done")
        assert covered(events) == [live(event) for event in (begun, COMPACTED, *said)]
        poor = f"{SUMMARY_PREFIX}- The user said: one"
        assert bodies(parley_model)[2:] == [
            asks_for_summary(api, OLD, conversation),
            body(api, User(poor), *RECENT, User(Q3), cwd=client.work, session=conversation),
        ]


@pytest.mark.parametrize(
    ("api", "status", "error_text"),
    [
        ("chat", 503, "exceeded retry limit, last status: 503 Service Unavailable"),
        ("responses", 401, "unexpected status 401 Unauthorized: who?"),
    ],
)
async def test_a_summary_that_fails_fails_the_turn_and_the_next_message_works(
    parley_model: ScriptedModel, api: Api, status: int, error_text: str
) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.fails(status, body="who?")
        await client.say(conversation, Q3)
        failed = await client.until_method("task_complete")
        parley_model.says("In short.")
        await client.say(conversation, "four")
        next_turn = await client.until_method("task_complete")

        assert failed == [live(event) for event in (TASK_STARTED, error(error_text), task_complete(None))]
        begun, *said = spoken(api, "Done")
        assert covered(next_turn) == [live(event) for event in (begun, *counted(api), COMPACTED, *said)]
        assert bodies(parley_model)[2:] == [
            asks_for_summary(api, OLD, conversation),
            asks_for_summary(api, f"{OLD}\n\nUSER: two\n\nAGENT: {A2}", conversation),
            body(api, User(SUMMARY), User(Q3), User("four"), cwd=client.work, session=conversation),
        ]


@either_api
async def test_an_interrupt_in_mid_summary_changes_nothing(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api, config=CONFIG) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.says("In ", HOLD)
        await client.say(conversation, Q3)
        await parley_model.wait_until_held()
        interrupting = client.call("conversationInterrupt", conversation_id=conversation)
        messages = await client.until_method("error")
        if answered(interrupting, {"status": "ok"}) not in messages:
            messages.append(await client.read())
        await parley_model.wait_abandoned()
        await client.say(conversation, "elsewhere", parent_message_id=M2)
        await client.until_method("task_complete")

        assert [one for one in messages if "method" in one] == [
            live(TASK_STARTED),
            live(error(" Turn interrupted")),
        ]
        assert bodies(parley_model)[3:] == [
            body(
                api,
                User("one"),
                Assistant(A1),
                *RECENT,
                User("elsewhere"),
                cwd=client.work,
                session=conversation,
            )
        ]


async def test_a_summary_that_breaks_off_is_requested_again(parley_model: ScriptedModel) -> None:
    api: Final = "responses"
    async with speaking(parley_model, api=api, config=CONFIG, stream_max_retries=1) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.cuts("Half a sum")
        parley_model.says("In short.")
        await client.say(conversation, Q3)
        started, notice, *rest = await client.until_method("task_complete")

        assert started == live(TASK_STARTED)
        assert notice["params"]["msg"]["message"].startswith(
            "stream error: stream disconnected before completion: "
        )
        assert covered(rest) == [live(event) for event in (*counted(api), COMPACTED, *spoken(api, "Done")[1:])]
        again = asks_for_summary(api, OLD, conversation)
        assert bodies(parley_model)[2:] == [
            again,
            again,
            body(api, User(SUMMARY), *RECENT, User(Q3), cwd=client.work, session=conversation),
        ]


# --- windows and counts ----------------------------------------------------------------


async def test_over_chat_the_summary_is_counted_where_the_provider_counts(parley_model: ScriptedModel) -> None:
    config = (
        f"{CONFIG}\nmodel_provider = 'counts'\n"
        f"[model_providers.counts]\nbase_url = '{parley_model.base_url}'\nstream_usage = true\n"
    )
    async with speaking(parley_model, config=config) as client:
        conversation = await talk(client, parley_model)
        await client.open_stream(conversation)
        parley_model.says("In short.", Usage(input_tokens=9_100, output_tokens=3))
        await client.say(conversation, Q3)
        events = await client.until_method("task_complete")

        spent = {**TOKEN_COUNT, "input_tokens": 9_100, "output_tokens": 3, "total_tokens": 9_103}
        begun, *said = spoken("responses", "Done")
        assert covered(events) == [live(event) for event in (begun, spent, COMPACTED, *said)]
        asked = asks_for_summary("chat", OLD, conversation, stream_options={"include_usage": True})
        assert bodies(parley_model)[2] == asked


async def test_the_provider_count_overrides_the_estimate(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, api="responses", config=CONFIG) as client:
        conversation = await client.create()
        answer = tokens(2_000, "a")
        parley_model.says(answer, Usage(input_tokens=9_000))
        parley_model.says("In short.")
        for words in ("one", "two"):
            await client.say(conversation, words)
            await client.over(conversation)

        assert [texts(request) for request in parley_model.requests] == [
            ["one"],
            [],
            [SUMMARY, "two"],
        ]


async def test_a_model_of_which_no_window_is_known_is_sent_everything(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        questions = [tokens(150_000, letter) for letter in "xyz"]
        for words in questions:
            await client.say(conversation, words)
            await client.over(conversation)

        assert [texts(request) for request in parley_model.requests] == [
            questions[:1],
            questions[:2],
            questions,
        ]


async def test_the_window_is_that_of_the_model_in_use(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        long = tokens(110_000, "x")
        await client.say(conversation, long)
        await client.over(conversation)
        await client.open_stream(conversation)
        parley_model.says("In short.")
        await client.say(conversation, "two", model="gpt-4o")
        events = await client.until_method("task_complete")

        notice = {"type": "background_event", "message": "Context compacted: N of 128000 tokens"}
        assert covered(events) == [
            live(event)
            for event in (TASK_STARTED, notice, delta("Done"), agent_message("Done"), task_complete("Done"))
        ]
        assert [request.body["model"] for request in parley_model.requests] == [MODEL, "gpt-4o", "gpt-4o"]
        assert texts(parley_model.requests[-1]) == [SUMMARY, "two"]


# --- an unknown window -------------------------------------------------------------------


TOO_LONG: Final = '{"error": {"code": "context_length_exceeded", "message": "This is too long."}}'


@pytest.mark.promises("context.overflow")
@both_apis
async def test_a_request_that_is_too_long_is_shortened_and_repeated(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        conversation = await talk(client, parley_model)
        parley_model.fails(400, body=TOO_LONG)
        parley_model.says("In short.")
        await client.say(conversation, "three")
        await client.over(conversation)
        page = await client.value_of(client.call("conversationRead", conversation_id=conversation, limit=1000))

        refused, summary, again = bodies(parley_model)[2:]
        whole = User("one"), Assistant(A1), *RECENT, User("three")
        assert refused == body(api, *whole, cwd=client.work, session=conversation)
        assert len(str(summary)) < len(str(refused))
        assert "USER: one" in str(summary)
        assert again == body(api, User(SUMMARY), User("three"), cwd=client.work, session=conversation)
        notices = [
            event["msg"] for event in page["events"] if event["msg"]["type"] in ("error", "background_event")
        ]
        assert [event["message"][:18] for event in notices] == ["Context compacted:"]


async def test_a_request_that_cannot_be_made_shorter_fails_the_turn(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        parley_model.fails(400, body=TOO_LONG)
        await client.open_stream(conversation)
        await client.say(conversation, "one")
        events = await client.until_method("task_complete")

        expected = f"unexpected status 400 Bad Request: {TOO_LONG}"
        assert events == [live(event) for event in (TASK_STARTED, error(expected), task_complete(None))]
        assert len(parley_model.requests) == 1
