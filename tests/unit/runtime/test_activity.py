"""Watchers of all conversations of a home."""

from __future__ import annotations

from parley.runtime.activity import Activity
from parley.wire.ids import ConversationId

ONE = ConversationId("one")


def test_each_watcher_is_notified_until_it_ends() -> None:
    activity, notified = Activity(), list[tuple[str, ConversationId, bool, str | None]]()
    assert not activity.is_watched
    activity.watch("a", lambda one, changes_list, read_by: notified.append(("a", one, changes_list, read_by)))

    def leave(one: ConversationId, changes_list: bool, read_by: str | None) -> None:
        notified.append(("b", one, changes_list, read_by))
        activity.unwatch("b")

    activity.watch("b", leave)
    activity.notify(ONE, True)
    activity.notify(ONE, False, read_by="reader")
    activity.unwatch("a")
    activity.unwatch("a")
    activity.notify(ONE, True)

    assert notified == [("a", ONE, True, None), ("b", ONE, True, None), ("a", ONE, False, "reader")]
    assert not activity.is_watched
