"""One client's view of one conversation, shared by streams and `codex` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from parley.conversation.log import Cursor, Entry
from parley.conversation.records import QuestionAsked, record_type
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.readers import EventEncoder, Reader
from parley.server.positions import with_positions
from parley.server.session import Session
from parley.wire.ids import ApprovalId

__all__ = ["Subscription"]

_ASKED: Final = record_type(QuestionAsked)


class _Approval(Struct):
    approval_id: ApprovalId


_approval_decoder: Final = msgspec.json.Decoder(_Approval)


class Subscription:
    """Sends a conversation to a client from a position on, and asks the client for its approvals.

    `close` removes everything that the subscription registered. It is called when the client leaves, too.
    """

    def __init__(
        self,
        session: Session,
        conversation: Conversation,
        out: Outbox,
        encoder: EventEncoder,
        *,
        questions: Outbox,
        on_entry: Callable[[Entry], None] | None = None,
        on_dropped: Callable[[], None],
        waits_for_turn: bool = False,
        skipped: int = 0,
    ) -> None:
        """Create the subscription. `questions` carries approval requests. `on_entry` is called after each entry,
        including records, was sent. `on_dropped` is called if an entry could not be sent for lack of memory;
        then nothing more is sent. `waits_for_turn` marks a call that waits for the end of the turn. The client
        already has the first `skipped` messages of the first entry.
        """
        self._session, self._conversation = session, conversation
        self._out, self._encoder, self._questions = out, with_positions(encoder, out, skipped), questions
        self._on_entry, self._on_dropped = on_entry, on_dropped
        self._waits_for_turn = waits_for_turn
        self._reader: Reader | None = None

    def register(self) -> None:
        """Register as a reader of the conversation, before or while it is sent."""
        self._conversation.register_reader(
            self,
            can_be_asked=self._session.elicitor.can_ask,
            knows_limits=self._session.features.full_version,
            waits_for_turn=self._waits_for_turn,
        )
        self._session.on_leave(self, self.close)

    def start(self, cursor: Cursor) -> None:
        """Send entries after the cursor, beginning with the next durable one, and ask for the open approval."""
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
        self._ask_open_approval()

    def send_now(self) -> None:
        """Send the entries that are durable now."""
        if self._reader is not None:
            self._reader.pump()

    def close(self) -> None:
        """Send nothing more and remove all registrations."""
        if self._reader is not None:
            self._conversation.detach(self._reader)
        self._conversation.unregister_reader(self)
        self._session.cancel_on_leave(self)

    def _passed(self, entry: Entry) -> None:
        # A slow client passes approvals that were decided meanwhile, while a later one is open.
        if entry.type == _ASKED:
            self._ask_open_approval(_approval_decoder.decode(entry.encoded).approval_id)
        if self._on_entry is not None:
            self._on_entry(entry)

    def _ask_open_approval(self, only: ApprovalId | None = None) -> None:
        approval = self._conversation.approval_to_deliver()
        if approval is not None and only in (None, approval.approval_id):
            request = self._session.first_request(self._conversation.id)
            self._session.elicitor.ask(self._conversation, approval, request=request, out=self._questions)
