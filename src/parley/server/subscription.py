"""Sends one conversation to one client. Streams, tasks, and calls of `codex` and `codex-reply` use this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.log import Cursor, Entry
from parley.conversation.records import ApprovalRequest, record_type
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.readers import EventEncoder, Reader
from parley.runtime.recipients import ReadingClient
from parley.server.access import may_answer, may_interrupt
from parley.server.modern.rounds import OnAsk
from parley.server.positions import with_positions
from parley.server.session import Session
from parley.wire.ids import START, ApprovalId, Seq

__all__ = ["Subscription"]

_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)


class _Approval(Struct):
    approval_id: ApprovalId


_approval_decoder: Final = msgspec.json.Decoder(_Approval)


class Subscription:
    """Sends the entries of a conversation to a client, beginning at a cursor, and asks the client to decide
    approvals.

    `close` stops the subscription and removes its reader and callbacks. The session calls `close` when the client
    leaves.
    """

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        out: Outbox,
        encoder: EventEncoder,
        *,
        server_requests: Outbox,
        on_ask: OnAsk | None = None,
        on_entry: Callable[[Entry], None] | None = None,
        on_dropped: Callable[[Exception], None],
        waits_for_turn: bool = False,
        skipped: int = 0,
        task_id: str | None = None,
    ) -> None:
        """Create the subscription.

        Events are encoded by `encoder` and sent to `out`. Approval requests to a client at protocol version
        2025-11-25 or older are sent to `server_requests`. For a client at version 2026-07-28, `on_ask` is called
        instead. `on_entry` is called with each entry, including records, after the entry has been processed.
        `on_dropped` is called with the error if an entry cannot be sent or read; the subscription then sends
        nothing more. `waits_for_turn` is True for a call that waits for the end of the turn. The client already has
        the first `skipped` messages of the first entry. `task_id` is the id of the task that approval requests
        name.
        """
        self._session, self._conversation, self._on_ask = session, conversation, on_ask
        self._out, self._encoder, self._server_requests = (
            out,
            with_positions(encoder, out, skipped),
            server_requests,
        )
        self._on_entry, self._on_dropped = on_entry, on_dropped
        self._waits_for_turn, self._task_id = waits_for_turn, task_id
        self._reader: Reader | None = None

    def register(self) -> None:
        """Register the subscription as a reader of the conversation.

        `start` also registers the subscription. Call this method to register it before `start`.
        """
        client = ReadingClient(
            principal=self._session.principal.ref,
            can_be_asked=self._session.elicitor_for(self._on_ask).can_ask,
            knows_limits=self._session.features.knows_limits,
            waits_for_turn=self._waits_for_turn,
            may_answer=may_answer(self._session.principal),
            may_interrupt=may_interrupt(self._session.principal),
        )
        self._conversation.approvals.register_reader(self, client)
        self._session.note_subscription(self, self._conversation.id)
        self._session.on_leave(self, self.close)

    def start(self, cursor: Cursor) -> None:
        """Begin to send the entries after `cursor`. If an approval is open, ask the client to decide it."""
        reader = Reader(
            self._conversation.log,
            cursor,
            self._out,
            self._encoder,
            passed=self._passed,
            on_dropped=self._on_dropped,
            earlier=self._conversation.read_after,
        )
        self._reader = reader
        self._conversation.attach(reader)
        self.register()
        if not self._session.features.modern or not self._asks_later(cursor.seq):
            self._ask_open_approval()

    @property
    def position(self) -> Seq:
        """The position of the last entry that was sent to the client."""
        return START if self._reader is None else self._reader.position

    def _asks_later(self, position: Seq) -> bool:
        """Return whether the log after `position` may contain an approval request.

        If so, a client at protocol version 2026-07-28 must first get all entries up to this request, because the
        call ends when the client is asked.
        """
        log = self._conversation.log
        return position < log.base or any(
            one.type == _APPROVAL_REQUEST for one in log.between(position, log.durable)
        )

    def send_now(self) -> None:
        """Send all entries that are already durable, without waiting for the next append."""
        if self._reader is not None:
            self._reader.pump()

    def close(self) -> None:
        """Stop sending, and remove the reader and the callbacks of the subscription. The subscription cannot be
        started again.
        """
        if self._reader is not None:
            self._conversation.detach(self._reader)
        self._on_ask = self._on_entry = None
        self._on_dropped = _do_nothing
        self._conversation.approvals.unregister_reader(self)
        self._session.forget_subscription(self)
        self._session.cancel_on_leave(self)

    def _passed(self, entry: Entry) -> None:
        # A slow client may reach an approval that was already decided, while a later approval is open.
        if entry.type == _APPROVAL_REQUEST:
            self._ask_open_approval(_approval_decoder.decode(entry.encoded).approval_id)
        if self._on_entry is not None:
            self._on_entry(entry)

    def _ask_open_approval(self, only: ApprovalId | None = None) -> None:
        approval = self._conversation.approvals.to_deliver()
        if approval is None or not may_answer(self._session.principal, approval):
            return
        if only in (None, approval.approval_id):
            request = self._session.first_request(self._conversation.id)
            elicitor = self._session.elicitor_for(self._on_ask)
            elicitor.ask(
                self._conversation, approval, request=request, out=self._server_requests, task_id=self._task_id
            )


def _do_nothing(error: Exception) -> None: ...
