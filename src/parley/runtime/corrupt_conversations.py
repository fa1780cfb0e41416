"""Logs why conversations cannot be read, and deletes such conversations without reading them."""

from __future__ import annotations

import logging

from parley.errors import OwnedElsewhere, StoreError
from parley.ports.store import Store
from parley.runtime.errors import TurnIsRunning
from parley.wire.ids import ConversationId

__all__ = ["CorruptConversations"]

log = logging.getLogger(__name__)


class CorruptConversations:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._logged: dict[ConversationId, str] = {}

    def report(self, conversation_id: ConversationId, error: StoreError) -> None:
        """Log why a conversation is left out of a list. The same reason for the same conversation is logged only
        once.
        """
        if self._logged.get(conversation_id) != str(error):
            self._logged[conversation_id] = str(error)
            log.warning("%s: left out of the list: %s", conversation_id, error)

    async def delete(self, conversation_id: ConversationId) -> None:
        """Delete a conversation that cannot be read.

        Raises:
            UnknownConversation: the conversation does not exist.
            TurnIsRunning: another process holds the lease.
            StoreError: the conversation cannot be deleted.
        """
        try:
            lease = await self._store.acquire(conversation_id, address="")
        except OwnedElsewhere:
            raise TurnIsRunning from None
        try:
            await self._store.delete(lease)
        finally:
            await self._store.release(lease)
        self._logged.pop(conversation_id, None)
