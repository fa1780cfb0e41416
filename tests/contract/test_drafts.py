"""A log that is written page by page: it is a conversation only when it is complete."""

from __future__ import annotations

import pytest

from kit.builders.approvals import approval_id, command_approval
from kit.builders.entries import FIRST, OTHER, answers, everything_in, said, summary
from kit.builders.logs import log_of
from kit.builders.records import call, model_said, settings_chosen
from parley.errors import StoreFailed, UnknownConversation
from parley.ports.store import PAGE, Query, Store


async def test_a_draft_is_invisible_until_it_is_complete(store: Store) -> None:
    draft = await store.draft()
    await draft.add(answers(1, PAGE))
    await draft.add(answers(PAGE + 1, PAGE + 10))
    seen_before = (await store.find(Query(archived=None))).items
    with pytest.raises(UnknownConversation):
        await store.head(FIRST)
    with pytest.raises(UnknownConversation):
        await store.acquire(FIRST, address="")

    await draft.finish(FIRST, summary("Whole"), archived=True)

    head = await store.head(FIRST)
    assert (seen_before, await everything_in(store)) == ((), answers(1, PAGE + 10))
    assert (head.last, head.owner, head.summary, head.archived) == (PAGE + 10, None, summary("Whole"), True)


async def test_a_finished_draft_is_a_normal_conversation(store: Store) -> None:
    draft = await store.draft()
    await draft.add(answers(1, 2))
    await draft.finish(FIRST, summary())
    await draft.drop()
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [said(3, "more")], summary())

    assert await everything_in(store) == [*answers(1, 2), said(3, "more")]


async def test_of_two_drafts_for_one_id_the_first_that_is_whole_gets_it(store: Store) -> None:
    first, second = await store.draft(), await store.draft()
    await first.add(answers(1, 2))
    await second.add(answers(1, 3))
    await second.finish(FIRST, summary("second"))

    with pytest.raises(StoreFailed, match=f"conversation {FIRST} already exists"):
        await first.finish(FIRST, summary("first"))
    await first.drop()

    assert await everything_in(store) == answers(1, 3)
    assert [one.summary.title for one in (await store.find(Query())).items] == ["second"]


async def test_deleting_a_conversation_does_not_touch_a_draft(store: Store) -> None:
    draft = await store.draft()
    await draft.add(answers(1, PAGE))
    await store.create(OTHER, answers(1, 3), summary())
    await store.delete(await store.acquire(OTHER, address=""))
    await draft.add(answers(PAGE + 1, PAGE + 3))
    await draft.finish(FIRST, summary())

    assert await everything_in(store) == answers(1, PAGE + 3)


async def test_requested_approvals_are_found_and_ids_in_texts_are_not(store: Store) -> None:
    asking = log_of(settings_chosen(), model_said(call("call1")), *command_approval(1, "rm", "x"))
    spoken = said(1, f"what about {approval_id(2)}?")
    await store.create(FIRST, asking.entries, summary(state="asking"))
    await store.create(OTHER, [spoken], summary())

    assert await store.has_approvals({approval_id(1), approval_id(3)})
    assert not await store.has_approvals({approval_id(2), approval_id(3)})
