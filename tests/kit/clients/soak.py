"""A client with many random conversations, each of which is compared with its log.

Streams are opened, closed, taken over and read from any position, and the client sometimes stops reading. At the
end, all readers must have received the same events.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random, SystemRandom
from typing import Any, Final
from uuid import UUID

import msgspec

from kit.builders.json import from_json
from kit.clients.messages import APIS, answered, turn_value, user_message
from kit.clients.slow_client import SlowClient
from kit.clients.view import View
from kit.models.random_model import AT_LENGTH, LET_ME_SEE, LONG_TEXT, RandomModel
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.log import DISCARDS_OPEN, ENDS
from parley.testing import ScriptedModel
from parley.testing.home import MODEL
from parley.wire.ids import Seq
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import CodexEvent, ConversationEvent, InitialState, StreamDisconnected

__all__ = [
    "SLACK_BYTES",
    "TIMEOUT_SECONDS",
    "Calling",
    "Size",
    "Soaked",
    "Soaking",
    "new_seed",
    "stints",
]

SEED_VARIABLE: Final = "PARLEY_SOAK_SEED"
"""The environment variable with the seed.

The value that a failed run printed repeats this run as far as possible.
"""

AT_ONCE: Final = 40
"""The number of concurrent conversations."""
STEPS: Final = 6
"""The number of operations in one period of a conversation."""
PAUSES: Final = 1
"""The number of times in one period that the client stops reading while a long answer is sent."""

BYTES_AN_ENTRY: Final = 384
"""An upper bound for the memory of an entry without its text, in bytes. A turn has about ten entries."""
BYTES_A_TURN: Final = 1024
"""An upper bound for the memory of a turn in addition to its entries, in bytes.

It covers the history and the settings.
"""
COPIES: Final = 3
"""The number of copies of a text in memory: in an event, in a record, and in the history."""
SLACK_BYTES: Final = 8 * 1024 * 1024
"""The free memory that the allocator may keep, in bytes.

A leak of two hundred bytes per request would exceed it.
"""

INTERRUPTED: Final = " Turn interrupted"


def new_seed() -> str:
    """Return a new seed, or the one in the environment variable."""
    seed = os.environ.get(SEED_VARIABLE) or str(SystemRandom().getrandbits(32))
    print(f"{SEED_VARIABLE}={seed}")
    return seed


class Reading:
    """One reader of a conversation and the view that it has built."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.changed = asyncio.Event()

    def take(self, sent: Any) -> None:
        msg = sent["msg"]
        if msg["type"] in ENDS:
            ended = msg.get("message", msg.get("text"))
            for kind, so_far in self.view.open.values():
                assert kind != ENDS[msg["type"]].value or ended.startswith(so_far), (so_far, msg)
        self.view.take(from_json(ConversationEvent, sent))
        self.changed.set()

    async def reach(self, seq: int) -> None:
        while self.view.position < seq:
            self.changed.clear()
            await self.changed.wait()


