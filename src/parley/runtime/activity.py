"""Notifies watchers, such as open lists of clients, that lists of conversations may have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from parley.wire.ids import ConversationId

__all__ = ["Activity", "OnActivity"]

OnActivity = Callable[[ConversationId, bool, str | None], None]
"""A callback for a change to a conversation. The second argument is True if titles or the set of listed
conversations may have changed, and False if only the state of the conversation has changed. The third argument is
the identity of the principal that has read the conversation, if nothing else has changed; otherwise None.
"""


class Activity:
    """The watchers of all conversations in a home directory."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, OnActivity] = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def watch(self, owner: Hashable, call: OnActivity) -> None:
        """Call `call` after each change to a conversation. Each owner has at most one callback."""
        self._watchers[owner] = call

    def unwatch(self, owner: Hashable) -> None:
        """Remove an owner's callback, if the owner has one."""
        self._watchers.pop(owner, None)

    def notify(self, conversation_id: ConversationId, changes_list: bool, *, read_by: str | None = None) -> None:
        """Call the callbacks of all watchers after a change to a conversation.

        `changes_list` is True if titles or the set of listed conversations may have changed. `read_by` is the
        identity of the principal that has read the conversation, if nothing else has changed.
        """
        for call in tuple(self._watchers.values()):
            call(conversation_id, changes_list, read_by)
