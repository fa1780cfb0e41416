"""Logs are stored as they were written, and only the lease holder can append."""

from __future__ import annotations

import asyncio

import pytest

from kit.builders.entries import FIRST, OTHER, answers, asked, everything_in, said, summary
from parley.conversation.log import Entry
from parley.conversation.records import CommandOutput, StreamOutput, record_type
from parley.errors import LeaseLost, StoreFailed, UnknownConversation
from parley.ports.store import PAGE, Head, Lease, Store
from parley.wire.ids import START, CallId, ConversationId, ItemId, Seq


async def begun(store: Store, *entries: Entry) -> Lease:
    await store.create(FIRST, entries, summary())
    return await store.acquire(FIRST, address="")


async def test_a_log_reads_as_it_was_written(store: Store) -> None:
    lease = await begun(store, asked(1, "Hello?"))
    await store.append(lease, [said(2, "Hello."), said(3, "Söme ☃ \0 text")], summary())

    assert await everything_in(store) == [asked(1, "Hello?"), said(2, "Hello."), said(3, "Söme ☃ \0 text")]


async def test_a_conversation_may_begin_with_nothing(store: Store) -> None:
    lease = await begun(store)
    await store.append(lease, [said(1, "first")], summary())

    assert (lease.last, await everything_in(store)) == (START, [said(1, "first")])


async def test_the_output_of_a_command_comes_back_as_it_was(store: Store) -> None:
    stream = StreamOutput(
        item=ItemId("i1"), stream="stdout", head=bytes(range(256)) * 99, tail=b"the end", size=99999, lines=99
    )
    output = CommandOutput(call_id=CallId("c1"), streams=(stream,))
    entry = Entry(Seq(1), 1.0, record_type(CommandOutput), False, b"", output)
    await begun(store, entry)

    assert await everything_in(store) == [entry]


async def test_images_come_back_byte_for_byte(store: Store) -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo+/AAA" * 1000
    message = asked(1, f"{image} and the same again: {image}==")
    await begun(store, message)

    assert await everything_in(store) == [message]


async def test_appends_are_written_in_order(store: Store) -> None:
    lease = await begun(store)
    written = [store.append(lease, [said(seq, str(seq))], summary()) for seq in range(1, 51)]
    await asyncio.gather(*written)

    assert await everything_in(store) == [said(seq, str(seq)) for seq in range(1, 51)]


async def test_cancelling_an_append_changes_nothing(store: Store) -> None:
    lease = await begun(store)
    store.append(lease, [said(1, "one")], summary()).cancel()
    await store.append(lease, [said(2, "two")], summary())

    assert await everything_in(store) == [said(1, "one"), said(2, "two")]


async def test_an_append_over_what_is_there_is_fenced(store: Store) -> None:
    lease = await begun(store, said(1, "one"))

    with pytest.raises(LeaseLost):
        await store.append(lease, [said(1, "another")], summary("another"))

    assert await everything_in(store) == [said(1, "one")]
    assert (await store.head(FIRST)).summary == summary()


async def test_an_append_after_something_that_is_missing_fails(store: Store) -> None:
    lease = await begun(store, said(1, "one"))

    with pytest.raises(StoreFailed):
        await store.append(lease, [said(3, "three")], summary())

    assert await everything_in(store) == [said(1, "one")]


async def test_one_append_that_fails_spoils_no_other(store: Store) -> None:
    lease = await begun(store)
    await store.create(OTHER, [], summary())
    other = await store.acquire(OTHER, address="")
    written = [
        store.append(lease, [said(1, "one")], summary()),
        store.append(lease, [said(1, "one too many")], summary()),
        store.append(other, [said(1, "of another")], summary()),
        store.append(lease, [said(2, "two")], summary()),
    ]

    failed = await asyncio.gather(*written, return_exceptions=True)

    assert [type(one) for one in failed] == [type(None), LeaseLost, type(None), type(None)]
    assert await everything_in(store) == [said(1, "one"), said(2, "two")]
    assert await everything_in(store, OTHER) == [said(1, "of another")]


async def test_a_summary_is_written_with_the_entries_and_without(store: Store) -> None:
    lease = await begun(store)
    await store.append(lease, [said(1, "one")], summary("new", state="running", updated_at=2.5))
    with_entries = await store.head(FIRST)
    await store.append(lease, [], summary("newer", updated_at=3.5))
    without = await store.head(FIRST)

    assert with_entries.summary == summary("new", state="running", updated_at=2.5)
    assert (without.summary, without.last) == (summary("newer", updated_at=3.5), 1)


