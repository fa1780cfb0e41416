"""Detects changes to a resource, and notifies a client at a limited rate.

A reader of the log detects changes to a conversation, so no polling is needed. For a client that does not read its
connection, the server stores only one flag per watched resource: whether the resource has changed since the last
notification.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from parley.conversation.log import Cursor, Delta, Entry
from parley.conversation.output import OutputDelta
from parley.ports.outbox import Outbox
from parley.runtime.conversation import Conversation
from parley.runtime.readers import Reader
from parley.runtime.registry import ConversationRegistry
from parley.server.access import may_see, require_conversation
from parley.server.context import Principal
from parley.server.resources.uris import Address, ResourceKind
from parley.wire.events import TurnDiff, event_type
from parley.wire.ids import ConversationId

__all__ = ["CoalescedNotification", "ResourceWatch", "watch_resource"]

INTERVAL_SECONDS: Final = 1.0
"""The minimum time in seconds between two notifications about the same resource to one client."""

_DIFF: Final = event_type(TurnDiff)


class CoalescedNotification:
    """A notification about changes to a resource. It is sent at most once every `INTERVAL_SECONDS`, and only while
    the client reads its connection.

    Several changes may share one notification, but a notification always follows the last change.
    """

    def __init__(self, out: Outbox, frame: bytes) -> None:
        self._out, self._frame = out, frame
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._waits_for_room = False
        self._closed = False

    def send(self) -> None:
        """Send the notification immediately if possible. Otherwise, send it as soon as the interval has passed and
        the outbox is writable.
        """
        self._is_due = True
        if self._timer is None and not self._waits_for_room:
            self._send_if_due()

    def close(self) -> None:
        """Stop sending the notification."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _send_if_due(self) -> None:
        self._timer, self._waits_for_room = None, False
        if self._closed or not self._is_due:
            return
        if self._out.writable:
            self._is_due = False
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._send_if_due)
            self._out.send(self._frame)
        else:
            self._waits_for_room = True
            self._out.when_writable(self._send_if_due)


class ResourceWatch(Protocol):
    """Calls a function after each change to a resource."""

    def close(self) -> None:
        """Stop watching the resource. The function is no longer called."""
        ...


async def watch_resource(
    address: Address, conversations: ConversationRegistry, principal: Principal, changed: Callable[[], None]
) -> ResourceWatch:
    """Call `changed` after each change to the resource at `address`, until the returned watch is closed.

    Raises:
        UnknownConversation: the conversation does not exist, or the principal is not allowed to see it.
        StoreError: the conversation cannot be read.
    """
    if address.conversation is None:
        watch = ListWatch(conversations, principal, changed)
        await watch.begin()
        return watch
    require_conversation(principal, address.conversation)
    conversation = await conversations.find(address.conversation)
    return _ConversationWatch(conversation, address.kind, changed)


class ListWatch:
    """Watches two lists: the conversations that a principal may see, and the conversations among them that need
    attention.
    """

    def __init__(
        self,
        conversations: ConversationRegistry,
        principal: Principal,
        changed: Callable[[], None],
        *,
        ignores_states: bool = False,
    ) -> None:
        """Create the watch. `changed` is called after each change.

        If `ignores_states` is True, `changed` is called only after changes to titles and to the set of listed
        conversations.
        """
        self._conversations, self._principal = conversations, principal
        self._changed, self._ignores_states = changed, ignores_states
        self._closed = False

    async def begin(self) -> None:
        """Begin to watch the lists. Raise `StoreError` if the store cannot be searched."""
        await self._conversations.watch(self, self._on_activity)
        if self._closed:
            self._conversations.unwatch(self)

    def close(self) -> None:
        self._closed = True
        self._conversations.unwatch(self)

    def _on_activity(self, conversation_id: ConversationId, changes_list: bool, read_by: str | None) -> None:
        concerns = may_see(self._principal, conversation_id) and read_by in (None, self._principal.identity)
        if concerns and (changes_list or not self._ignores_states):
            self._changed()


class _ConversationWatch:
    """Watches one conversation, or only its diff if the kind of the resource is `ResourceKind.DIFF`."""

    def __init__(self, conversation: Conversation, kind: ResourceKind, changed: Callable[[], None]) -> None:
        self._conversation, self._changed = conversation, changed
        log = conversation.log
        only = _DIFF if kind is ResourceKind.DIFF else None
        self._reader = _ChangeReader(
            log,
            Cursor.of_records(log.durable),
            _NO_OUTBOX,
            _ChangeEncoder(changed, only),
            on_dropped=lambda error: changed(),
        )
        conversation.attach(self._reader)
        self._reader.pump()
        conversation.on_deleted(self, self._deleted)

    def close(self) -> None:
        self._conversation.detach(self._reader)
        self._conversation.cancel_on_deleted(self)

    def _deleted(self) -> None:
        self._conversation.detach(self._reader)
        self._changed()


class _ChangeEncoder:
    """An encoder that encodes nothing, but calls `changed` for each entry. If `only` is an event type, the encoder
    calls `changed` only for events of this type.
    """

    hidden: frozenset[str] = frozenset()
    sends_records = True

    def __init__(self, changed: Callable[[], None], only: str | None) -> None:
        self._changed, self._only = changed, only

    def entry(self, entry: Entry, send: Callable[[bytes], None]) -> None:
        if self._only is None or (entry.is_event and entry.type == self._only):
            self._changed()

    def delta(self, delta: Delta | OutputDelta, encoded: bytes, send: Callable[[bytes], None]) -> None:
        pass


class _ChangeReader(Reader):
    """A reader that passes each entry to its encoder and ignores deltas."""

    @property
    def keeps_up(self) -> bool:
        return False

    def delta(self, delta: Delta | OutputDelta, encoded: bytes) -> None:
        pass


class _NoOutbox:
    """An outbox that sends no messages, for a `_ChangeReader`."""

    writable = True

    def send(self, frame: bytes) -> None:
        pass

    def when_writable(self, wake: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(wake)


_NO_OUTBOX: Final = _NoOutbox()
