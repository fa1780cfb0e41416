"""Random processes that share a home and are killed, stopped and restarted, with random clients.

All random choices come from one seed. Everything that happens is printed in one journal, so that a failed run can
be understood.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final
from uuid import uuid4

from kit.clients.shell_turns import sh
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Approval, CodexCall, Conversation, Stream
from parley.client.errors import Disconnected, RequestFailed, ToolFailed
from parley.testing import Delay, ParleyProcess, Pieces, RecordedRequest, Says, ScriptedModel
from parley.testing.replies import Reply

__all__ = ["SETTINGS", "Journal", "ProcessGroup", "ServerAndClient", "answer_to"]

STOPPED_SECONDS: Final = 1.0
SETTINGS: Final = "approval_policy = 'untrusted'\n"
"""Settings in which every command needs an approval."""

EXPECTED: Final = ("does not answer; was it stopped?", "Server is shutting down")
"""Errors that are expected."""


class Journal:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self.unexpected: list[str] = []

    def note(self, who: str, what: str) -> None:
        print(f"{time.monotonic() - self._began:7.3f} {who}: {what}")

    def complain(self, who: str, what: str) -> None:
        self.note(who, f"UNEXPECTED {what}")
        self.unexpected.append(f"{who}: {what}")


def answer_to(request: RecordedRequest, ran: Path) -> Reply:
    """Return the model's reply: `run ID` runs a command that appends the id to a file; other messages get a
    text."""
    last = request.body["messages"][-1]
    what, _, name = last["content"].partition(" ") if last["role"] == "user" else ("", "", "")
    if what == "run":
        return Says(("I run it.", sh(f"call-{name}-{uuid4()}", f"echo {name} >>{ran}")))
    words = Pieces(f"This is what I say to {name or 'that'}: nothing. ", 7)
    return Says((words, Delay(0.01), words, Delay(0.02), words))


class ServerAndClient:
    """One server process and its client, from start to end."""

    def __init__(self, group: ProcessGroup, name: str) -> None:
        self.name = name
        self.replies: list[CodexCall] = []
        self._group, self._random = group, Random(f"{group.seed}/{name}")
        self.process = ParleyProcess(
            group.model, home=group.home, config=SETTINGS, on_approval=self._answer, checked=False
        )
        self.streams: dict[str, Stream] = {}
        self.is_over = False
        self.is_quiet = asyncio.Event()
        """An event that is set when the client performs no more operations."""

    @property
    def frames(self) -> Sequence[bytes]:
        """All messages that the server has sent to the client."""
        return self.process.frames

    def note(self, what: str) -> None:
        self._group.journal.note(self.name, what)

    async def run(self) -> None:
        """Start the server and do random operations, until the server is ended or the run is over."""
        async with self.process:
            self.note(f"is process {self.process.pid}")
            action = asyncio.create_task(self._action())
            try:
                while not self.is_over and not self._group.is_over:
                    await self._do(self._random.choice(self._operations()))
                    await asyncio.sleep(self._random.uniform(0, 0.05))
                if not self.is_over:
                    action.cancel()
                    self.is_quiet.set()
                    await self._group.settled.wait()
            finally:
                action.cancel()
                self.is_quiet.set()
                self.process.process.send_signal(signal.SIGCONT)
                await asyncio.gather(action, return_exceptions=True)
        self.note("has ended")

    async def _action(self) -> None:
        await asyncio.sleep(self._random.uniform(0.3, 2.5))
        action = self._random.choice(("kill", "kill", "stop", "stop", "terminate"))
        self.note(action)
        if action == "stop":
            os.kill(self.process.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._random.uniform(0.1, STOPPED_SECONDS))
            finally:
                os.kill(self.process.pid, signal.SIGCONT)
            self.note("goes on")
            await self._action()
            return
        self.is_over = True
        if action == "kill":
            self.process.kill()
        else:
            self.process.terminate()
            if (code := await self.process.exit_code()) != 0:
                self._group.journal.complain(self.name, f"exit code {code}: {self.process.stderr_text()}")

    async def wait_for_end(self, ends: Mapping[str, int]) -> None:
        """Wait until all calls are answered and all streams have reached the end of their conversations."""
        for reply in self.replies:
            self.note("waits for a reply")
            await reply
        for conversation_id, stream in self.streams.items():
            self.note(f"waits for the end of {conversation_id[:4]}, from {stream.seq} to {ends[conversation_id]}")
            while stream.seq < ends[conversation_id]:
                await anext(stream)

    # --- operations of the client --------------------------------------------------------------

    def _operations(self) -> Sequence[Callable[[Conversation], Awaitable[None]]]:
        return (*[self._send] * 6, *[self._watch] * 3, self._reply, self._rename, self._look, self._interrupt)

    async def _do(self, operation: Callable[[Conversation], Awaitable[None]]) -> None:
        conversation = self.process.client.conversation(self._random.choice(self._group.conversations))
        what = f"{operation.__name__} {conversation.id[:4]}"
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await operation(conversation)
        except Disconnected:
            if not self.is_over:
                self.is_over = True
                code = await self.process.exit_code()
                self._group.journal.complain(self.name, f"died, exit code {code}: {self.process.stderr_text()}")
        except TimeoutError:
            self._group.journal.complain(self.name, f"{what}: no answer; {self.process.stderr_text()}")
            self.is_over = True
        except ToolFailed as failed:
            if any(text in str(failed) for text in EXPECTED):
                self.note(f"{what}: {failed}")
            else:
                self._group.journal.complain(self.name, f"{what}: {failed}")
        except RequestFailed as failed:
            self._group.journal.complain(self.name, f"{what}: {failed}; {self.process.stderr_text()}")

    async def _send(self, conversation: Conversation) -> None:
        """Send a new message, or send a message again that got no answer."""
        unanswered = self._group.unanswered
        if unanswered and self._random.random() < 0.5:
            message_id, where, words = unanswered.pop(self._random.choice(list(unanswered)))
        else:
            number = next(self._group.numbers)
            message_id, where = str(uuid4()), conversation.id
            words = f"{self._random.choice(('say', 'run'))} {number}"
        self._group.sent[message_id] = where, words
        try:
            await self.process.client.conversation(where).send(words, message_id=message_id)
        except (Disconnected, RequestFailed, ToolFailed, TimeoutError):
            unanswered[message_id] = message_id, where, words
            raise
        self._group.accepted.add(message_id)

    async def _watch(self, conversation: Conversation) -> None:
        """Open a stream, or close the open one."""
        stream = self.streams.pop(conversation.id, None)
        if stream is None:
            self.streams[conversation.id] = await conversation.stream()
            return
        await stream.close()

    async def _reply(self, conversation: Conversation) -> None:
        self.replies.append(self.process.client.codex_reply(conversation.id, f"say {next(self._group.numbers)}"))

    async def _rename(self, conversation: Conversation) -> None:
        title = f"Title {next(self._group.numbers)}"
        await self.process.client.call_tool(
            "conversationRename", {"conversation_id": conversation.id, "title": title}
        )

    async def _look(self, conversation: Conversation) -> None:
        await conversation.status()
        await self.process.client.list()

    async def _interrupt(self, conversation: Conversation) -> None:
        await conversation.interrupt()

    async def _answer(self, approval: Approval) -> None:
        """Answer after a short random time: usually approve, sometimes deny, sometimes never answer."""
        if self._random.random() < 0.3:
            await asyncio.Event().wait()
        await asyncio.sleep(self._random.uniform(0, 0.1))
        await (approval.deny() if self._random.random() < 0.2 else approval.approve())


class ProcessGroup:
    """A group of processes. The group replaces each process that ends, until the time is over."""

    def __init__(self, model: ScriptedModel, home: Path, seed: int) -> None:
        self.model, self.home, self.seed = model, home, seed
        self.journal = Journal()
        self.journal.note("all", f"seed {seed}, home {home}")
        self.conversations: list[str] = []
        self.lives: list[ServerAndClient] = []
        self.numbers = iter(range(1, 1_000_000))
        self.sent: dict[str, tuple[str, str]] = {}
        """Conversation and text of each message, by message id."""
        self.unanswered: dict[str, tuple[str, str, str]] = {}
        """Messages without an answer, which may have been accepted."""
        self.accepted: set[str] = set()
        self.is_over = False
        self.settled = asyncio.Event()
        """An event that is set when all conversations are idle."""

    async def run(self, *, processes: int, conversations: int, seconds: float) -> None:
        async with ParleyProcess(self.model, home=self.home, config=SETTINGS) as first:
            self.conversations = [(await first.create()).id for _ in range(conversations)]
        async with asyncio.TaskGroup() as tasks:
            for place in range(processes):
                tasks.create_task(self._one_after_another(place))
            await asyncio.sleep(seconds)
            self.is_over = True
            self.journal.note("all", "time is up")
            await self._settle()
            self.settled.set()

    async def _one_after_another(self, place: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            life = ServerAndClient(self, f"{place}.{number}")
            self.lives.append(life)
            await life.run()

    async def _settle(self) -> None:
        """Answer all open approvals, and wait until all conversations are idle and all clients have seen the
        end."""
        async with ParleyProcess(self.model, home=self.home, config=SETTINGS, checked=False) as last:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    for life in self.lives:
                        await life.is_quiet.wait()
                    ends = {
                        conversation_id: await self._come_to_rest(last, last.client.conversation(conversation_id))
                        for conversation_id in self.conversations
                    }
                    for life in self.lives:
                        if not life.is_over:
                            await life.wait_for_end(ends)
            except TimeoutError:
                self.journal.complain("all", f"it does not come to rest: {last.stderr_text()}")
                for life in self.lives:
                    self.journal.note(life.name, f"alive: {not life.is_over}\n{life.process.stderr_text()}")

    async def _come_to_rest(self, last: ParleyProcess, conversation: Conversation) -> int:
        """Answer open approvals until the conversation is idle; return the position of its last event."""
        page = await conversation.read(limit=1)
        while page.state != "idle":
            for approval in await last.client.approvals(conversation.id):
                try:
                    await approval.approve()
                except ToolFailed as settled:
                    self.journal.note("all", str(settled))
            end = (await conversation.read(after=page.seq, limit=1000)).seq
            page = await conversation.read(after=end, wait_seconds=1)
        last_event = 0
        page = await conversation.read()
        while page.events:
            last_event = page.events[-1].seq
            page = await conversation.read(after=page.seq)
        return last_event
