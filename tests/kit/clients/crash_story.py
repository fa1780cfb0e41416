"""One conversation over several servers that are killed, with a client that repeats its requests after each kill.

The first message runs a command that needs an approval; the others get short answers. Messages have ids, so the
client does not need to know which were accepted: it sends all of them again.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NoReturn, Self
from uuid import uuid4

import msgspec
from msgspec import UNSET, Raw, Struct

from kit.builders.entries import everything_in
from kit.clients.approving import ASKS_FIRST, ApprovingClient
from kit.clients.shell_turns import Gate, nothing_left_of, sh
from parley.conversation.log import Entry
from parley.conversation.projections import Projections
from parley.conversation.records import TurnEnded, record_type
from parley.conversation.state import Phase
from parley.ports.store import Query
from parley.stores.sqlite.store import SqliteStore
from parley.testing import RawParley, RecordedRequest, Reply, Says, ScriptedModel
from parley.wire.events import EVENT_TYPES
from parley.wire.ids import Seq
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import ConversationEvent, EventMeta, InitialState

__all__ = ["AGAIN", "RESTARTED", "RUN", "STOPPED", "RepeatingClient", "Story", "ends_in", "events_in"]

Said = tuple[str, str]
"""A message: its id and its text."""

RUN: Final[Said] = ("11111111-0000-4000-8000-000000000000", "Run it.")
AGAIN: Final[Said] = ("22222222-0000-4000-8000-000000000000", "And again?")
STILL: Final[Said] = ("33333333-0000-4000-8000-000000000000", "Still there?")

RESTARTED: Final = "Turn interrupted: the server was restarted"
STOPPED: Final = "Turn interrupted: the server was stopped"
LOST: Final = "The server stopped while this ran; it may have taken effect."
YES: Final = {"action": "accept", "content": {"decision": "approved"}}

WAIT_SECONDS: Final = 10


React = Callable[["RepeatingClient", Any], None]


class RepeatingClient(ApprovingClient):
    """A client that approves every request, and lets the command end after its first output."""

    def __init__(self, raw: RawParley, gate: Gate, react: React) -> None:
        super().__init__(raw, {"elicitation": {}})
        self._gate, self._react = gate, react
        self.asked: list[str] = []
        """The ids of the approvals that the client was asked for."""
        self.is_leaving = False
        """True if the server was asked to stop. The server may then refuse requests."""

    async def read(self) -> Any:
        message = await super().read()
        self._react(self, message)
        return message

    def react(self, message: Any) -> None:
        """Respond to a message of the server."""
        match message.get("method"):
            case "elicitation/create":
                self.asked.append(message["params"]["_meta"]["parley_approval_id"])
                self.answer(message["id"], YES)
            case "exec_command_output_delta":
                self._gate.open()
            case _:
                pass

    async def tell(self, *messages: Said) -> None:
        """Find or create the conversation, stream it, and send these messages, each after the turn before."""
        listed = await self.value_after(self.call("conversationsList"))
        known = [one["conversation_id"] for one in listed["conversations"]]
        conversation = known[0] if known else await self.create(**ASKS_FIRST)
        await self.until_answer(self.stream(conversation))
        for message_id, text in messages:
            await self.over(conversation)
            value = await self.value_after(self.message(conversation, text, message_id=message_id))
            assert value == {"status": "ok", "message_id": message_id}
        await self.over(conversation)

    async def value_of(self, request_id: int) -> Any:
        return await self.value_after(request_id)

    async def value_after(self, request_id: int) -> Any:
        result = (await self.until_answer(request_id))[-1]["result"]
        if result["isError"]:
            assert self.is_leaving, result
            await self.read_to_end()
        return result["structuredContent"]

    async def read_to_end(self) -> NoReturn:
        """Read until the server has ended. Raises EOFError then."""
        while True:
            await self.read()

    async def over(self, conversation: str) -> None:
        seen = await self.value_after(self.call("conversationStatus", conversation_id=conversation))
        while seen["state"] != "idle":
            wanted = {"after": seen["seq"], "wait_seconds": WAIT_SECONDS}
            seen = await self.value_after(self.call("conversationRead", conversation_id=conversation, **wanted))


class Story:
    """A model, a home, and the messages that clients were sent. Use `async with Story(directory)`."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self._directory = directory
        self._work = directory / "work"
        self._marker = uuid4().hex
        self.sent: dict[Seq, bytes] = {}
        """Every event with a position that a client was sent."""
        self.asked: list[str] = []
        """The ids of all approvals that a client was asked for."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._work.mkdir(parents=True)
            self.model = await stack.enter_async_context(ScriptedModel())
            self._gate = await stack.enter_async_context(Gate(self._work / "gate"))
            self.model.set_handler(self._reply)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _reply(self, request: RecordedRequest) -> Reply:
        messages = request.body["messages"]
        said = max(place for place, message in enumerate(messages) if message["role"] == "user")
        if messages[said]["content"] != RUN[1]:
            return Says(("Of ", "course."))
        if any(message["role"] == "tool" for message in messages[said:]):
            return Says(("It ", "ran."))
        script = f"export LEFT={self._marker}; echo once >> ran; echo said; read _ < gate; echo end"
        return Says(("Let me ", "see.", sh("c1", script)))

    async def live(self, raw: RawParley, *messages: Said, react: React | None = None) -> int:
        """Run one server until it ends or has nothing more to do, and return its exit code.

        `react` is called with every message instead of the method of the client.
        """
        client = RepeatingClient(raw, self._gate, react or RepeatingClient.react)
        async with raw:
            try:
                await client.initialize(FULL_VERSION)
                await client.tell(*messages)
                raw.close_stdin()
                await client.read_to_end()
            except EOFError:
                pass
            except msgspec.DecodeError:
                raw.frames.pop()  # half of the last message
            exit_code = await raw.exit_code()
        assert exit_code in (0, -signal.SIGKILL), raw.stderr_text()
        sent = places_in(raw.frames)
        assert {seq: msg for seq, msg in sent.items() if self.sent.get(seq, msg) != msg} == {}
        self.sent |= sent
        self.asked += client.asked
        return exit_code

    async def goes_on(self, words: str) -> None:
        """Start the next server, and check that it finds everything, ends the interrupted turn and continues.

        `words` is the message of the interrupted turn, if there is one.
        """
        await nothing_left_of(self._marker)
        before = await self.found()
        projections = folded(before)
        assert self.sent.items() <= events_in(before).items()
        asked_before = set(self.asked)
        self.asked.clear()

        raw = RawParley(self.model, home=self.home)
        exit_code = await self.live(raw, RUN, AGAIN, STILL)
        after = await kept_in(self.home)

        assert (exit_code, after[: len(before)]) == (0, before)
        assert [entry.seq for entry in after] == list(range(1, len(after) + 1))
        assert places_in(raw.frames) == events_in(after)
        self._check_turns(before, after, projections.state.phase, words)
        self._check_calls(before, projections)
        self._check_command(after)
        if projections.approvals.open is not None:
            assert self.asked == [projections.approvals.open.approval_id]
        assert len(asked_before | set(self.asked)) <= 1
        await nothing_left_of(self._marker)

    async def found(self) -> list[Entry]:
        """Read the log on disk from a copy, so that the next server is not affected."""
        with TemporaryDirectory(dir=self._directory) as copy:
            for file in self.home.glob("parley.db*"):
                shutil.copy(file, copy)
            return await kept_in(Path(copy))

    def _check_turns(self, before: list[Entry], after: list[Entry], phase: Phase, words: str) -> None:
        """Check that each message has one turn, and each turn one end."""
        said = [msgspec.json.decode(entry.encoded)["message_id"] for entry in after if entry.type == "user_message"]
        assert said == [message_id for message_id, _ in (RUN, AGAIN, STILL)]
        ends = [*ends_in(before), *(["restarted"] if phase is Phase.RUNNING else [])]
        assert ends_in(after) == ends + ["done"] * (len(said) - len(ends))
        cut = [end for end in ends if end != "done"]
        assert len(cut) <= 1
        counted = Counter(entry.type for entry in after)
        assert (counted["turn_started"], counted["task_complete"]) == (len(said), len(said) - len(cut))
        errors = [msgspec.json.decode(entry.encoded)["message"] for entry in after if entry.type == "error"]
        assert errors == [words] * len(cut)

    def _check_calls(self, before: list[Entry], projections: Projections) -> None:
        """Check that each call in the model request has one output, even if the output was lost."""
        messages = self.model.requests[-1].body["messages"]
        calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        outputs = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        assert list(outputs) == calls
        assert len(outputs) == sum(message["role"] == "tool" for message in messages)
        if projections.state.phase is Phase.RUNNING and projections.history.unanswered:
            assert outputs == {"c1": LOST}
        elif "stopped" not in ends_in(before) and calls:
            assert '"output":"said\\nend\\n"' in outputs["c1"]

    def _check_command(self, after: list[Entry]) -> None:
        """Check that the command ran at most once, and not before its begin event was stored."""
        place = self._work / "ran"
        lines = place.read_text().splitlines() if place.exists() else []
        types = {entry.type for entry in after}
        assert lines in ([], ["once"])
        if "exec_command_end" in types:
            assert lines == ["once"]
        if "exec_command_begin" not in types:
            assert lines == []


# --- messages to a client --------------------------------------------------------------


class _Notification(Struct):
    method: str = ""
    params: Raw = Raw(b"{}")


def places_in(frames: Iterable[bytes]) -> dict[Seq, bytes]:
    """Return every event with a position. Checks that the positions increase."""
    places: dict[Seq, bytes] = {}
    for frame in frames:
        sent = msgspec.json.decode(frame, type=_Notification)
        if sent.method in EVENT_TYPES:
            live = msgspec.json.decode(sent.params, type=ConversationEvent)
            _note(places, live.meta, live.msg)
        elif sent.method == InitialState.METHOD:
            assert not places
            for event in msgspec.json.decode(sent.params, type=InitialState).initial_state.events:
                _note(places, event.meta, event.msg)
    return places


def _note(places: dict[Seq, bytes], meta: object, msg: Raw) -> None:
    assert isinstance(meta, EventMeta)
    if meta.seq is not UNSET:
        assert meta.seq > max(places, default=0)
        places[meta.seq] = bytes(msg)


# --- the store -----------------------------------------------------------------------


async def kept_in(home: Path) -> list[Entry]:
    """Return the log of the only conversation of a home, empty if there is none. Checks that the database is
    intact."""
    store = SqliteStore(str(home))
    try:
        found = (await store.find(Query())).items
        entries = await everything_in(store, found[0].conversation_id) if found else []
    finally:
        await store.close()
    assert len(found) <= 1
    db = sqlite3.connect(home / "parley.db")
    damage = db.execute("PRAGMA integrity_check").fetchall()
    db.close()
    assert damage == [("ok",)]
    return entries


def events_in(entries: Iterable[Entry]) -> dict[Seq, bytes]:
    return {entry.seq: entry.encoded for entry in entries if entry.is_event}


def ends_in(entries: Iterable[Entry]) -> list[str]:
    """Return the reason for the end of each turn, in order."""
    ended = record_type(TurnEnded)
    return [msgspec.json.decode(entry.encoded, type=TurnEnded).why for entry in entries if entry.type == ended]


def folded(entries: Sequence[Entry]) -> Projections:
    projections = Projections()
    projections.replay(entries)
    return projections
