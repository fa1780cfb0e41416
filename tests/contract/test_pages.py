"""A long log is read in pages, forwards and backwards, and an entry is found by its key."""

from __future__ import annotations

import pytest

from kit.builders.entries import FIRST, OTHER, answers, asked, everything_in, said, summary
from parley.conversation.log import Entry, visible
from parley.conversation.records import (
    ApprovalRequest,
    ApprovalSettlement,
    CommandOutput,
    RecordBase,
    TurnStarted,
    record_type,
)
from parley.errors import UnknownConversation
from parley.ports.store import PAGE, Store
from parley.wire.ids import ApprovalId, CallId, EventId, Seq
from parley.wire.jsonrpc import encode

IMAGE = "data:image/png;base64," + "iVBORw0KGgo+/AAA" * 1000


def record(seq: int, one: RecordBase) -> Entry:
    return Entry(Seq(seq), float(seq), record_type(one), False, encode(one))


async def test_a_page_ends_after_its_limit_of_entries(store: Store) -> None:
    entries = answers(1, 10)
    await store.create(FIRST, entries, summary())

    assert await store.read(FIRST, after=Seq(2), limit=3) == entries[2:5]
    assert await store.read(FIRST, after=Seq(8), limit=3) == entries[8:]
    assert await store.read(FIRST, after=Seq(10), limit=3) == []
    assert await store.read_before(FIRST, before=Seq(9), limit=3) == entries[5:8]
    assert await store.read_before(FIRST, before=Seq(3), limit=3) == entries[:2]
    assert await store.read_before(FIRST, before=Seq(1), limit=3) == []
    assert await store.read_before(FIRST, before=Seq(99), limit=3) == entries[7:]


async def test_a_page_ends_with_the_entry_that_exceeds_its_bytes(store: Store) -> None:
    entries = [said(seq, "x" * 1000) for seq in range(1, 11)]
    await store.create(FIRST, entries, summary())

    assert await store.read(FIRST, after=Seq(0), max_bytes=2500) == entries[:3]
    assert await store.read(FIRST, after=Seq(0), max_bytes=0) == entries[:1]
    assert await store.read_before(FIRST, before=Seq(11), max_bytes=2500) == entries[7:]
    assert await store.read_before(FIRST, before=Seq(11), max_bytes=0) == entries[9:]


async def test_a_long_log_reads_the_same_backwards(store: Store) -> None:
    draft = await store.draft()
    await draft.add([asked(1, IMAGE), *answers(2, PAGE)])
    await draft.add([*answers(PAGE + 1, PAGE + 5), asked(PAGE + 6, f"{IMAGE} and {IMAGE}")])
    await draft.finish(FIRST, summary())
    found: list[Entry] = []
    before = Seq(PAGE + 7)
    while page := await store.read_before(FIRST, before=before):
        assert len(page) <= PAGE
        found[:0] = page
        before = page[0].seq

    assert found == await everything_in(store)


async def test_pages_for_clients_contain_every_visible_entry_and_their_last_entry(store: Store) -> None:
    hidden = {seq: record(seq, TurnStarted(event_id=EventId(f"{seq}"))) for seq in (1, 3, 6, 7)}
    output = encode(CommandOutput(call_id=CallId("c"), streams=()))
    shown = Entry.stored(Seq(4), 4.0, record_type(CommandOutput), is_event=False, body=output)
    entries = [hidden[1], asked(2, IMAGE), hidden[3], shown, said(5, "x"), hidden[6], hidden[7]]
    await store.create(FIRST, entries, summary())

    for limit in range(1, len(entries) + 1):
        found: list[Entry] = []
        after = Seq(0)
        while page := await store.read(FIRST, after=after, limit=limit, visible_only=True):
            assert page[-1].seq == min(after + limit, len(entries))
            found += page
            after = page[-1].seq
        assert list(visible(found)) == list(visible(entries))


async def test_entries_are_found_by_their_keys(store: Store) -> None:
    approval = ApprovalId("33333333-3333-4333-8333-333333333333")
    requested = ApprovalRequest(approval_id=approval, kind="limit", call_id=CallId(""))
    settled = ApprovalSettlement(approval_id=approval, decision="approved", by="client")
    await store.create(FIRST, [record(1, TurnStarted(event_id=EventId("7"))), asked(2, IMAGE)], summary())
    await store.create(OTHER, [asked(1, "of another")], summary())
    lease = await store.acquire(FIRST, address="")
    await store.append(
        lease, [record(3, requested), said(4, "m"), record(5, settled), asked(6, "again")], summary()
    )
    keys = {
        ("turn_started", "7"): 1,
        ("user_message", "m"): 2,
        ("question_asked", approval): 3,
        ("question_settled", approval): 5,
        ("turn_started", "m"): None,
        ("user_message", "n"): None,
        ("agent_message", "m"): None,
    }

    assert {(kind, key): await store.position_of(FIRST, kind, key) for kind, key in keys} == keys
    assert await store.position_of(OTHER, "user_message", "m") == 1


async def test_a_deleted_conversation_leaves_no_keys_for_the_next_of_its_id(store: Store) -> None:
    await store.create(FIRST, [asked(1, "one")], summary())
    await store.delete(await store.acquire(FIRST, address=""))
    with pytest.raises(UnknownConversation):
        await store.position_of(FIRST, "user_message", "m")
    await store.create(FIRST, [], summary())

    assert await store.position_of(FIRST, "user_message", "m") is None
