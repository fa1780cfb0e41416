"""Several processes on one home: each client sees and steers every conversation, whichever process runs it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kit.running import PATIENCE_SECONDS
from kit.shell import sh
from parley.client import Answer, Conversation, Question, Stream, ToolFailed
from parley.client.stream import Event, ends_turn
from parley.testing import HOLD, ParleyProcess, Pieces, ScriptedModel
from parley.wire.events import (
    AgentMessage,
    AgentMessageDelta,
    ApprovalSettled,
    ErrorEvent,
    ExecCommandBegin,
    ExecCommandEnd,
    ExecCommandOutputDelta,
    TaskComplete,
    TaskStarted,
    UserMessage,
)
from parley.wire.ids import ItemId, Seq
from parley.wire.tools import Owner

ASKS: Any = {"approval_policy": "untrusted", "sandbox": "danger-full-access"}
RESTARTED = ErrorEvent(message="Turn interrupted: the server was restarted")
STOPPED = ErrorEvent(message="Turn interrupted: the server was stopped")
INTERRUPTED = ErrorEvent(message=" Turn interrupted")

Start = Callable[..., Awaitable[ParleyProcess]]


@pytest_asyncio.fixture
async def start(scripted_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts processes on one home."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> ParleyProcess:
            given = {"home": tmp_path / "home", **options}
            return await stack.enter_async_context(ParleyProcess(scripted_model, **given))

        async with asyncio.timeout(PATIENCE_SECONDS):
            yield make


class Asked:
    """A client that is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.taken_back = asyncio.Event()
        self._asked = asyncio.Event()
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def __call__(self, question: Question) -> Answer:
        assert isinstance(question.codex_command, tuple)
        self.commands.append(question.codex_command)
        self._asked.set()
        try:
            return await asyncio.shield(self._answer)
        except asyncio.CancelledError:
            self.taken_back.set()
            raise

    async def asked(self) -> None:
        await self._asked.wait()

    def answer(self, decision: Answer) -> None:
        self._answer.set_result(decision)


class Shown(NamedTuple):
    """What a client was shown, and where it stands; the pieces of what is being said put together."""

    msg: Event
    seq: Seq | UnsetType
    item: ItemId | UnsetType
    offset: int | UnsetType


async def turn_in(stream: Stream) -> list[Shown]:
    """All that is shown up to the end of a turn. What one reader gets in pieces another may get whole, but nothing
    may lie between the pieces."""
    shown: list[Shown] = []
    async for seen in stream.detailed():
        assert seen.meta is not None
        one = Shown(seen.msg, seen.meta.seq, seen.meta.item, seen.meta.offset)
        if shown and isinstance(one.item, str) and one.item == shown[-1].item:
            shown[-1] = _joined(shown[-1], one)
        else:
            shown.append(one)
        if ends_turn(seen.msg):
            return shown
    raise AssertionError("the stream has ended")


def _joined(first: Shown, second: Shown) -> Shown:
    msg: Event
    match first.msg, second.msg:
        case AgentMessageDelta(delta=before), AgentMessageDelta(delta=after):
            length, msg = len(before), AgentMessageDelta(delta=before + after)
        case ExecCommandOutputDelta(chunk=data), ExecCommandOutputDelta(chunk=more) as last:
            length, msg = len(data), replace(last, chunk=data + more)
        case _:
            raise AssertionError(f"{first} and {second} are of one item")
    assert isinstance(first.offset, int)
    assert second.offset == first.offset + length
    return first._replace(msg=msg)


def kept(shown: list[Shown]) -> list[Shown]:
    """What stays: whoever begins to follow when something has been said sees no pieces of it."""
    return [one for one in shown if one.item is UNSET]


async def until(stream: Stream, wanted: Callable[[Event], bool]) -> list[Event]:
    events: list[Event] = []
    async for event in stream:
        events.append(event)
        if wanted(event):
            return events
    raise AssertionError("the stream has ended")


def is_(kind: type) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, kind)


def said(events: list[Event]) -> list[str]:
    return [item.text for event in events if isinstance(event, UserMessage) for item in event.content]  # type: ignore[union-attr] # texts


async def owner_of(conversation: Conversation) -> int | None:
    owner = (await conversation.status()).owner
    return owner.pid if isinstance(owner, Owner) else None