async def test_long_logs_are_read_in_pages(store: Store) -> None:
    await store.create(FIRST, answers(1, PAGE), summary())
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, answers(PAGE + 1, PAGE + 5), summary())

    pages = [await store.read(FIRST, after=Seq(after)) for after in (0, PAGE, PAGE + 3, PAGE + 5, PAGE + 9)]

    assert pages == [
        answers(1, PAGE),
        answers(PAGE + 1, PAGE + 5),
        answers(PAGE + 4, PAGE + 5),
        [],
        [],
    ]


async def test_a_new_conversation_has_no_owner(store: Store) -> None:
    await store.create(FIRST, [said(1, "one")], summary(), archived=True)

    assert await store.head(FIRST) == Head(last=Seq(1), epoch=0, owner=None, summary=summary(), archived=True)


async def test_an_id_is_taken_once(store: Store) -> None:
    await store.create(FIRST, [said(1, "one")], summary())

    with pytest.raises(StoreFailed):
        await store.create(FIRST, [], summary("another"))

    assert (await store.head(FIRST)).summary == summary()


async def test_a_missing_conversation_is_unknown(store: Store) -> None:
    for call in (
        store.acquire(FIRST, address=""),
        store.read(FIRST, after=START),
        store.head(FIRST),
        store.archive(FIRST, archived=True),
    ):
        with pytest.raises(UnknownConversation):
            await call


async def test_a_deleted_conversation_is_gone_with_its_lease(store: Store) -> None:
    lease = await begun(store, *answers(1, PAGE))
    await store.append(lease, answers(PAGE + 1, PAGE + 2), summary())
    await store.delete(lease)

    with pytest.raises(UnknownConversation):
        await store.read(FIRST, after=START)
    with pytest.raises(LeaseLost):
        await store.append(lease, [said(PAGE + 3, "late")], summary())
    with pytest.raises(LeaseLost):
        await store.delete(lease)


async def test_an_id_that_was_deleted_can_be_used_anew(store: Store) -> None:
    old = await begun(store, said(1, "old"))
    await store.delete(old)
    await begun(store, said(1, "new"))

    with pytest.raises(LeaseLost):
        await store.append(old, [said(2, "late")], summary())

    assert await everything_in(store) == [said(1, "new")]


async def test_a_closed_store_has_finished_what_was_begun_and_refuses_the_rest(store: Store) -> None:
    lease = await begun(store)
    written = [store.append(lease, [said(seq, "text")], summary()) for seq in range(1, 20)]
    await store.close()

    assert [one.result() for one in written] == [None] * 19
    with pytest.raises(StoreFailed):
        await store.append(lease, [said(20, "late")], summary())
    with pytest.raises(StoreFailed):
        await store.read(FIRST, after=START)
    await store.release(lease)
    await store.close()


async def test_one_call_returns_which_of_many_logs_have_grown(store: Store) -> None:
    await store.create(FIRST, answers(1, 3), summary())
    await store.create(OTHER, answers(1, 2), summary())
    missing = ConversationId("33333333-3333-4333-8333-333333333333")

    assert await store.changed_since({}) == []
    assert await store.changed_since({FIRST: Seq(3), OTHER: Seq(2)}) == []
    assert await store.changed_since({FIRST: Seq(3), OTHER: Seq(1), missing: START}) == [OTHER, missing]
    assert await store.changed_since({FIRST: Seq(4), OTHER: Seq(2)}) == []


async def test_a_log_that_grew_or_was_deleted_is_returned_until_it_was_read(store: Store) -> None:
    await store.create(FIRST, answers(1, 3), summary())
    await store.create(OTHER, answers(1, 2), summary())
    ends = {FIRST: Seq(3), OTHER: Seq(2)}
    for _ in range(5):  # more times than the store has connections for reading
        assert await store.changed_since(ends) == []
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, answers(4, 4), summary())
    for _ in range(5):
        assert await store.changed_since(ends) == [FIRST]
    ends[FIRST] = Seq(4)
    for _ in range(5):
        assert await store.changed_since(ends) == []
    await store.delete(lease)

    for _ in range(5):
        assert await store.changed_since(ends) == [FIRST]
