"""Notifies watchers, such as clients that show a list of conversations, that the list may have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from parley.wire.ids import ConversationId

__all__ = ["Activity", "OnActivity"]

OnActivity = Callable[[ConversationId, bool, str | None], None]
"""A callback for a change to a conversation. The first argument is the id of the conversation. The second argument
is True if titles or the set of listed conversations may have changed. It is False if only the state of the
conversation has changed. The third argument is the identity of a principal if the only change is that this
principal has read the conversation; otherwise it is None.
"""


class Activity:
    """The callbacks to call after a change to any conversation."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, OnActivity] = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def watch(self, watcher: Hashable, call: OnActivity) -> None:
        """From now on, call `call` after each change to a conversation. `watcher` identifies the callback: a second
        call with the same watcher replaces the callback, and `unwatch` removes it.
        """
        self._watchers[watcher] = call

    def unwatch(self, watcher: Hashable) -> None:
        """Remove the callback that `watch` has stored for `watcher`. Do nothing if there is none."""
        self._watchers.pop(watcher, None)

    def notify(self, conversation_id: ConversationId, changes_list: bool, *, read_by: str | None = None) -> None:
        """Call the callbacks of all watchers after a change to a conversation.

        `changes_list` is True if titles or the set of listed conversations may have changed. `read_by` is the
        identity of a principal if the only change is that this principal has read the conversation.
        """
        for call in tuple(self._watchers.values()):
            call(conversation_id, changes_list, read_by)