async def log_of(conversation: Conversation) -> list[Event]:
    return [event.msg for event in (await conversation.read(limit=1000)).events]


# --- seeing ------------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_clients_of_two_processes_see_the_same_events_positions_and_offsets(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two, three = await start(), await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    scripted_model.says(
        Pieces("What shall I do? ", 3), HOLD, Pieces("I run it.", 2), sh("c1", "echo out; echo err >&2")
    )
    scripted_model.says("Done")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await scripted_model.holding()
        await until(second, is_(AgentMessageDelta))
        async with three.client.conversation(here.id).stream() as late, there.stream() as again:
            scripted_model.release()
            seen = [await turn_in(stream) for stream in (first, late, again)]
    pages = [await process.client.conversation(here.id).read() for process in (one, two, three)]

    assert seen == [seen[0]] * 3
    assert pages == [pages[0]] * 3
    assert [type(of.msg) for of in seen[0] if not isinstance(of.msg, ExecCommandOutputDelta)] == [
        TaskStarted,
        UserMessage,
        AgentMessageDelta,
        AgentMessage,
        ExecCommandBegin,
        ExecCommandEnd,
        AgentMessageDelta,
        AgentMessage,
        TaskComplete,
    ]


@pytest.mark.promises("keeping.shared", "keeping.loaded")
async def test_a_client_that_only_reads_is_woken_by_what_another_process_does(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    begun = (await there.read()).seq
    waiting = asyncio.create_task(there.read(after=begun, wait_seconds=30))
    scripted_model.says("Hello, ", HOLD, "world")
    await here.send("greet me")
    await scripted_model.holding()
    page = await waiting
    async with there.stream() as stream:
        await until(stream, is_(AgentMessageDelta))
        text = (await there.read()).open[0].text
        known = (await here.read()).seq
        same = await there.read(after=known)
        scripted_model.release()
        await stream.turn()

    assert [type(event.msg) for event in page.events] == [TaskStarted, UserMessage]
    assert (text, same.seq, same.state) == ("Hello, ", known, "running")


# --- steering ----------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_a_message_from_another_process_joins_the_turn_and_a_rename_is_known_to_all(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    scripted_model.says("First", HOLD)
    scripted_model.says("Second")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await scripted_model.holding()
        await there.send("and that")
        await two.client.call_tool("conversationRename", {"conversation_id": here.id, "title": "Our work"})
        owners = await owner_of(here), await owner_of(there)
        titles = (await here.status()).title, (await there.status()).title
        scripted_model.release()
        seen = await turn_in(first), await turn_in(second)

    assert seen[0] == seen[1]
    assert owners == (one.pid, one.pid)
    assert titles == ("Our work", "Our work")
    assert said([of.msg for of in seen[0]]) == ["go", "and that"]
    assert [one["content"] for one in scripted_model.requests[1].body["messages"][-2:]] == ["First", "and that"]


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_turn_is_interrupted_from_another_process(
    start: Start, scripted_model: ScriptedModel, how: str
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    scripted_model.says("First", HOLD)
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await scripted_model.holding()
        joined = await there.send("and that")
        if how == "interrupt":
            await there.interrupt()
        else:
            await joined.cancel()
        seen = await turn_in(first), await turn_in(second)

    assert seen[0] == seen[1]
    assert seen[0][-1].msg == INTERRUPTED


async def test_a_reply_in_another_process_joins_the_turn_and_both_calls_are_answered(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    scripted_model.says("First", HOLD)
    scripted_model.says("Second")
    calling = one.client.codex_reply(here.id, "go")
    await scripted_model.holding()
    events: list[Event] = []
    replying = two.client.codex_reply(here.id, "and that", on_event=events.append)
    async with here.stream() as stream:
        await until(stream, lambda event: said([event]) == ["and that"])
        scripted_model.release()
        results = await calling, await replying

    assert [result.content for result in results] == [results[0].content] * 2
    assert results[0].structured_content == {"sessionId": here.id, "message": "Second"}
    assert said(events) == ["and that"]
    assert events[-1] == TaskComplete(last_agent_message="Second")


@pytest.mark.promises("keeping.repeated")
async def test_the_same_message_through_two_processes_is_one(start: Start, scripted_model: ScriptedModel) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    first, second = str(uuid4()), str(uuid4())
    scripted_model.says("First", HOLD)
    await here.send("go", message_id=first)
    await scripted_model.holding()
    for conversation in (there, here, there):
        await conversation.send("go", message_id=first)
        await conversation.send("and that", message_id=second)
    with pytest.raises(ToolFailed, match="Message id was used for another message"):
        await there.send("something else", message_id=second)
    async with there.stream() as stream:
        scripted_model.release()
        await until(stream, is_(TaskComplete))
    for conversation in (there, here):
        await conversation.send("go", message_id=first)

    assert said(await log_of(here)) == ["go", "and that"]
    assert len(scripted_model.requests) == 2


@pytest.mark.promises("keeping.shared")
async def test_a_message_to_an_idle_conversation_is_run_by_the_process_that_got_it(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    owners: list[int | None] = []
    seen: list[list[Shown]] = []
    async with here.stream() as first, there.stream() as second:
        for conversation in (here, there, here, there):
            scripted_model.says("Working", HOLD)
            await conversation.send("go")
            await scripted_model.holding()
            owners.append(await owner_of(here))
            scripted_model.release()
            seen += [await turn_in(first), await turn_in(second)]

    assert owners == [one.pid, two.pid, one.pid, two.pid]
    assert list(map(kept, seen[0::2])) == list(map(kept, seen[1::2]))


# --- questions ---------------------------------------------------------------------------------


@pytest.mark.promises("keeping.shared")
async def test_clients_of_both_processes_are_asked_and_the_first_answer_counts(
    start: Start, scripted_model: ScriptedModel
) -> None:
    asked = Asked(), Asked()
    one, two = await start(on_question=asked[0]), await start(on_question=asked[1])
    here = await one.create(**ASKS)
    there = two.client.conversation(here.id)
    scripted_model.says(sh("c1", "echo ran >>ran"))
    scripted_model.says("Done")
    async with here.stream() as first, there.stream() as second:
        await here.send("go")
        await asked[0].asked()
        await asked[1].asked()
        (open_question,) = await two.client.approvals()
        asked[1].answer("approved")
        seen = await turn_in(first), await turn_in(second)
        await asked[0].taken_back.wait()

    settled = [of.msg for of in seen[1] if isinstance(of.msg, ApprovalSettled)]
    assert [(one.approval_id, one.decision, one.by) for one in settled] == [
        (open_question.approval_id, "approved", "client")
    ]
    assert seen[0] == seen[1]
    assert (one.work / "ran").read_text() == "ran\n"
    assert not asked[1].taken_back.is_set()


async def test_an_answer_by_tool_in_another_process_settles_it_once(
    start: Start, scripted_model: ScriptedModel
) -> None:
    asked = Asked()
    one, two = await start(on_question=asked), await start()
    here = await one.create(**ASKS)
    scripted_model.says(sh("c1", "echo ran >>ran"))
    async with here.stream() as stream:
        await here.send("go")
        await asked.asked()
        (question,) = await two.client.approvals(here.id)
        await two.client.answer(question.approval_id, "denied", reason="not now")
        await asked.taken_back.wait()
        for client in (two.client, one.client):
            with pytest.raises(ToolFailed, match="Question is settled: denied"):
                await client.answer(question.approval_id, "approved")
        await stream.turn()

    assert scripted_model.requests[-1].body["messages"][-1]["content"] == "exec command rejected by user: not now"
    assert not (one.work / "ran").exists()


async def test_somebody_who_can_be_asked_in_another_process_is_waited_for_and_nobody_is_not(
    start: Start, scripted_model: ScriptedModel
) -> None:
    asked = Asked()
    patience = "[approvals]\ntimeout_seconds = 1\n"
    one, two = await start(config=patience), await start(config=patience, on_question=asked)
    held, dropped = await one.create(**ASKS), await one.create(**ASKS)
    async with held.stream() as first, two.client.conversation(held.id).stream(), dropped.stream() as second:
        scripted_model.says(sh("c1", "touch ran"))
        await held.send("go")
        await asked.asked()
        scripted_model.says(sh("c2", "touch ran"))
        await dropped.send("go")
        nobody = (await until(second, is_(ApprovalSettled)))[-1]
        state = (await held.status()).state
        asked.answer("approved")
        somebody = (await until(first, is_(ApprovalSettled)))[-1]

    assert isinstance(nobody, ApprovalSettled)
    assert isinstance(somebody, ApprovalSettled)
    assert (nobody.decision, nobody.by, state) == ("timed_out", "timeout", "asking")
    assert (somebody.decision, somebody.by) == ("approved", "client")


# --- when a process goes -----------------------------------------------------------------------


@pytest.mark.promises("keeping.restarted", "keeping.taken-over", "keeping.repeated")
async def test_a_turn_whose_process_is_killed_is_ended_once_and_the_next_message_works(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two, three = await start(), await start(), await start()
    here = await one.create()
    others = [process.client.conversation(here.id) for process in (two, three)]
    message_id = str(uuid4())
    scripted_model.says("Half a", HOLD, " sentence")
    async with others[0].stream() as first, others[1].stream() as second:
        await here.send("go")
        await scripted_model.holding()
        replying = two.client.codex_reply(here.id, "and that")
        await until(first, lambda event: said([event]) == ["and that"])
        await others[1].send("and this", message_id=message_id)
        await until(first, lambda event: said([event]) == ["and this"])
        one.kill()
        result = await replying
        await others[0].send("and this", message_id=message_id)
        await until(first, is_(ErrorEvent))
        scripted_model.says("Again")
        await others[1].send("once more")
        seen = await turn_in(first), await until(second, is_(TaskComplete))
    log = await log_of(others[0])

    assert result.error == RESTARTED.message
    assert [event for event in log if isinstance(event, ErrorEvent)] == [RESTARTED]
    assert [event for event in seen[1] if isinstance(event, ErrorEvent)] == [RESTARTED]
    assert said(log) == ["go", "and that", "and this", "once more"]
    assert log[-1] == TaskComplete(last_agent_message="Again")
    assert seen[0][-1].msg == log[-1]


@pytest.mark.promises("keeping.asking", "keeping.taken-over")
async def test_a_question_whose_process_is_killed_is_asked_on_and_the_command_runs_once(
    start: Start, scripted_model: ScriptedModel
) -> None:
    asked = Asked(), Asked()
    one, two, three = await start(), await start(on_question=asked[0]), await start(on_question=asked[1])
    here = await one.create(**ASKS)
    others = [process.client.conversation(here.id) for process in (two, three)]
    scripted_model.says(sh("c1", "echo ran >>ran"))
    scripted_model.says("Done")
    async with others[0].stream() as first, others[1].stream() as second:
        await here.send("go")
        replying = two.client.codex_reply(here.id, "and that")
        await asked[0].asked()
        await asked[1].asked()
        one.kill()
        await one.exit_code()
        asked[1].answer("approved")
        seen = await turn_in(first), await turn_in(second)
        result = await replying

    assert kept(seen[0]) == kept(seen[1])
    assert [of.msg.decision for of in seen[0] if isinstance(of.msg, ApprovalSettled)] == ["approved"]
    assert seen[0][-1].msg == TaskComplete(last_agent_message="Done")
    assert result.structured_content == {"sessionId": here.id, "message": "Done"}
    assert (one.work / "ran").read_text() == "ran\n"
    assert len(scripted_model.requests) == 2


@pytest.mark.promises("lifecycle.stopped-turn")
@pytest.mark.parametrize("asks", [True, False])
async def test_a_process_that_stops_in_order_says_so_or_leaves_its_question_to_others(
    start: Start, scripted_model: ScriptedModel, asks: bool
) -> None:
    asked = Asked()
    one, two = await start(), await start(on_question=asked)
    here = await one.create(**ASKS)
    there = two.client.conversation(here.id)
    scripted_model.says(sh("c1", "touch ran") if asks else HOLD)
    async with there.stream() as stream:
        calling = one.client.codex_reply(here.id, "go")
        await (asked.asked() if asks else scripted_model.holding())
        one.terminate()
        result = await calling
        assert await one.exit_code() == 0
        if asks:
            asked.answer("approved")
        events = await stream.turn()

    assert result.error == STOPPED.message
    assert [event for event in events if isinstance(event, ErrorEvent)] == ([] if asks else [STOPPED])
    assert [event.decision for event in events if isinstance(event, ApprovalSettled)] == ["approved"] * asks


@pytest.mark.promises("lifecycle.stopped-turn")
async def test_nothing_changes_for_a_turn_when_a_process_that_follows_it_ends(
    start: Start, scripted_model: ScriptedModel
) -> None:
    asked = Asked(), Asked()
    one, two, three = await start(on_question=asked[0]), await start(on_question=asked[1]), await start()
    here = await one.create(**ASKS)
    scripted_model.says("Working", HOLD, sh("c1", "touch ran"))
    scripted_model.says("Done")
    async with here.stream() as stream:
        await here.send("go")
        await scripted_model.holding()
        await until(await two.client.conversation(here.id).stream(), is_(AgentMessageDelta))
        await until(await three.client.conversation(here.id).stream(), is_(AgentMessageDelta))
        replying = two.client.codex_reply(here.id, "and that")
        await until(stream, lambda event: said([event]) == ["and that"])
        three.kill()
        two.terminate()
        result = await replying
        assert await two.exit_code() == 0
        scripted_model.release()
        await asked[0].asked()
        asked[0].answer("approved")
        events = await stream.turn()

    assert result.error == STOPPED.message
    assert events[-1] == TaskComplete(last_agent_message="Done")
    assert [event for event in events if isinstance(event, ErrorEvent)] == []
    assert asked[1].commands == []


async def test_deleting_in_one_process_ends_the_streams_and_reads_of_the_others(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    delete: Any = {"conversation_id": here.id}
    scripted_model.says("Working", HOLD)
    async with here.stream() as stream:
        await here.send("go")
        await scripted_model.holding()
        refused = await two.client.call_tool("conversationDelete", delete)
        scripted_model.release()
        await stream.turn()
        waiting = asyncio.create_task(here.read(after=(await here.read()).seq, wait_seconds=30))
        await there.status()
        deleted = await two.client.call_tool("conversationDelete", delete)
        async for event in stream:
            raise AssertionError(event)
        with pytest.raises(ToolFailed, match="Conversation does not exist"):
            await waiting

    assert refused.structured_content == {"status": "error", "message": "A turn is running"}
    assert deleted.structured_content == {"status": "ok"}
    assert stream.disconnected == "Conversation deleted"
    for conversation in (here, there):
        with pytest.raises(ToolFailed, match="Session does not exist"):
            await conversation.send("go")
    assert (await one.client.list()).conversations == ()


@pytest.mark.long
@pytest.mark.promises("keeping.silent")
async def test_what_a_stopped_process_has_written_can_be_read_and_it_goes_on_later(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    scripted_model.says("Working", HOLD)
    await here.send("go")
    await scripted_model.holding()
    os.kill(one.pid, signal.SIGSTOP)
    try:
        page = await there.read()
        async with there.stream() as stream:
            os.kill(one.pid, signal.SIGCONT)
            scripted_model.release()
            events = await stream.turn()
    finally:
        os.kill(one.pid, signal.SIGCONT)

    assert ([type(event.msg) for event in page.events], page.state) == ([TaskStarted, UserMessage], "running")
    assert events[-1] == TaskComplete(last_agent_message="Working")
    assert [event for event in events if isinstance(event, ErrorEvent)] == []


@pytest.mark.long
@pytest.mark.promises("keeping.silent")
async def test_whoever_wants_something_of_a_stopped_process_is_told_so_in_the_end(
    start: Start, scripted_model: ScriptedModel
) -> None:
    one, two = await start(), await start()
    here = await one.create()
    there = two.client.conversation(here.id)
    scripted_model.says("Working", HOLD)
    async with there.stream() as stream:
        await here.send("go")
        await scripted_model.holding()
        await until(stream, is_(AgentMessageDelta))
        os.kill(one.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ToolFailed, match=f"process {one.pid} runs a turn of the conversation and does not"):
                await there.send("and that")
        finally:
            os.kill(one.pid, signal.SIGCONT)
        scripted_model.release()
        events = await stream.turn()

    assert isinstance(events[-1], TaskComplete)
