"""A new conversation that begins with what happened in another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.conversation.folds import Folds
from parley.conversation.log import Entry
from parley.conversation.records import TurnEnded, record_type
from parley.conversation.state import Phase
from parley.errors import TurnIsRunning, UnknownMessage
from parley.ports.store import PAGE, Store, Summary
from parley.wire.events import UserMessage, event_type
from parley.wire.ids import ConversationId, MessageId
from parley.wire.jsonrpc import encode

__all__ = ["up_to", "write_whole"]

_SAID: Final = event_type(UserMessage)
_ENDED: Final = record_type(TurnEnded)


def up_to(entries: Sequence[Entry], message_id: MessageId | None) -> Sequence[Entry]:
    """What happened up to the end of the turn that took a message; of the last turn, where none is named.

    Raises:
        UnknownMessage: there is no such message.
        TurnIsRunning: that turn has not ended.
    """
    ends = [place for place, entry in enumerate(entries, start=1) if entry.type == _ENDED and not entry.is_event]
    if message_id is None:
        said = max((place for place, entry in enumerate(entries) if entry.type == _SAID), default=None)
        if said is None:
            return entries
    else:
        name = b'"message_id":' + encode(message_id)
        said = next((at for at, one in enumerate(entries) if one.type == _SAID and name in one.encoded), None)
        if said is None:
            raise UnknownMessage
    end = next((end for end in ends if end > said), None)
    if end is None:
        raise TurnIsRunning
    return entries[:end]


async def write_whole(store: Store, conversation_id: ConversationId, entries: Sequence[Entry]) -> None:
    """Write a new conversation with all of its entries, or nothing.

    Raises:
        StoreFailed: the system refuses.
    """
    folds = Folds()
    folds.replay(entries)
    assert folds.state.phase is Phase.IDLE  # nobody has a turn of it
    summary = Summary.of(folds.state)
    await store.create(conversation_id, entries[:PAGE], summary)
    if len(entries) <= PAGE:
        return
    lease = await store.acquire(conversation_id, address="")
    try:
        for begin in range(PAGE, len(entries), PAGE):
            await store.append(lease, entries[begin : begin + PAGE], summary)
    except BaseException:
        await store.delete(lease)
        raise
    await store.release(lease)
