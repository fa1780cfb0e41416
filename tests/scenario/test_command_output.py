"""The output of a command: live, for clients that join, for later clients, and for slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import pytest

from kit.builders.json import from_json
from kit.clients.codex_calls import events_in, is_event
from kit.clients.codex_calls import speaking as calling
from kit.clients.messages import (
    TASK_STARTED,
    agent_message,
    answered,
    delta,
    error,
    initial_state,
    item_name,
    taken_over,
    task_complete,
)
from kit.clients.shell_turns import (
    CHUNK_BYTES,
    TIMEOUT_SECONDS,
    Gate,
    begun,
    ended,
    gathered,
    numbered,
    output,
    sh,
    without_duration,
)
from kit.clients.slow_client import SlowClient
from kit.clients.view import View
from kit.clients.wire_client import BaseClient, speaking
from kit.system.commands import marked
from parley.testing import HOLD, ScriptedModel
from parley.wire.ids import ItemId, Seq
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import ConversationEvent

MEGABYTE: Final = 1024 * 1024

KEPT_BYTES: Final = 64 * 1024
"""The number of bytes of each stream that are stored from its beginning and from its end."""
PREVIEW_BYTES: Final = 8192
"""The number of bytes from the beginning and from the end that a client gets that connects later."""

FIRST, SECOND = ItemId(item_name(1)), ItemId(item_name(2))

OUT, ERR = numbered("o", 25_000), numbered("e", 25_000)
LOUD: Final = "seq -f o%06.0f 25000; seq -f e%06.0f 25000 >&2"
"""A script that writes 200 KB to each stream, one stream after the other."""

Pieces = Sequence[tuple[int, bytes]]
"""The offset and the bytes of each piece of a stream."""


def pieces(data: bytes, *, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Return a part of a stream in pieces, as a client that was not connected gets it."""
    end = len(data) if end is None else end
    for at in range(begin, end, CHUNK_BYTES):
        yield at, data[at : min(at + CHUNK_BYTES, end)]


def shown(data: bytes) -> list[tuple[int, bytes]]:
    """Return the part of a long stream that a snapshot contains."""
    return [(0, data[:PREVIEW_BYTES]), (len(data) - PREVIEW_BYTES, data[-PREVIEW_BYTES:])]


def stored_pieces(data: bytes) -> list[tuple[int, bytes]]:
    """Return the stored part of a long stream."""
    return [*pieces(data, end=KEPT_BYTES), *pieces(data, begin=len(data) - KEPT_BYTES)]


def joined(stream: Pieces) -> bytes:
    """Return a stream without missing pieces."""
    data = b""
    for begin, piece in stream:
        assert begin == len(data)
        data += piece
    return data


def cut(data: bytes) -> str:
    """Return the part of many lines of eight bytes that the end event contains."""
    return data[: 8 * 256].decode()


def viewed(*messages: Iterable[Any], view: View | None = None) -> View:
    """Return the view of a client that was sent these messages. Fail if the messages are inconsistent."""
    view = view or View()
    for message in (one for some in messages for one in some if "method" in one):
        if message["method"] == "notifications/initial_state":
            for one in message["params"]["initial_state"]["events"]:
                view.take(from_json(ConversationEvent, one))
            view.reached(Seq(message["params"]["_meta"]["seq"]))
        else:
            view.take(from_json(ConversationEvent, message["params"]))
    return view


def snapshot_events(snapshot: Any) -> list[Any]:
    return [one["msg"] for one in snapshot["params"]["initial_state"]["events"]]


async def until_said(client: BaseClient, size: int) -> list[Any]:
    """Return all messages until a command has written this many bytes."""
    messages: list[Any] = []
    while size > 0:
        messages.append(await client.read())
        size -= len(messages[-1]["params"]["msg"].get("chunk", ()))
    return messages


async def running(client: BaseClient, size: int) -> tuple[str, Any, list[Any]]:
    """Start a streamed conversation whose command has written this many bytes.

    Return its id, the snapshot, and the messages after the snapshot.
    """
    conversation = await client.create()
    _, snapshot = await client.open_stream(conversation)
    await client.say(conversation, "go")
    return conversation, snapshot, await until_said(client, size)


async def read(client: BaseClient, conversation: str, **arguments: Any) -> Any:
    return await client.value_of(client.call("conversationRead", conversation_id=conversation, **arguments))


