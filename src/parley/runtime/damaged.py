"""Conversations that cannot be read: told of once, and removed without being read."""

from __future__ import annotations

import logging

from parley.errors import OwnedElsewhere, StoreError, TurnIsRunning
from parley.ports.store import Store
from parley.wire.ids import ConversationId

__all__ = ["Damaged"]

log = logging.getLogger(__name__)


class Damaged:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[ConversationId, str] = {}

    def tell(self, conversation_id: ConversationId, error: StoreError) -> None:
        """Say in the server's log why it is left out, unless that was said before."""
        if self._told.get(conversation_id) != str(error):
            self._told[conversation_id] = str(error)
            log.warning("%s: left out: %s", conversation_id, error)

    async def delete(self, conversation_id: ConversationId) -> None:
        """Remove for ever what nobody can read any more.

        Raises:
            UnknownConversation, StoreError: nothing was changed.
            TurnIsRunning: another process has it, and may know more.
        """
        try:
            lease = await self._store.acquire(conversation_id, address="")
        except OwnedElsewhere:
            raise TurnIsRunning from None
        try:
            await self._store.delete(lease)
        finally:
            await self._store.release(lease)
        self._told.pop(conversation_id, None)
