"""Searches in messages: the newest first, in bounded parts (`parley.stores.sqlite.search_queries`,
`parley.stores.postgres.search`).
"""

from __future__ import annotations

import pytest

from kit.builders.entries import FIRST, OTHER, asked, said, summary
from parley.conversation.log import Entry
from parley.errors import UnknownConversation
from parley.ports.store import SEARCH_BYTES, SEARCH_ENTRIES, SearchHit, SearchQuery, Store
from parley.wire.ids import ConversationId, Seq


async def found(store: Store, text: str, conversation: ConversationId | None = None, limit: int = 100) -> list[str]:
    """Return the hits of all pages, each as the first letter of its conversation and its position."""
    hits: list[str] = []
    before = None
    while True:
        query = SearchQuery(text=text, conversation=conversation, before=before, limit=limit)
        page = await store.search(query)
        assert len(page.hits) <= limit
        hits += [f"{hit.conversation_id[-1]}{hit.seq}" for hit in page.hits]
        if page.next is None:
            return hits
        before = page.next


async def test_a_hit_shows_where_the_text_is(store: Store) -> None:
    words = "x" * 100 + "Find\tthe\nNEEDLE here" + "y" * 200
    await store.create(FIRST, [said(1, "nothing"), said(2, words)], summary("A title"))
    page = await store.search(SearchQuery(text="needle"))

    hit = page.hits[0]
    assert page.next is None
    assert page.hits == (
        SearchHit(
            conversation_id=FIRST,
            title="A title",
            seq=Seq(2),
            at=hit.at,
            type="agent_message",
            snippet="x" * 51 + "Find the NEEDLE here" + "y" * 135,
            start=60,
            end=66,
        ),
    )
    assert hit.snippet[hit.start : hit.end] == "NEEDLE"


async def test_letters_that_become_longer_do_not_move_the_match(store: Store) -> None:
    for number, (words, text, match) in enumerate(
        (
            ("ß" * 5000 + "Straße", "STRASSE", "Straße"),
            ("ß" * 4096 + "x", "X", "x"),
            ("aßb", "s", "ß"),
            ("İstanbul", "STANBUL", "stanbul"),
            ("ŉ", "ŉ", "ŉ"),
            ("ab", "ab", "ab"),
        )
    ):
        one = ConversationId(f"{number}")
        await store.create(one, [asked(1, words)], summary())
        (hit,) = (await store.search(SearchQuery(text=text, conversation=one))).hits

        assert (hit.snippet[hit.start : hit.end], hit.type) == (match, "user_message")


async def test_the_message_that_was_stored_last_comes_first(store: Store) -> None:
    await store.create(FIRST, [asked(1, "a word"), said(2, "no"), said(3, "Words")], summary())
    await store.create(OTHER, [asked(1, "word")], summary())
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [said(4, "WORD")], summary())
    a, b = FIRST[-1], OTHER[-1]

    for limit in (1, 2, 3, 100):
        assert await found(store, "word", limit=limit) == [f"{a}4", f"{b}1", f"{a}3", f"{a}1"]
        assert await found(store, "WORD", FIRST, limit=limit) == [f"{a}4", f"{a}3", f"{a}1"]
    assert await found(store, "other") == []


async def test_only_messages_of_the_user_and_the_agent_are_searched(store: Store) -> None:
    record = Entry(Seq(1), 1.0, "call_output", False, b'{"record":"call_output","call_id":"1","output":"needle"}')
    event = Entry(Seq(2), 1.0, "error", True, b'{"type":"error","message":"needle"}')
    odd = Entry(Seq(3), 1.0, "agent_message", True, b'{"type":"agent_message","message":7}')
    await store.create(FIRST, [record, event, odd], summary("needle"))

    assert [await found(store, text) for text in ("needle", "agent_message", "%", "7")] == [[]] * 4


async def test_archived_conversations_are_searched_by_name_only(store: Store) -> None:
    await store.create(FIRST, [said(1, "word")], summary(), archived=True)
    await store.create(OTHER, [said(1, "word")], summary())

    assert await found(store, "word") == [f"{OTHER[-1]}1"]
    assert await found(store, "word", FIRST) == [f"{FIRST[-1]}1"]


async def test_deleted_conversations_are_not_found(store: Store) -> None:
    await store.create(FIRST, [said(1, "word")], summary())
    await store.create(OTHER, [said(1, "word")], summary())
    await store.delete(await store.acquire(FIRST, address=""))

    assert await found(store, "word") == [f"{OTHER[-1]}1"]
    with pytest.raises(UnknownConversation):
        await store.search(SearchQuery(text="word", conversation=FIRST))


async def test_an_empty_store_has_no_hits(store: Store) -> None:
    await store.create(FIRST, [], summary())

    assert await found(store, "word") == await found(store, "word", FIRST) == []


async def test_a_long_log_is_searched_in_parts(store: Store) -> None:
    draft = await store.draft()
    text = "words " * 50
    for first in range(1, SEARCH_ENTRIES + 2001, 2000):
        await draft.add([said(first + number, text if first > 1 else "the needle") for number in range(2000)])
    await draft.finish(FIRST, summary())
    pages = [await store.search(SearchQuery(text="the needle", limit=5))]
    while pages[-1].next is not None:
        pages.append(await store.search(SearchQuery(text="the needle", limit=5, before=pages[-1].next)))

    assert len(pages) > SEARCH_ENTRIES * len(text) // SEARCH_BYTES
    assert [hit.seq for page in pages for hit in page.hits] == list(range(2000, 0, -1))
    assert pages[0].hits == ()
