"""`conversationRead` and `conversationStatus`, for clients that cannot receive notifications."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    TOKEN_COUNT,
    agent_message,
    answered,
    delta,
    failed,
    item_name,
    live,
    remains,
    task_complete,
    user_message,
)
from kit.clients.shell_turns import sh
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Call, Reasoning, ScriptedModel, Usage
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION

either_api = pytest.mark.parametrize("api", EITHER_API)

MESSAGE = "3f7c2d0e-52a1-4b86-9a42-0e6f6c1f7a10"


async def read(client: WireClient, conversation: str, **arguments: Any) -> Any:
    return await client.value_of(client.call("conversationRead", conversation_id=conversation, **arguments))


async def status(client: WireClient, conversation: str) -> Any:
    return await client.value_of(client.call("conversationStatus", conversation_id=conversation))


def at(seq: int, event: Any) -> Any:
    return {"seq": seq, "msg": event}


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


# --- reading ---------------------------------------------------------------------------


async def test_a_new_conversation_has_nothing_to_read(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        request = client.call("conversationRead", conversation_id=conversation)

        assert await client.read() == answered(request, {"events": [], "open": [], "seq": 1, "state": "idle"})


@pytest.mark.promises("read.result")
async def test_all_of_a_turn_can_be_read(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.say(conversation, "go", message_id=MESSAGE)
        await client.over(conversation)

        # The missing positions belong to records, which clients do not see.
        assert await read(client, conversation) == {
            "events": [
                at(3, TASK_STARTED),
                at(4, user_message("go", MESSAGE)),
                at(6, agent_message("Done")),
                at(8, task_complete("Done")),
            ],
            "open": [],
            "seq": 9,
            "state": "idle",
        }


@pytest.mark.promises("read.result")
@either_api
async def test_reading_follows_a_turn_and_shows_what_is_being_said(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Let me ", "look.", Call("no_such_tool", {}, call_id="c1"))
        parley_model.says("I see ", HOLD, "nothing ", HOLD, "here.")
        conversation = await client.create()
        stream, _ = await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until(lambda message: message == live(delta("I see ")))
        first = client.call("conversationRead", conversation_id=conversation)
        first_page = await client.value_of(first)
        parley_model.release()
        assert await client.read() == live(delta("nothing "))
        second_page = await read(client, conversation, after=first_page["seq"])
        client.cancel(stream)
        assert await client.meanwhile() == []
        await parley_model.wait_until_held()
        parley_model.release()
        await client.over(conversation)
        third_page = await read(client, conversation, after=second_page["seq"])

        *looked, _ = remains(api, "Let me look.")
        assert [one["msg"] for one in first_page["events"]] == looked
        assert {**first_page, "events": []} == {
            "events": [],
            "open": [{"item": item_name(2), "type": "agent_message_delta", "text": "I see "}],
            "seq": first_page["seq"],
            "state": "running",
        }
        assert second_page == {
            "events": [],
            "open": [{"item": item_name(2), "type": "agent_message_delta", "text": "I see nothing "}],
            "seq": first_page["seq"],
            "state": "running",
        }
        assert [one["msg"] for one in third_page["events"]] == remains(api, "I see nothing here.")[1:]
        assert (third_page["open"], third_page["state"]) == ([], "idle")


async def test_reasoning_that_is_being_thought_is_an_open_text_too(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config="show_raw_agent_reasoning = true") as client:
        parley_model.says(Reasoning("Hm"), Reasoning(", well"), HOLD, "So.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        thinking = await client.take(3)
        page = await read(client, conversation)

        kind = "agent_reasoning_raw_content_delta"
        assert thinking[1:] == [live({"type": kind, "delta": "Hm"}), live({"type": kind, "delta": ", well"})]
        assert page["open"] == [{"item": item_name(1), "type": kind, "text": "Hm, well"}]


@pytest.mark.promises("read.result")
async def test_pages_follow_each_other_without_gap_or_repetition(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        for number in range(3):
            parley_model.says(f"Answer {number}")
            await client.say(conversation, f"message {number}")
            await client.over(conversation)
        parley_model.says("Still ", HOLD, "talking")
        await client.open_stream(conversation)
        await client.say(conversation, "last")
        *_, live = await client.until(lambda message: message.get("params", {}).get("msg") == delta("Still "))
        item = live["params"]["_meta"]["item"]
        whole = await read(client, conversation)

        for limit in (1, 2, 5, 13, 14, 15):
            pages = [await read(client, conversation, limit=limit)]
            while pages[-1]["seq"] < whole["seq"]:
                pages.append(await read(client, conversation, limit=limit, after=pages[-1]["seq"]))

            assert [event for page in pages for event in page["events"]] == whole["events"]
            assert [len(page["events"]) for page in pages[:-1]] == [limit] * (len(pages) - 1)
            # The open text follows the last event, so only the last page has it.
            assert [page["open"] for page in pages] == [[]] * (len(pages) - 1) + [whole["open"]]
        assert len(whole["events"]) == 14
        assert whole["open"] == [{"item": item, "type": "agent_message_delta", "text": "Still "}]


@pytest.mark.promises("read.result")
async def test_a_hundred_events_are_read_by_default(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        for _ in range(35):
            await client.say(conversation, "go")
            await client.over(conversation)
        first = await read(client, conversation)
        second = await read(client, conversation, after=first["seq"])
        whole = await read(client, conversation, limit=1000)

        assert [len(page["events"]) for page in (first, second, whole)] == [100, 5, 105]
        assert first["events"] + second["events"] == whole["events"]
        assert [one["msg"] for one in whole["events"]] == remains("chat", "Done") * 35


# --- reading backwards -----------------------------------------------------------------------


async def read_back(client: WireClient, conversation: str, before: int, **arguments: Any) -> list[Any]:
    """Read all pages before a position, beginning with the last page."""
    pages = [await read(client, conversation, before=before, **arguments)]
    while "before" in pages[-1]:
        pages.append(await read(client, conversation, before=pages[-1]["before"], **arguments))
    return pages


@pytest.mark.promises("read.before")
async def test_pages_from_the_end_to_the_beginning_have_every_event_once(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.says(sh("c1", "seq 5000; seq 9 >&2"))
        parley_model.says("Counted")
        await client.say(conversation, "count")
        await client.over(conversation)
        parley_model.says("Still ", HOLD, "talking")
        await client.say(conversation, "last")
        await parley_model.wait_until_held()
        whole = await read(client, conversation)
        assert len(whole["open"]) == 1

        for limit in (1, 2, 5, 100):
            pages = await read_back(client, conversation, 10**6, limit=limit)

            assert [event for page in reversed(pages) for event in page["events"]] == whole["events"]
            assert {(page["state"], *page["open"]) for page in pages} == {("running",)}
            for later, page in pairwise(pages):
                assert page["seq"] == later["before"] - 1 >= page["events"][-1]["seq"]
            assert pages[0]["seq"] == whole["seq"]
        outputs = [event for event in whole["events"] if "offset" in event]
        assert len(outputs) > 2
        # The pieces of one output are never split.
        end = await read(client, conversation, before=outputs[-1]["seq"] + 1, limit=1)
        assert end["events"] == [event for event in outputs if event["seq"] == outputs[-1]["seq"]]


@pytest.mark.promises("read.before")
async def test_a_page_that_ends_at_the_first_event_has_none_before_it(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        empty = await read(client, conversation, before=1)
        await client.say(conversation, "go", message_id=MESSAGE)
        await client.over(conversation)

        assert empty == {"events": [], "open": [], "seq": 0, "state": "idle"}
        assert await read(client, conversation, before=5, limit=2) == {
            "events": [at(3, TASK_STARTED), at(4, user_message("go", MESSAGE))],
            "open": [],
            "seq": 4,
            "state": "idle",
        }
        assert await read(client, conversation, before=5, limit=1) == {
            "events": [at(4, user_message("go", MESSAGE))],
            "open": [],
            "seq": 4,
            "state": "idle",
            "before": 4,
        }


@pytest.mark.promises("read.before")
async def test_a_page_of_large_events_is_shorter(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        for number in range(4):
            await client.say(conversation, str(number) * 700_000)
            await client.over(conversation)
        pages = await read_back(client, conversation, 10**6)

        assert [len(page["events"]) for page in pages] == [7, 8, 1]
        whole = await read(client, conversation)
        assert [event for page in reversed(pages) for event in page["events"]] == whole["events"]


@pytest.mark.promises("read.times")
async def test_events_have_their_times_on_request(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.says(sh("c1", "echo two"))
        started = datetime.now(UTC)
        await client.say(conversation, "go")
        await client.over(conversation)
        plain = await read(client, conversation)
        forwards = await read(client, conversation, times=True)
        backwards = await read(client, conversation, times=True, before=1000)

    times = [moment(event.pop("at")) for event in forwards["events"]]
    assert forwards == plain
    assert [moment(event.pop("at")) for event in backwards["events"]] == times == sorted(times)
    assert abs(times[0] - started) < timedelta(hours=1)
    assert any("offset" in event for event in plain["events"])


@pytest.mark.promises("read.before")
async def test_before_is_refused_with_other_positions_and_unknown_to_older_clients(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        for name in ("after", "wait_seconds"):
            request = client.call("conversationRead", conversation_id=conversation, before=2, **{name: 0})

            assert await client.read() == failed(
                request,
                f"Failed to parse arguments for conversationRead: `before` cannot be combined with `{name}`",
                code="bad_arguments",
            )
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.say(conversation, "go")
        await client.over(conversation)

        assert await read(client, conversation, before=1) == await read(client, conversation)


# --- waiting ---------------------------------------------------------------------------


def begun(answer: Any) -> Any:
    """Return a page with the beginning of a turn.

    The position of the record of the model request may be included.
    """
    seq = answer["result"]["structuredContent"]["seq"]
    assert seq in (4, 5)
    return {"events": [at(3, TASK_STARTED)], "open": [], "seq": seq, "state": "running"}


@pytest.mark.promises("read.wait")
async def test_reading_waits_for_what_is_newer(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says(HOLD, "Done")
        conversation = await client.create()
        waiting = client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=50)
        assert await client.meanwhile() == []
        sent = client.message(conversation, "go")
        answers = await client.take(2)

        assert answers == [answered(sent, {"status": "ok"}), answered(waiting, begun(answers[1]))]


async def test_reading_waits_while_there_is_only_open_text(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One ", HOLD, "two")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.take(2)
        seq = (await read(client, conversation))["seq"]
        waiting = client.call("conversationRead", conversation_id=conversation, after=seq, wait_seconds=50)
        assert await client.meanwhile() == []
        parley_model.release()
        (answer,) = [message for message in await client.until_answer(waiting) if "id" in message]

        page = answer["result"]["structuredContent"]
        assert page["events"][0] == at(seq + 2, agent_message("One two"))  # after the record of the model request


@pytest.mark.promises("read.wait")
async def test_reading_gives_up_when_nothing_came(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        request = client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=0.05)

        assert await client.read() == answered(request, {"events": [], "open": [], "seq": 1, "state": "idle"})


async def test_several_readers_wait_side_by_side(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says(HOLD, "Done")
        parley_model.says(HOLD, "Done")
        one, other = await client.create(), await client.create()
        with client.at_once():
            waiting = [
                client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=50)
                for conversation in (one, one, other)
            ]
        assert await client.meanwhile() == []
        await client.say(one, "go")
        first = await client.take(2)
        assert {message["id"] for message in first} == set(waiting[:2])
        await client.say(other, "go")
        second = await client.read()

        answers = sorted([*first, second], key=lambda message: message["id"])
        assert answers == [
            answered(request, begun(answer)) for request, answer in zip(waiting, answers, strict=True)
        ]


async def test_a_reader_that_waits_is_answered_when_the_server_ends(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        request = client.call("conversationRead", conversation_id=conversation, after=1, wait_seconds=50)
        assert await client.meanwhile() == []
        client.raw.close_stdin()

        assert await client.read() == answered(request, {"events": [], "open": [], "seq": 1, "state": "idle"})
        assert await client.raw.exit_code() == 0


# --- failures to read ------------------------------------------------------------------------


@pytest.mark.promises("read.failure")
async def test_unreadable_conversations_are_named(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        cases: list[tuple[dict[str, Any], str]] = [
            ({"conversation_id": str(uuid4())}, "Conversation does not exist"),
            (
                {"conversation_id": conversation, "after": 2},
                "Failed to parse arguments for conversationRead: after is 2, but the conversation ends at 1",
            ),
            (
                {"conversation_id": conversation, "after": -1},
                "Failed to parse arguments for conversationRead: "
                "invalid value: integer `-1`, expected an integer, at least 0 (after)",
            ),
            (
                {"conversation_id": conversation, "wait_seconds": 51},
                "Failed to parse arguments for conversationRead: "
                "invalid value: integer `51`, expected a number, at least 0 and at most 50 (wait_seconds)",
            ),
            ({}, "Failed to parse arguments for conversationRead: missing field `conversation_id`"),
        ]
        for arguments, text in cases:
            request = client.call("conversationRead", **arguments)

            assert await client.read() == failed(request, text)


# --- status ----------------------------------------------------------------------------


@pytest.mark.promises("status.result")
async def test_the_status_of_a_new_conversation(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        found = await status(client, conversation)

        assert found == {
            "state": "idle",
            "seq": 1,
            "title": "",
            "cwd": str(client.raw.work),
            "model": MODEL,
            "updated_at": found["updated_at"],
            "questions": [],
            "tokens": None,
            "owner": None,
        }
        assert abs((datetime.now(UTC) - moment(found["updated_at"])).total_seconds()) < 60


@pytest.mark.child_process
@pytest.mark.promises("status.result")
async def test_the_status_follows_the_turn_and_counts_its_tokens(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, api="responses") as client:
        parley_model.says("One", Usage(input_tokens=100, cached_input_tokens=40, output_tokens=7))
        parley_model.says("Two ", HOLD, "more", Usage(input_tokens=200, output_tokens=9, reasoning_output_tokens=3))
        conversation = await client.create()
        await client.say(conversation, "Count\nplease")
        await client.over(conversation)
        first = await status(client, conversation)
        await client.say(conversation, "again")
        await parley_model.wait_until_held()
        running = await status(client, conversation)
        parley_model.release()
        await client.over(conversation)
        second = await status(client, conversation)

        def expected(state: str, at: Any, tokens: Any, owner: Any = None) -> Any:
            return {
                "state": state,
                "seq": at["seq"],
                "title": "Count",
                "cwd": str(client.raw.work),
                "model": MODEL,
                "updated_at": at["updated_at"],
                "questions": [],
                "tokens": tokens,
                "owner": owner,
            }

        spent = {
            "input_tokens": 100,
            "cached_input_tokens": 40,
            "output_tokens": 7,
            "reasoning_output_tokens": 0,
            "total_tokens": 107,
        }
        in_all = {
            "input_tokens": 300,
            "cached_input_tokens": 40,
            "output_tokens": 16,
            "reasoning_output_tokens": 3,
            "total_tokens": 316,
        }
        assert first == expected("idle", first, spent)
        owner = {"pid": client.raw.pid, "since": running["owner"]["since"]}
        assert running == expected("running", running, spent, owner)
        assert second == expected("idle", second, in_all)
        moments = [first["updated_at"], running["owner"]["since"], running["updated_at"], second["updated_at"]]
        assert moments == sorted(moments)
        assert first["seq"] < running["seq"] < second["seq"]


async def test_the_positions_of_status_read_and_stream_are_the_same(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, api="responses", version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.say(conversation, "go", message_id=MESSAGE)
        await client.over(conversation)
        page = await read(client, conversation)
        found = await status(client, conversation)
        _, snapshot = await client.open_stream(conversation)

        meta, state = snapshot["params"]["_meta"], snapshot["params"]["initial_state"]
        assert meta == {"conversationId": conversation, "seq": page["seq"]}
        assert found["seq"] == page["seq"]
        assert [at(one["_meta"]["seq"], one["msg"]) for one in state["events"]] == page["events"]
        assert [one["msg"] for one in page["events"]] == [
            TASK_STARTED,
            user_message("go", MESSAGE),
            agent_message("Done"),
            TOKEN_COUNT,
            task_complete("Done"),
        ]


async def test_the_status_of_an_unknown_conversation_is_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        unknown = client.call("conversationStatus", conversation_id=str(uuid4()))
        assert await client.read() == failed(unknown, "Conversation does not exist")

        no_id = client.call("conversationStatus", conversation_id="seven")
        assert await client.read() == failed(
            no_id,
            "Failed to parse arguments for conversationStatus: "
            'invalid value: string "seven", expected a uuid (conversation_id)',
        )