async def until_open(client: BaseClient, conversation: str, *ends: str) -> Any:
    """Wait until the open output of a command ends with these texts, and return the page."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            page = await read(client, conversation)
            texts = [one["text"] for one in page["open"]]
            if all(any(text.endswith(end) for text in texts) for end in ends):
                return page


# --- live ----------------------------------------------------------------------------------


@pytest.mark.promises("output.live")
async def test_output_comes_while_the_command_runs_in_pieces_that_say_where_they_begin(
    parley_model: ScriptedModel,
) -> None:
    out, err = numbered("o", 7500), numbered("e", 7500)
    parley_model.says(sh("c1", "seq -f o%06.0f 7500; read _ < gate; seq -f e%06.0f 7500 >&2"))
    async with speaking(parley_model, version=FULL_VERSION) as client, Gate(client.work / "gate") as gate:
        conversation, nothing, before = await running(client, len(out))
        gate.open()
        after = await client.until_method("task_complete")

        said = [one["params"] for one in (*before, *after) if one["method"] == "exec_command_output_delta"]
        seen = viewed([nothing], before, after).output
        assert {item: joined(stream) for item, stream in seen.items()} == {FIRST: out, SECOND: err}
        assert max(len(data) for stream in seen.values() for _, data in stream) <= CHUNK_BYTES
        assert said == [
            {
                "_meta": {"conversationId": conversation, "item": item, "offset": offset},
                "msg": output("c1", data, stream=stream),
            }
            for item, stream in ((FIRST, "stdout"), (SECOND, "stderr"))
            for offset, data in seen[item]
        ]


async def test_a_codex_call_and_a_stream_of_its_conversation_see_the_same_output(
    parley_model: ScriptedModel,
) -> None:
    first, second = numbered("o", 3000), numbered("p", 3000)
    script = "seq -f o%06.0f 3000; read _ < gate; seq -f p%06.0f 3000"
    parley_model.says("Look: ", HOLD, sh("c1", script))
    async with calling(parley_model) as wire, Gate(wire.work / "gate") as gate:
        wire.codex(1, "go")
        begin = await wire.until(is_event("agent_message_delta"))
        wire.stream(2, wire.sessions[0])
        begin += await wire.answer(2)
        parley_model.release()
        gate.open()
        messages = [*begin, *await wire.answer(1), *await wire.silence()]

        received = [one for one in messages if one.get("params", {}).get("_meta") == {"requestId": 1}]
        streamed = [one for one in messages if list(one.get("params", {})) == ["msg"]]
        assert received[1::2] == [{**one, "method": one["params"]["msg"]["type"]} for one in received[::2]]
        assert gathered(events_in(received))[4:] == [
            begun("c1", "sh", "-c", script, cwd=wire.work),
            output("c1", first + second),
            ended("c1", cut(first + second)),
            *(delta("Done"), agent_message("Done"), task_complete("Done")),
        ]
        assert gathered(one["params"]["msg"] for one in streamed) == gathered(events_in(received))[3:]


# --- joining -------------------------------------------------------------------------------


@pytest.mark.promises("output.live")
async def test_a_joining_client_gets_the_output_so_far_and_then_exactly_the_rest(
    parley_model: ScriptedModel,
) -> None:
    first, second = numbered("o", 1500), numbered("p", 2000)
    script = "seq -f o%06.0f 1500; read _ < gate; seq -f p%06.0f 2000"
    parley_model.says(sh("c1", script))
    async with speaking(parley_model) as client, Gate(client.work / "gate") as gate:
        conversation, _, _ = await running(client, len(first))
        request = client.stream(conversation)
        joining = await client.take(3)
        gate.open()
        rest = await client.until_method("task_complete")

        begin = begun("c1", "sh", "-c", script, cwd=client.work)
        so_far = [output("c1", data) for _, data in pieces(first)]
        assert joining == [
            answered(request, {}),
            taken_over(conversation),
            initial_state(conversation, TASK_STARTED, begin, *so_far),
        ]
        assert gathered(one["params"]["msg"] for one in rest) == [
            output("c1", second),
            ended("c1", cut(first + second)),
            *(delta("Done"), agent_message("Done"), task_complete("Done")),
        ]


@pytest.mark.promises("output.snapshot")
async def test_a_late_client_gets_the_beginning_and_the_end_and_then_exactly_the_rest(
    parley_model: ScriptedModel,
) -> None:
    first, second = numbered("o", 7500), numbered("p", 1000)
    parley_model.says(sh("c1", "seq -f o%06.0f 7500; read _ < gate; seq -f p%06.0f 1000"))
    async with speaking(parley_model, version=FULL_VERSION) as client, Gate(client.work / "gate") as gate:
        conversation, nothing, before = await running(client, len(first))
        client.stream(conversation)
        _, _, snapshot = await client.take(3)
        gate.open()
        rest = await client.until_method("task_complete")

        always, late = viewed([nothing], before, rest), viewed([snapshot], rest)
        followed = [(at, data) for at, data in always.output[FIRST] if at >= len(first)]
        assert late.events == always.events
        assert joined(always.output[FIRST]) == first + second
        assert late.output[FIRST] == shown(first) + followed


async def test_a_reconnecting_client_gets_the_output_of_a_running_command_from_the_beginning(
    parley_model: ScriptedModel,
) -> None:
    first, second = numbered("o", 1000), numbered("p", 1000)
    parley_model.says(sh("c1", "seq -f o%06.0f 1000; read _ < gate; seq -f p%06.0f 1000"))
    async with speaking(parley_model, version=FULL_VERSION) as client, Gate(client.work / "gate") as gate:
        conversation = await client.create()
        stream, nothing = await client.open_stream(conversation)
        await client.say(conversation, "go")
        view = viewed([nothing], await until_said(client, len(first)))
        client.cancel(stream)
        _, snapshot = await client.open_stream(conversation, after=view.resume())
        gate.open()
        rest = await client.until_method("task_complete")

        viewed([snapshot], rest, view=view)
        assert snapshot["params"]["initial_state"]["events"] == [
            {"_meta": {"item": FIRST, "offset": 0}, "msg": output("c1", first)}
        ]
        assert {item: joined(stream) for item, stream in view.output.items()} == {FIRST: first + second}


# --- joining after the end ---------------------------------------------------------------------


@pytest.mark.promises("output.snapshot")
async def test_a_snapshot_has_the_beginning_and_the_end_of_each_stream_before_the_end_event(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(sh("c1", LOUD))
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.say(conversation, "go")
        await client.over(conversation)
        _, plain = await client.open_stream(conversation)
        client.stream(conversation, event_meta=True)
        _, _, full = await client.take(3)

        events = snapshot_events(plain)
        assert plain == initial_state(conversation, *events)
        assert [*map(without_duration, events)] == [
            TASK_STARTED,
            begun("c1", "sh", "-c", LOUD, cwd=client.work),
            *(output("c1", data) for _, data in shown(OUT)),
            *(output("c1", data, stream="stderr") for _, data in shown(ERR)),
            ended("c1", cut(OUT), cut(ERR)),
            *(agent_message("Done"), task_complete("Done")),
        ]
        assert snapshot_events(full) == events
        assert viewed([full]).output == {FIRST: shown(OUT), SECOND: shown(ERR)}


@pytest.mark.promises("output.read")
async def test_all_that_is_kept_of_a_command_can_be_read_at_once_and_in_pages(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(sh("c1", LOUD))
    async with speaking(parley_model) as client:
        conversation = await client.create()
        await client.say(conversation, "go")
        await client.over(conversation)
        whole = await read(client, conversation)
        pages: list[Any] = []
        while not pages or pages[-1]["seq"] < whole["seq"]:
            after = pages[-1]["seq"] if pages else 0
            pages.append(await read(client, conversation, after=after, limit=2))

        end = whole["events"][-3]["msg"]
        assert without_duration(end) == ended("c1", cut(OUT), cut(ERR))
        assert whole == {
            "events": [
                {"seq": 3, "msg": TASK_STARTED},
                {"seq": 7, "msg": begun("c1", "sh", "-c", LOUD, cwd=client.work)},
                *(
                    {"seq": 8, "item": item, "offset": at, "msg": output("c1", piece, stream=stream)}
                    for item, stream, data in ((FIRST, "stdout", OUT), (SECOND, "stderr", ERR))
                    for at, piece in stored_pieces(data)
                ),
                {"seq": 9, "msg": end},
                {"seq": 12, "msg": agent_message("Done")},
                {"seq": 14, "msg": task_complete("Done")},
            ],
            "open": [],
            "seq": 15,
            "state": "idle",
        }
        assert [event for page in pages for event in page["events"]] == whole["events"]
        assert len(pages) > 2


@pytest.mark.promises("output.read")
async def test_output_of_a_running_command_can_be_read(parley_model: ScriptedModel) -> None:
    parley_model.says(sh("c1", f"{LOUD}; read _ < gate"))
    async with speaking(parley_model) as client, Gate(client.work / "gate") as gate:
        conversation = await client.create()
        await client.say(conversation, "go")
        page = await until_open(client, conversation, "o025000\n", "e025000\n")
        gate.open()
        await client.over(conversation)

        assert (page["state"], page["open"]) == (
            "running",
            [
                {
                    "item": item,
                    "type": "exec_command_output_delta",
                    "text": data[offset:][:KEPT_BYTES].decode(),
                    "call_id": "c1",
                    "stream": stream,
                    "offset": offset,
                }
                for item, stream, data in ((FIRST, "stdout", OUT), (SECOND, "stderr", ERR))
                for offset in (0, len(data) - KEPT_BYTES)
            ],
        )


@pytest.mark.promises("output.interrupt")
async def test_after_an_interrupt_the_output_comes_before_the_error_and_the_processes_are_gone(
    parley_model: ScriptedModel,
) -> None:
    out, marker = numbered("o", 7500), uuid4().hex
    script = f"sh -c 'sleep 1000; :' {marker} & seq -f o%06.0f 7500; sh -c 'sleep 1000; :' {marker}"
    parley_model.says(sh("c1", script))
    async with speaking(parley_model) as client:
        conversation, _, seen = await running(client, len(out))
        interrupt = client.call("conversationInterrupt", conversation_id=conversation)
        rest = await client.until_method("error")
        left = marked(marker)
        client.stream(conversation)
        _, _, snapshot = await client.take(3)
        whole = await read(client, conversation)

        begin, end = begun("c1", "sh", "-c", script, cwd=client.work), error(" Turn interrupted")
        assert answered(interrupt, {"status": "ok"}) in rest
        events = [one["params"]["msg"] for one in (*seen, *rest) if "method" in one]
        assert gathered(events) == [TASK_STARTED, begin, output("c1", out), end]
        assert snapshot_events(snapshot) == [
            TASK_STARTED,
            begin,
            *(output("c1", data) for _, data in shown(out)),
            end,
        ]
        assert [event["msg"] for event in whole["events"]] == [
            TASK_STARTED,
            begin,
            *(output("c1", data) for _, data in pieces(out)),
            end,
        ]
        assert left == []


# --- slow clients ------------------------------------------------------------------------------


PATIENCES: Final = 6
"""The factor for the usual timeout. A slow computer may need this much time for a hundred megabytes of output."""


async def until_holding(model: ScriptedModel) -> None:
    for _ in range(PATIENCES - 1):
        try:
            return await model.wait_until_held()
        except TimeoutError:
            pass  # many messages precede it
    return await model.wait_until_held()


@pytest.mark.promises("output.slow")
async def test_a_client_that_does_not_read_delays_no_command_and_sees_a_gap(
    parley_model: ScriptedModel,
) -> None:
    size = 100 * MEGABYTE
    async with SlowClient(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        parley_model.says(sh("c1", "true"))
        await client.say(conversation, "warm up")
        await client.over(conversation)
        _, nothing = await client.open_stream(conversation)
        before = client.memory()
        parley_model.says(sh("c2", f"yes 1234567 | head -c {size}; echo over >&2", timeout=100_000))
        parley_model.says("And ", HOLD, "more.")
        client.message(conversation, "go")
        await until_holding(parley_model)  # the command has ended, and the client has read none of its output
        grown = client.most_memory() - before
        parley_model.release()
        seen = await client.until_method("task_complete")
        client.stream(conversation)
        _, _, snapshot = await client.take(3)

        slow, later = viewed([nothing], seen), viewed([snapshot])
        out, err = slow.output.values()
        ends = [at + len(data) for at, data in out]  # a read may return less than a complete piece
        gap = next(place for place, (at, _) in enumerate(out) if place and at > ends[place - 1])
        assert grown < 16 * MEGABYTE
        assert slow.events == later.events
        first = joined(out[:gap])
        assert first == (b"1234567\n" * (len(first) // 8 + 1))[: len(first)]
        last = b"1234567\n" * (KEPT_BYTES // 8)
        assert out[gap:] == [(size - KEPT_BYTES + at, data) for at, data in pieces(last)]
        assert err == [(0, b"over\n")]
