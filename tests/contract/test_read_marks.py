"""Which conversations are unread for which principal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from kit.builders.entries import FIRST, OTHER, answers, said, summary
from parley.conversation.state import TurnOutcome
from parley.errors import UnknownConversation
from parley.ports.store import Lease, Query, Store, StoredToken, Summary, Viewer
from parley.stores.memory import MemoryStore
from parley.wire.events import TurnEndReason
from parley.wire.ids import ConversationId, Seq

ALICE, BOB = Viewer(identity="alice"), Viewer(identity="bob")


def ended(seq: int, reason: TurnEndReason = "done", *, at: float = 5.0, updated_at: float = 5.0) -> Summary:
    outcome = TurnOutcome(
        seq=Seq(seq), at=at, reason=reason, text="Grüße", code="x" if reason == "failed" else None
    )
    return replace(summary(updated_at=updated_at), outcome=outcome)


async def end_turn(
    store: Store, conversation_id: ConversationId, reason: TurnEndReason = "done", *, updated_at: float = 5.0
) -> Lease:
    """Create a conversation, and end its first turn at position 2."""
    await store.create(conversation_id, [], summary())
    lease = await store.acquire(conversation_id, address="")
    await store.append(lease, answers(1, 3), ended(2, reason, updated_at=updated_at))
    return lease


async def unread(store: Store, viewer: Viewer) -> list[str]:
    found = await store.find(Query(viewer=viewer, archived=None))
    return [one.conversation_id for one in found.items if one.unread]


async def test_a_turn_that_ended_is_unread_until_its_end_is_marked(store: Store) -> None:
    lease = await end_turn(store, FIRST)
    assert (await unread(store, ALICE), await unread(store, BOB)) == ([FIRST], [FIRST])
    (listed,) = (await store.find(Query())).items
    assert (listed.unread, listed.summary) == (False, ended(2))
    assert (await store.head(FIRST)).summary == ended(2)

    assert await store.mark_read(FIRST, "alice", Seq(1)) is True
    assert await unread(store, ALICE) == [FIRST]
    assert await store.mark_read(FIRST, "alice", Seq(2)) is True
    assert (await unread(store, ALICE), await unread(store, BOB)) == ([], [FIRST])

    assert [await store.mark_read(FIRST, "alice", Seq(seq)) for seq in (1, 2)] == [False, False]
    assert await unread(store, ALICE) == []
    await store.append(lease, [said(4, "more")], ended(4))
    assert await unread(store, ALICE) == [FIRST]


async def test_turns_in_a_new_log_count_as_read(store: Store) -> None:
    await store.create(FIRST, answers(1, 3), ended(2))
    draft = await store.draft()
    await draft.add(answers(1, 3))
    await draft.finish(OTHER, ended(2))
    assert await unread(store, ALICE) == []

    for one in (FIRST, OTHER):
        lease = await store.acquire(one, address="")
        await store.append(lease, [said(4, "renamed")], ended(2))
        assert await unread(store, ALICE) == []
        await store.append(lease, [said(5, "more")], ended(5))
        assert await unread(store, ALICE) == [one]
        await store.mark_read(one, "alice", Seq(5))


async def test_turns_that_ended_before_the_viewer_existed_count_as_read(store: Store) -> None:
    await end_turn(store, FIRST)
    assert [await unread(store, replace(ALICE, since=since)) for since in (4.9, 5.0)] == [[FIRST], []]


async def test_only_an_idle_conversation_is_listed_as_failed_or_finished(store: Store) -> None:
    reasons: tuple[TurnEndReason, ...] = ("done", "failed", "interrupted", "restarted", "stopped")
    for number, reason in enumerate(reasons):
        await end_turn(store, ConversationId(reason), reason, updated_at=float(number))
    lease = await end_turn(store, FIRST, "failed")
    await store.append(lease, [said(4, "next")], replace(ended(2, "failed"), state="running"))
    await end_turn(store, OTHER)
    await store.archive(OTHER, archived=True)

    async def found(query: Query) -> list[str]:
        return [one.conversation_id for one in (await store.find(query)).items]

    failed, finished = Query(viewer=ALICE, unread="failed"), Query(viewer=ALICE, unread="finished")
    assert await found(failed) == ["stopped", "restarted", "failed"]
    assert await found(finished) == ["interrupted", "done"]
    assert await found(replace(finished, archived=True)) == [OTHER]
    assert FIRST in await unread(store, ALICE)
    page = await store.find(replace(failed, limit=2))
    assert page.more
    assert await found(replace(failed, after=page.items[-1].cursor)) == ["failed"]
    assert (await store.find(replace(failed, limit=0))).more
    assert await found(replace(failed, conversation=ConversationId("done"))) == []

    await store.mark_read(ConversationId("stopped"), "alice", Seq(3))
    assert await found(failed) == ["restarted", "failed"]
    assert await found(replace(failed, viewer=BOB)) == ["stopped", "restarted", "failed"]


async def test_marks_end_with_their_conversation_and_their_token(store: Store) -> None:
    token = StoredToken(name="alice", digest=b"a" * 32, role="observer", created_at=1.0)
    viewer = Viewer(identity=token.token_id)
    lease = await end_turn(store, FIRST)
    await store.add_token(token)
    for identity in (viewer.identity, "local"):
        await store.mark_read(FIRST, identity, Seq(3))
    assert await unread(store, viewer) == []

    await store.remove_token("alice")
    assert (await unread(store, viewer), await unread(store, Viewer(identity="local"))) == ([FIRST], [])

    await store.delete(lease)
    await end_turn(store, FIRST)
    assert await unread(store, Viewer(identity="local")) == [FIRST]


async def test_an_unknown_conversation_cannot_be_marked(store: Store) -> None:
    with pytest.raises(UnknownConversation):
        await store.mark_read(FIRST, "alice", Seq(1))


async def test_marks_survive_the_store(new_store: Callable[[Path], Store], tmp_path: Path) -> None:
    store = new_store(tmp_path)
    await end_turn(store, FIRST)
    await store.mark_read(FIRST, "alice", Seq(2))
    await store.close()
    if not isinstance(store, MemoryStore):
        again = new_store(tmp_path)
        assert (await unread(again, ALICE), await unread(again, BOB)) == ([], [FIRST])
        await again.close()
