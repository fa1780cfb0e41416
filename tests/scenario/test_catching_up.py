"""Joining a conversation at any moment: one snapshot of the past, directly followed by live events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

from kit.builders.json import from_json
from kit.clients.messages import (
    EITHER_API,
    TASK_STARTED,
    agent_message,
    answered,
    delta,
    error,
    initial_state,
    item_name,
    live,
    refused,
    remains,
    spoken,
    taken_over,
    task_complete,
    user_message,
)
from kit.clients.view import View
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Call, Cut, Pieces, Says, ScriptedModel
from parley.testing.render import Api
from parley.testing.steps import Step
from parley.wire.ids import Seq
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION
from parley.wire.notifications import CodexEvent, ConversationEvent, StreamDisconnected

either_api = pytest.mark.parametrize("api", EITHER_API)

SENTENCE: Final = ("Grüße", ", ", "𝕎elt", ": ", "a ", "long ", "day ", "in\n", "one ", "line", ".")
"""Deltas with characters of different widths in UTF-8, because an offset counts code points."""

MESSAGE: Final = "7b0a5bb3-93ee-4a36-8d5e-6a2c4fd2b1f0"
OTHER_MESSAGE: Final = "8b0a5bb3-93ee-4a36-8d5e-6a2c4fd2b1f0"

FIRST, SECOND = item_name(1), item_name(2)


def held(*deltas: str) -> tuple[Step, ...]:
    """Return a reply that is held before each delta and before its end."""
    return (*(step for one in deltas for step in (HOLD, one)), HOLD)


async def released(client: WireClient) -> None:
    await client.model.wait_until_held()
    client.model.release()


def numbered(conversation: str, event: Any, seq: int) -> Any:
    """Build a live event for a client with positions."""
    meta = {"conversationId": conversation, "seq": seq}
    return {"jsonrpc": "2.0", "method": event["type"], "params": {"_meta": meta, "msg": event}}


def placed(conversation: str, text: str, *, item: str = FIRST, offset: int) -> Any:
    """Build a live delta for a client with positions."""
    meta = {"conversationId": conversation, "item": item, "offset": offset}
    return {"jsonrpc": "2.0", "method": "agent_message_delta", "params": {"_meta": meta, "msg": delta(text)}}


def positions(conversation: str, last: int, *events: Any) -> Any:
    """Build a snapshot for a client with positions."""
    return {
        "jsonrpc": "2.0",
        "method": "notifications/initial_state",
        "params": {
            "_meta": {"conversationId": conversation, "seq": last},
            "initial_state": {"events": list(events)},
        },
    }


def at(seq: int, event: Any) -> Any:
    return {"_meta": {"seq": seq}, "msg": event}


def so_far(text: str, *, item: str = FIRST) -> Any:
    return {"_meta": {"item": item, "offset": 0}, "msg": delta(text)}


# --- in the middle of a text -----------------------------------------------------------------


@pytest.mark.promises("catchup.mid-sentence", "catchup.no-gap")
@either_api
async def test_a_client_that_joins_after_any_delta_gets_the_text_so_far_and_then_the_rest(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says(*held(*SENTENCE))
        conversation = await client.create()
        await client.say(conversation, "speak")
        await parley_model.wait_until_held()
        _, first = await client.open_stream(conversation)
        joined, then = [], []
        for _ in SENTENCE:
            await released(client)
            then.append(await client.read())
            again = client.stream(conversation)
            joined.append((again, await client.take(3)))
        await released(client)
        rest = await client.until_method("task_complete")

        assert first == initial_state(conversation, TASK_STARTED)
        assert then == [live(delta(one)) for one in SENTENCE]
        assert joined == [
            (
                again,
                [
                    answered(again, {}),
                    taken_over(conversation),
                    initial_state(conversation, TASK_STARTED, delta("".join(SENTENCE[:number]))),
                ],
            )
            for number, (again, _) in enumerate(joined, start=1)
        ]
        assert rest == [live(event) for event in remains(api, "".join(SENTENCE))[1:]]


@pytest.mark.promises("stream.meta", "catchup.mid-sentence")
@pytest.mark.parametrize(("api", "version"), [("chat", PLAIN_VERSION), ("responses", FULL_VERSION)])
async def test_with_positions_each_delta_says_where_it_begins(
    parley_model: ScriptedModel, api: Api, version: str
) -> None:
    async with speaking(parley_model, api=api, version=version) as client:
        parley_model.says(*held(*SENTENCE))
        conversation = await client.create()
        await client.say(conversation, "speak", message_id=MESSAGE)
        await parley_model.wait_until_held()
        asked = {} if version == FULL_VERSION else {"event_meta": True}
        _, first = await client.open_stream(conversation, **asked)
        joined, then = [], []
        for _ in SENTENCE:
            await released(client)
            then.append(await client.read())
            client.stream(conversation, **asked)
            joined.append((await client.take(3))[2])
        await released(client)
        rest = await client.until_method("task_complete")

        # Records have positions too: the settings have position 1, and the start of the turn has position 2. The
        # record of the model request has position 5. It is written together with the entry after it.
        begun = [at(3, TASK_STARTED)]
        if version == FULL_VERSION:
            begun.append(at(4, user_message("speak", MESSAGE)))
        texts = ["".join(SENTENCE[:number]) for number in range(len(SENTENCE) + 1)]
        assert first == positions(conversation, 4, *begun)
        assert then == [
            placed(conversation, one, offset=len(text)) for text, one in zip(texts, SENTENCE, strict=False)
        ]
        assert joined == [positions(conversation, 4, *begun, so_far(text)) for text in texts[1:]]
        message, *end = remains(api, texts[-1])[1:]
        assert rest == [
            numbered(conversation, message, 6),
            *(numbered(conversation, event, seq) for seq, event in enumerate(end, start=8)),
        ]


@pytest.mark.promises("stream.after")
async def test_after_a_position_only_what_is_newer_comes_and_open_text_from_its_beginning(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("One")
        parley_model.says(HOLD, "Two ", HOLD, "more", HOLD)
        conversation = await client.create()
        await client.say(conversation, "first", message_id=MESSAGE)
        await client.over(conversation)
        await client.say(conversation, "second", message_id=OTHER_MESSAGE)
        await parley_model.wait_until_held()
        _, whole = await client.open_stream(conversation)
        last = whole["params"]["_meta"]["seq"]
        events = whole["params"]["initial_state"]["events"]

        async def from_every_position() -> list[Any]:
            snapshots = []
            for after in range(last + 1):
                client.stream(conversation, after=after)
                snapshots.append((await client.take(3))[2])
            return snapshots

        silent = await from_every_position()
        spoken_so_far, items = [], set()
        for _ in range(2):
            await released(client)
            items.add((await client.read())["params"]["_meta"]["item"])
            spoken_so_far.append(await from_every_position())

        assert [one["msg"] for one in events] == [
            TASK_STARTED,
            user_message("first", MESSAGE),
            agent_message("One"),
            task_complete("One"),
            TASK_STARTED,
            user_message("second", OTHER_MESSAGE),
        ]

        def expected(*open_text: Any) -> list[Any]:
            return [
                positions(conversation, last, *(one for one in events if one["_meta"]["seq"] > after), *open_text)
                for after in range(last + 1)
            ]

        [item] = items
        assert silent == expected()
        assert spoken_so_far == [expected(so_far("Two ", item=item)), expected(so_far("Two more", item=item))]


@pytest.mark.promises("stream.after")
async def test_after_works_without_positions_on_the_events(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("One")
        parley_model.says("Two ", HOLD, "more")
        conversation = await client.create()
        await client.say(conversation, "first")
        await client.over(conversation)
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
        await client.say(conversation, "second")
        await parley_model.wait_until_held()
        _, snapshot = await client.open_stream(conversation, after=status["seq"])
        parley_model.release()
        seen = await client.until_method("task_complete")

        begun, *rest = spoken("chat", "Two ", "more")
        got = [one["msg"] for one in snapshot["params"]["initial_state"]["events"]]
        # The first delta is either in the snapshot or after it.
        assert got in ([begun], [begun, delta("Two ")])
        assert snapshot == initial_state(conversation, *got)
        assert seen == [*map(live, rest[len(got) - 1 :])]


@pytest.mark.promises("stream.after-end")
async def test_a_position_beyond_the_end_is_refused_and_leaves_the_open_stream_alone(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        request = client.stream(conversation, after=2)
        answer = await client.read()
        await client.say(conversation, "go")
        seen = await client.until_method("task_complete")

        assert answer == refused(
            request,
            "Failed to parse arguments for conversationStream: after is 2, but the conversation ends at 1",
        )
        assert seen == [*map(live, spoken("chat", "Done"))]


@pytest.mark.promises("stream.meta", "stream.after")
async def test_positions_rise_and_a_client_can_continue_from_each_of_them(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("Let me ", "look.", Call("no_such_tool", {}, call_id="c1"))
        parley_model.says("Found ", "nothing.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        seen = await client.until_method("task_complete")
        events = {
            one["params"]["_meta"]["seq"]: one["params"]["msg"] for one in seen if "seq" in one["params"]["_meta"]
        }
        snapshots = []
        for seq in events:
            client.stream(conversation, after=seq)
            snapshots.append((await client.take(3))[2])

        assert list(events) == sorted(events)
        begun, said, look, found, done = (numbered(conversation, event, seq) for seq, event in events.items())
        assert seen == [
            begun,
            said,
            placed(conversation, "Let me ", offset=0),
            placed(conversation, "look.", offset=7),
            look,
            placed(conversation, "Found ", item=SECOND, offset=0),
            placed(conversation, "nothing.", item=SECOND, offset=6),
            found,
            done,
        ]
        last = max(events) + 1  # the end of the turn is a record after its last event
        assert snapshots == [
            positions(conversation, last, *(at(seq, event) for seq, event in events.items() if seq > after))
            for after in events
        ]


# --- finished and discarded items -------------------------------------------------


@pytest.mark.promises("catchup.mid-sentence", "catchup.finished-alone")
@either_api
async def test_a_client_that_joins_in_the_second_text_gets_the_first_one_complete(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        parley_model.says("Let me ", "look.", Call("no_such_tool", {}, call_id="c1"))
        parley_model.says("I see ", HOLD, "nothing.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until(lambda message: message == live(delta("I see ")))
        client.stream(conversation)
        joined = (await client.take(3))[2]
        parley_model.release()
        rest = await client.until_method("task_complete")

        *first, _ = remains(api, "Let me look.")
        assert joined == initial_state(conversation, *first, delta("I see "))
        assert rest == [live(delta("nothing.")), *map(live, remains(api, "I see nothing.")[1:])]


@pytest.mark.promises("catchup.void")
async def test_text_that_an_interrupt_cut_off_is_not_in_the_snapshot(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Never ", HOLD, "finished")
        parley_model.says("Whole")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.take(2)
        interrupt = client.call("conversationInterrupt", conversation_id=conversation)
        interrupted = await client.take(2)
        await client.say(conversation, "again")
        after = await client.until_method("task_complete")
        client.stream(conversation)
        joined = (await client.take(3))[2]

        assert interrupted == [answered(interrupt, {"status": "ok"}), live(error(" Turn interrupted"))]
        assert after == [*map(live, spoken("chat", "Whole"))]
        assert joined == initial_state(
            conversation, TASK_STARTED, error(" Turn interrupted"), *remains("chat", "Whole")
        )


@pytest.mark.promises("catchup.void", "failures.turns")
@either_api
async def test_text_of_a_broken_attempt_is_void_and_the_next_begins_anew(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, stream_max_retries=1) as client:
        parley_model.queue(Cut(steps=("Half a ",), how="reset"))
        parley_model.says("A whole ", HOLD, "sentence")
        conversation = await client.create()
        await client.open_stream(conversation, event_meta=True)
        await client.say(conversation, "go")
        seen = await client.until(lambda message: message["params"]["msg"] == delta("A whole "))
        client.stream(conversation)
        joined = (await client.take(3))[2]
        parley_model.release()
        rest = await client.until_method("task_complete")

        started, *deltas, retry, again = seen
        assert deltas == [placed(conversation, "Half a ", offset=0)]
        assert retry["method"] == "background_event"
        assert again == placed(conversation, "A whole ", item=SECOND, offset=0)
        assert joined == initial_state(
            conversation, started["params"]["msg"], retry["params"]["msg"], delta("A whole ")
        )
        assert rest == [live(delta("sentence")), *map(live, remains(api, "A whole sentence")[1:])]


# --- repeated streams ------------------------------------------------------------------------

ROUNDS: Final = 25
REPLIES: Final = 3


def stuttering(number: int) -> Says:
    """Return replies of many small pieces that are sometimes held. All replies except the last end with a call."""
    steps: list[Step] = []
    for one in range(ROUNDS):
        steps += [Pieces(f"Reply {number}, round {one}: äöü and 𝕎 in pieces. ", 3), HOLD]
    return Says((*steps, Call("no_such_tool", {}, call_id=f"c{number}")) if number < REPLIES else tuple(steps))


def shown_by(messages: list[Any], streams: Iterable[int]) -> dict[int, list[Any]]:
    """Return the messages of each stream, without the messages of a `codex` call."""
    shown: dict[int, list[Any]] = {}
    present: list[Any] = []
    for message in messages:
        if message.get("id") in streams:
            assert message == answered(message["id"], {})
            present = shown[message["id"]] = []
        elif "id" in message or message["method"] == StreamDisconnected.METHOD:
            continue
        elif "requestId" not in message["params"]["_meta"]:
            present.append(message["params"])
    return shown


def view_of(snapshot: Any, *live_events: Any) -> View:
    view = View()
    for one in snapshot["initial_state"]["events"]:
        view.take(from_json(ConversationEvent, one))
    view.reached(Seq(snapshot["_meta"]["seq"]))
    for one in live_events:
        view.take(from_json(ConversationEvent, one))
    return view


@pytest.mark.promises("catchup.no-gap")
@either_api
async def test_a_client_that_pauses_and_resumes_often_sees_the_same_as_a_permanent_one(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api, version=FULL_VERSION) as client:
        for number in range(1, REPLIES + 1):
            parley_model.queue(stuttering(number))
        call = client.call("codex", prompt="go")  # this client is always connected
        configured = await client.read()
        conversation = configured["params"]["msg"]["session_id"]
        messages: list[Any] = []
        streams: dict[int, int] = {}
        cancelled: set[int] = set()
        for number in range(ROUNDS * REPLIES):
            await parley_model.wait_until_held()
            with client.at_once():
                if streams and number % 2:
                    cancelled.add(max(streams))
                    client.cancel(max(streams))
                after = number % 5
                present = client.stream(conversation, after=after)
            streams[present] = after
            parley_model.release()
            if number % 4:
                messages += await client.until_answer(present)
        if not any(
            message.get("id") == call for message in messages
        ):  # the turn may end before the last stream is opened
            messages += await client.until_answer(call)
        messages += await client.meanwhile()
        client.stream(conversation)
        _, _, end = await client.take(3)

        codex_events = [one["params"]["msg"] for one in messages if one.get("method") == CodexEvent.METHOD]
        whole = view_of(end["params"]).events
        assert list(whole.values()) == [event for event in codex_events if not event["type"].endswith("_delta")]
        texts = {seq: event["message"] for seq, event in whole.items() if event["type"] == "agent_message"}
        shown = shown_by(messages, streams)
        views = {stream: view_of(*its) for stream, its in shown.items() if its}
        assert list(shown) == list(streams)
        # the stream was cancelled before its snapshot, so it has no messages
        assert set(shown) - set(views) <= cancelled
        for stream, view in views.items():
            missed = {seq: event for seq, event in whole.items() if seq > view.position}
            assert {**view.events, **missed} == {
                seq: event for seq, event in whole.items() if seq > streams[stream]
            }
            for kind, text in view.open.values():
                becomes = next(text for seq, text in texts.items() if seq > view.position)
                assert (kind, becomes[: len(text)]) == ("agent_message_delta", text)
        last = views[max(streams)]  # a snapshot after the end of the turn also counts the record of the end
        assert max(whole) <= last.position <= end["params"]["_meta"]["seq"]
        assert last.open == {}