class Calling:
    """A `codex` or `codex-reply` call and the events that it received."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.events: list[Any] = []
        self.cut_short = 0
        """The number of texts whose final event came before all of their deltas."""
        self._pair: Any = None
        self._so_far: dict[str, str] = {}

    def take(self, method: str, params: Any) -> None:
        if method == CodexEvent.METHOD:
            assert self._pair is None
            self._pair = params
            return
        assert (self._pair, method) == (params, params["msg"]["type"])
        self._pair = None
        msg = params["msg"]
        if method.endswith("_delta"):
            self._so_far[method] = self._so_far.get(method, "") + msg["delta"]
            return
        if method in ENDS:
            text, so_far = msg.get("message", msg.get("text")), self._so_far.pop(ENDS[method].value, "")
            assert text.startswith(so_far)
            self.cut_short += text != so_far
        elif method in DISCARDS_OPEN:
            self._so_far.clear()
        self.events.append(msg)


class Soaking(SlowClient):
    """The client: passes every message to the reader, call or request that it belongs to."""

    def __init__(self, model: ScriptedModel, *, config: str = "") -> None:
        super().__init__(model, version=FULL_VERSION, request_max_retries=1, stream_max_retries=1, config=config)
        self.counts: Counter[str] = Counter()
        self.streams: dict[str, Reading] = {}
        """The current reader of each conversation."""
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.unanswered: set[str] = set()
        """The ids of messages that were sent and not answered."""
        self._opening: dict[int, tuple[str, Reading]] = {}
        self._calls: dict[int, Calling] = {}
        self.reads = asyncio.Event()
        """An event that is cleared while the client does not read."""
        self.reads.set()

    async def listen(self) -> None:
        """Read messages forever."""
        while True:
            await self.reads.wait()
            self._route(await self.read())

    def _route(self, message: Any) -> None:
        self.counts["messages"] += 1
        if "id" in message:
            self._take_answer(message)
            return
        method, params = message["method"], message["params"]
        if method == InitialState.METHOD:
            reading = self.streams[params["_meta"]["conversationId"]]
            for one in params["initial_state"]["events"]:
                reading.take(one)
            reading.view.reached(Seq(params["_meta"]["seq"]))
        elif method == StreamDisconnected.METHOD:
            assert params["reason"] == StreamDisconnected.TAKEN_OVER
            self.counts["take-overs"] += 1
        elif "id" in params:
            self._calls[params["_meta"]["requestId"]].take(method, params)
        else:
            # The answer to a send comes before the first event of its turn.
            assert params["msg"].get("message_id") not in self.unanswered
            self.streams[params["_meta"]["conversationId"]].take(params)

    def _take_answer(self, message: Any) -> None:
        request_id = message["id"]
        if (opening := self._opening.pop(request_id, None)) is not None:
            conversation, reading = opening
            self.streams[conversation] = reading
        self.unanswered.discard(message["result"].get("structuredContent", {}).get("message_id", ""))
        self.waiting.pop(request_id).set_result(message)  # fails if there is a second answer

    def answer(self, request_id: int) -> asyncio.Future[Any]:
        """Return the future of the answer to a request."""
        self.counts["requests"] += 1
        future = self.waiting[request_id] = asyncio.get_running_loop().create_future()
        return future

    async def value(self, request_id: int) -> Any:
        """Return the value of a typed result."""
        message = await self.answer(request_id)
        value = message["result"]["structuredContent"]
        assert message == answered(request_id, value)
        return value

    def begin_stream(self, conversation: str, reading: Reading) -> tuple[int, asyncio.Future[Any]]:
        request_id = self.stream(conversation, after=reading.view.position)
        self._opening[request_id] = conversation, reading
        return request_id, self.answer(request_id)

    def begin_call(self, calling: Calling, tool: str, **arguments: Any) -> tuple[int, asyncio.Future[Any]]:
        request_id = self.call(tool, prompt=calling.prompt, **arguments)
        self._calls[request_id] = calling
        return request_id, self.answer(request_id)

    async def ping(self) -> None:
        assert (await self.answer(self.request("ping", {})))["result"] == {}

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def log_text(self) -> str:
        return self._home.stderr_text()


# --- one conversation ------------------------------------------------------------------------


class Soaked:
    """The random operations on one conversation, and the checks of their results."""

    def __init__(self, client: Soaking, random_model: RandomModel, name: str, luck: Random) -> None:
        self.client, self._random_model, self._name, self._luck = client, random_model, name, luck
        self._questions = 0
        self._sent: dict[str, str] = {}
        """All messages that were sent with an id, by id."""
        self._prompts: list[str] = []
        """The prompts of all calls."""
        self._calls: list[tuple[Calling, int, asyncio.Future[Any]]] = []
        self._cancelled: set[int] = set()
        """The ids of cancelled calls. A call that was ended by its cancellation gets no answer."""
        self._readings: list[Reading] = []
        self._stream: tuple[int, Reading] | None = None
        self._pager = Reading(View())
        self._last_send: int | None = None
        self.turns = self.entries = self.text_bytes = 0

    async def begin(self) -> None:
        """Create the conversation, randomly by `conversationCreate` or by a `codex` call."""
        settings = {"cwd": str(self.client.work), "config": {"model_provider": self._luck.choice(APIS)}}
        if self._luck.random() < 0.5:
            call = self.client.call("conversationCreate", prompt="", model=MODEL, **settings)
            self.id = (await self.client.value(call))["conversation_id"]
            return
        calling = Calling(self._question())
        request_id, result = self.client.begin_call(calling, "codex", **settings)
        message = await result
        self.id = message["result"]["structuredContent"]["sessionId"]
        configured = calling.events.pop(0)
        assert (configured["type"], configured["session_id"]) == ("session_configured", self.id)
        self._remember(calling, request_id, result)

    async def leave(self) -> None:
        """Close the stream of the conversation."""
        await self._pause()

    async def stint(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
        await self.settle()

    async def sleep_through(self, answers: int) -> None:
        """Stop reading while a long answer is sent to a stream and to a call, and then continue.

        Repeat this `answers` times.
        """
        for _ in range(answers):
            await self._open()
            calling = Calling(f"{self._question()} {AT_LENGTH}")
            self._random_model.said_at_length.clear()
            self.client.reads.clear()
            request_id, result = self.client.begin_call(calling, "codex-reply", sessionId=self.id)
            self._remember(calling, request_id, result)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._random_model.said_at_length.wait()
            self.client.counts["pauses in reading"] += 1
            self.client.reads.set()
            await self.settle()

    async def _step(self) -> None:
        does = self._luck.choices(
            (
                self._send,
                self._reply,
                self._repeat,
                self._open,
                self._open_from_the_start,
                self._take_over_at_once,
                self._pause,
                self._interrupt,
                self._cancel_send,
                self._cancel_call,
                self._page,
                self._over,
            ),
            (25, 10, 3, 12, 3, 3, 8, 4, 4, 3, 8, 17),
        )[0]
        self.client.counts[does.__name__.strip("_").replace("_", " ")] += 1
        await does()

    def _question(self) -> str:
        self._questions += 1
        return f"{self._name} asks {self._questions}"

    # --- sending ------------------------------------------------------------------------

    async def _send(self) -> None:
        message_id = str(UUID(int=self._luck.getrandbits(128), version=4))
        self._sent[message_id] = self._question()
        self.client.unanswered.add(message_id)
        await self._say(message_id)

    async def _repeat(self) -> None:
        """Send an earlier message again, which has no effect."""
        if self._sent:
            await self._say(self._luck.choice(list(self._sent)))

    async def _say(self, message_id: str) -> None:
        self._last_send = self.client.message(self.id, self._sent[message_id], message_id=message_id)
        assert await self.client.value(self._last_send) == {"status": "ok", "message_id": message_id}

    async def _reply(self) -> None:
        """Start a turn or join the running turn. The answer is checked later."""
        calling = Calling(self._question())
        request_id, result = self.client.begin_call(calling, "codex-reply", sessionId=self.id)
        self._remember(calling, request_id, result)

    def _remember(self, calling: Calling, request_id: int, result: asyncio.Future[Any]) -> None:
        self._prompts.append(calling.prompt)
        self._calls.append((calling, request_id, result))

    async def _interrupt(self) -> None:
        call = self.client.call("conversationInterrupt", conversation_id=self.id)
        assert await self.client.value(call) == {"status": "ok"}

    async def _cancel_send(self) -> None:
        """Cancel an answered send, which has no effect."""
        if self._last_send is not None:
            self.client.cancel(self._last_send)

    async def _cancel_call(self) -> None:
        if self._calls:
            self._cancelled.add(self._calls[-1][1])
            self.client.cancel(self._calls[-1][1])

    # --- reading -----------------------------------------------------------------------

    async def _open(self) -> None:
        """Open a stream at the position of the last stream.

        The new stream takes over the last stream if it is still open.
        """
        await self._begin_stream(self._beginning_at_the_last())

    async def _open_from_the_start(self) -> None:
        await self._begin_stream(Reading(View()))

    async def _take_over_at_once(self) -> None:
        """Open several streams in succession. Each stream takes over the previous one."""
        readings = [Reading(View()), self._beginning_at_the_last(), Reading(View())]
        with self.client.at_once():
            begun = [self.client.begin_stream(self.id, reading) for reading in readings]
        self._readings += readings
        self._stream = begun[-1][0], readings[-1]
        for request_id, result in begun:
            assert await result == answered(request_id, {})

    async def _begin_stream(self, reading: Reading) -> None:
        request_id, result = self.client.begin_stream(self.id, reading)
        self._readings.append(reading)
        self._stream = request_id, reading
        assert await result == answered(request_id, {})

    def _beginning_at_the_last(self) -> Reading:
        """Return a new reader with the view of the last reader. Both receive the messages that are in transit."""
        reading = Reading(View())
        if self._readings:
            known = self._readings[-1].view
            reading.view.events.update(known.events)
            reading.view.reached(known.position)
        return reading

    async def _pause(self) -> None:
        if self._stream is not None:
            self.client.cancel(self._stream[0])
            self._stream = None

    async def _page(self) -> None:
        await self._read_on(self._pager, limit=self._luck.choice((1, 3, 100)), wait_seconds=0.05)

    async def _read_on(self, reading: Reading, **more: Any) -> Any:
        page = await self.client.value(
            self.client.call("conversationRead", conversation_id=self.id, after=reading.view.position, **more)
        )
        for one in page["events"]:
            reading.take({"_meta": {"seq": one["seq"]}, "msg": one["msg"]})
        reading.view.reached(Seq(page["seq"]))
        return page

    async def _over(self) -> None:
        """Wait until no turn is running."""
        seq, wait_seconds = 0, 0
        while True:
            call = self.client.call(
                "conversationRead", conversation_id=self.id, after=seq, limit=1000, wait_seconds=wait_seconds
            )
            page = await self.client.value(call)
            if page["state"] == "idle":
                return
            seq, wait_seconds = page["seq"], 10

    # --- checks ------------------------------------------------------------

    async def settle(self) -> None:
        """Wait for the end of all turns, and check that all readers have received the same events."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            results = [
                (calling, request_id, await self._result(calling, request_id, result))
                for calling, request_id, result in self._calls
            ]
            await self._over()
            expected = Reading(View())
            while (page := await self._read_on(expected, limit=1000))["events"]:
                pass
            log = expected.view.events
            assert (page["state"], page["open"]) == ("idle", [])
            last = max(log, default=0)
            if self._stream is not None:
                await self._stream[1].reach(last)
                assert self._stream[1].view.open == {}
            while (await self._read_on(self._pager))["events"]:
                pass
        assert self._pager.view.events == log
        for reading in self._readings:
            position = reading.view.position
            assert reading.view.events == {seq: msg for seq, msg in log.items() if seq <= position}
        events = list(log.values())
        self._check_turns(events)
        for calling, request_id, message in results:
            self._check_call(calling, request_id, message, events)
        self.client.counts["views compared"] += 1 + len(self._readings) + len(results)
        self.client.counts["texts cut short"] += sum(calling.cut_short for calling, _, _ in self._calls)
        self._calls.clear()
        self._cancelled.clear()
        self._readings = [self._stream[1]] if self._stream is not None else self._readings[-1:]
        self.turns = sum(event["type"] == "task_started" for event in events)
        self.entries = page["seq"]
        self.text_bytes = sum(len(msgspec.json.encode(event)) for event in events)

    async def _result(self, calling: Calling, request_id: int, result: asyncio.Future[Any]) -> Any:
        """Return the answer to a call; None if the cancellation of the call has ended it."""
        while request_id in self._cancelled and not result.done():
            await self.client.ping()
            if calling.events and calling.events[-1].get("message") == INTERRUPTED:
                await self.client.ping()  # an answer would have arrived by now
                if not result.done():
                    del self.client.waiting[request_id]
                    self.client.counts["calls that were dropped"] += 1
                    return None
        return await result

    def _check_turns(self, events: list[Any]) -> None:
        """Check that each turn has one end, each message is in the log once, and all texts belong to this
        conversation."""
        said = [event for event in events if event["type"] == "user_message"]
        ours = [event for event in said if event["message_id"] in self._sent]
        assert sorted(ours, key=_id_of) == sorted(
            (user_message(text, message_id) for message_id, text in self._sent.items()), key=_id_of
        )
        others = sorted(event["content"][0]["text"] for event in said if event not in ours)
        assert others == sorted(self._prompts)
        running, asked = False, ""
        for at, event in enumerate(events):
            match event["type"]:
                case "task_started":
                    assert not running
                    running = True
                case "task_complete":
                    assert running
                    running = False
                    assert event["last_agent_message"] in (None, self._random_model.answer_to(asked))
                case "error" if event["message"] == INTERRUPTED:
                    assert running
                    running = False
                case "user_message":
                    assert running
                    asked = event["content"][0]["text"]
                case "agent_message":
                    assert running
                    assert event["message"] in (LET_ME_SEE, LONG_TEXT) or event["message"].startswith(
                        f"[{self._name} asks "
                    )
                case _:
                    assert running, f"outside of a turn: {events[max(at - 8, 0) : at + 8]}"
        assert not running

    def _check_call(self, calling: Calling, request_id: int, message: Any, events: list[Any]) -> None:
        """Check that a call received its part of the turn, and that its answer matches the end of the turn."""
        (place,) = [
            at
            for at, event in enumerate(events)
            if event["type"] == "user_message" and event["content"][0]["text"] == calling.prompt
        ]
        first = place - (calling.events[0]["type"] == "task_started")
        assert calling.events == events[first : first + len(calling.events)]
        *before, last = calling.events
        failed = last["type"] == "error" or last["last_agent_message"] is None
        error = last if last["type"] == "error" else before[-1] if failed else {"reason": "done"}
        text = error["message"] if failed else last["last_agent_message"]
        result: dict[str, Any] = {
            "content": [{"type": "text", "text": text}],
            "structuredContent": turn_value(self.id, text, error["reason"], error.get("code")),
        }
        if failed:
            result |= {"error": text, "isError": True}
        if message is None:
            assert text == INTERRUPTED
        else:
            assert message == {"jsonrpc": "2.0", "id": request_id, "result": result}


def _id_of(event: Any) -> str:
    return str(event["message_id"])


class Size:
    """The memory of the server, and the part of it that its logs account for."""

    def __init__(self, client: Soaking, lives: list[Soaked]) -> None:
        self.resident = client.memory()
        self.turns = sum(life.turns for life in lives)
        self.entries = sum(life.entries for life in lives)
        self.text = sum(life.text_bytes for life in lives)

    @property
    def explained(self) -> int:
        return self.entries * BYTES_AN_ENTRY + self.turns * BYTES_A_TURN + self.text * COPIES


# --- all conversations -------------------------------------------------------------------------


async def stints(lives: list[Soaked], sleeper: Soaked) -> None:
    """Run one period in every conversation, some concurrently, while the client sometimes stops reading."""
    server = asyncio.Semaphore(AT_ONCE)

    async def one(life: Soaked) -> None:
        async with server:
            await life.stint(STEPS)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleeper.sleep_through(PAUSES))
        for life in lives:
            tasks.create_task(one(life))
