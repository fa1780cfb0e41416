"""The commands that change the message queue of one conversation, and their effects in the process that owns the
conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from parley.conversation.queue import QueuedMessage
from parley.runtime.commands import Command, LocalConversation, SubmitMessage
from parley.runtime.deadline import Deadline
from parley.runtime.message_queue import Waiting
from parley.wire.ids import MessageId
from parley.wire.items import InputItem
from parley.wire.peers import EditQueued, Enqueue, RemoveQueued, ResumeQueue, Submit

__all__ = ["BeginQueued", "EditMessage", "QueueMessage", "RemoveMessage", "Resume"]


class QueueMessage(SubmitMessage):
    """Adds a message to the queue. If every turn has ended and the queue is empty, the message begins a turn
    immediately.
    """

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        before = local.intake.accepted_before(self.message, self.stored, self.queued)
        if before is None and local.queue.must_queue():
            return local.queue.add(self.message, read=self.files, until=self.deadline.at, accepted=self.accepted)
        return super().apply(local)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> Enqueue:
        message = self.message
        return Enqueue(
            conversation_id=message.conversation_id,
            content=message.content,
            message_id=message.message_id,
            wanted=message.wanted,
            principal=message.principal,
            is_limited=message.is_limited,
        )


class EditMessage(Command):
    """Replaces the content of a queued message. The command fails with `NotQueued` if the message is not in the
    queue.
    """

    waits_for_write_lock = True

    def __init__(self, request: EditQueued, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._request = request
        self._files: tuple[InputItem, ...] | None = None

    def _message(self) -> Submit:
        request = self._request
        return Submit(
            conversation_id=request.conversation_id,
            content=request.content,
            message_id=request.message_id,
            principal=request.principal,
            is_limited=request.is_limited,
        )

    def needs_files(self, local: LocalConversation) -> bool:
        return self._files is None and local.intake.needs_files(self._message())

    async def read_files(self, local: LocalConversation) -> None:
        self._files = await local.intake.read_named(self._message())

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        return local.queue.edit(self._message(), read=self._files, until=self.deadline.at)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> EditQueued:
        return self._request


class RemoveMessage(Command):
    """Removes a queued message. The command fails with `NotQueued` if the message is not in the queue."""

    waits_for_write_lock = True

    def __init__(self, request: RemoveQueued, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._request = request

    def apply(self, local: LocalConversation) -> asyncio.Future[None]:
        request = self._request
        return local.queue.remove(request.message_id, principal=request.principal, until=self.deadline.at)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> RemoveQueued:
        return self._request


class Resume(Command):
    """Resumes a paused queue. The mailbox then begins the next turn."""

    starts_turn = waits_for_write_lock = True

    def __init__(self, request: ResumeQueue, deadline: Deadline, *, is_from_peer: bool = False) -> None:
        super().__init__(deadline, is_from_peer=is_from_peer)
        self._request = request

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        return local.queue.resume(principal=self._request.principal, until=self.deadline.at)

    def request(self, local: LocalConversation, unanswered: Collection[MessageId]) -> ResumeQueue:
        return self._request

    def placed_request(self, local: LocalConversation) -> ResumeQueue:
        return self._request


class BeginQueued(Command):
    """Begins a turn with the next queued message, unless the queue is paused. Only the mailbox creates this
    command.
    """

    starts_turn = waits_for_write_lock = True

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(deadline)
        self._place: tuple[MessageId, QueuedMessage] | None = None
        self._message: Waiting | None = None

    def needs_lookup(self, local: LocalConversation) -> bool:
        return local.queue.is_pending and local.queue.next != self._place

    async def look_up(self, local: LocalConversation) -> None:
        place = local.queue.next
        self._message = None if place is None else await local.queue.read(*place)
        self._place = place

    def apply(self, local: LocalConversation) -> asyncio.Future[None] | None:
        if not local.queue.is_pending or self._message is None:
            return None
        return local.queue.begin(self._message, until=self.deadline.at)
