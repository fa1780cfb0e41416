"""Lists of conversations: filters, and order by latest activity."""

from __future__ import annotations

from msgspec.structs import replace

from kit.builders.approvals import approval_id, command_approval
from kit.builders.entries import FIRST, OTHER, asked, said, summary
from parley.conversation.log import Entry
from parley.conversation.records import ApprovalRequest, record_type
from parley.ports.store import ConversationListing, ConversationPage, Query, Store
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import encode


def ids(found: ConversationPage) -> list[str]:
    return [listed.conversation_id for listed in found.items]


async def test_a_list_shows_what_was_written_last(store: Store) -> None:
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary("Other", cwd="/other", updated_at=2.0))
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [said(1, "one")], summary("New", state="asking", updated_at=3.0))

    assert await store.find(Query()) == ConversationPage(
        items=(
            ConversationListing(
                conversation_id=FIRST,
                summary=summary("New", state="asking", updated_at=3.0),
                archived=False,
                owned=True,
            ),
            ConversationListing(
                conversation_id=OTHER,
                summary=summary("Other", cwd="/other", updated_at=2.0),
                archived=False,
                owned=False,
            ),
        ),
        more=False,
    )


async def test_pages_follow_each_other_also_where_moments_are_equal(store: Store) -> None:
    names = [ConversationId(f"{number}") for number in range(7)]
    for number, name in enumerate(names):
        await store.create(name, [], summary(updated_at=float(number // 3)))

    pages = [await store.find(Query(limit=3))]
    while pages[-1].more:
        pages.append(await store.find(Query(limit=3, after=pages[-1].items[-1].cursor)))

    assert [ids(page) for page in pages] == [["6", "5", "4"], ["3", "2", "1"], ["0"]]


async def test_a_page_that_is_just_full_is_the_last(store: Store) -> None:
    await store.create(FIRST, [], summary())

    assert not (await store.find(Query(limit=1))).more


async def test_archived_conversations_are_listed_apart(store: Store) -> None:
    await store.create(FIRST, [], summary())
    await store.create(OTHER, [], summary())
    await store.archive(FIRST, archived=True)
    archived = await store.find(Query(archived=True))
    others = await store.find(Query())
    await store.archive(FIRST, archived=False)

    assert (ids(archived), ids(others)) == ([FIRST], [OTHER])
    assert ids(await store.find(Query(archived=True))) == []


async def test_directory_and_state_and_text_must_all_fit(store: Store) -> None:
    await store.create(ConversationId("a"), [], summary("Fix it"))
    await store.create(ConversationId("b"), [], summary("fix it too", state="running"))
    await store.create(ConversationId("c"), [], summary("FIX", cwd="/"))

    assert ids(await store.find(Query(cwd="/work"))) == ["b", "a"]
    assert ids(await store.find(Query(state="idle"))) == ["c", "a"]
    assert ids(await store.find(Query(text="fix"))) == ["c", "b", "a"]
    assert ids(await store.find(Query(cwd="/work", state="idle", text="IT"))) == ["a"]
    assert ids(await store.find(Query(text=""))) == ["c", "b", "a"]


async def test_a_directory_may_be_written_in_several_ways(store: Store) -> None:
    for name, cwd in (("a", "/work"), ("b", "//work/./"), ("c", "/work/.."), ("d", "/"), ("e", "work")):
        await store.create(ConversationId(name), [], summary(cwd=cwd))

    found = {cwd: ids(await store.find(Query(cwd=cwd))) for cwd in ("/work", "/work/.", "/work/..", "/", "/./", "")}
    assert found == {
        "/work": ["b", "a"],
        "/work/.": ["b", "a"],
        "/work/..": ["c"],
        "/": ["d"],
        "/./": ["d"],
        "": [],
    }


async def test_text_is_found_in_what_was_said_and_nowhere_else(store: Store) -> None:
    record = Entry(Seq(3), 1.0, "call_output", False, b'{"record":"call_output","call_id":"1","output":"needle"}')
    event = Entry(Seq(4), 1.0, "error", True, b'{"type":"error","message":"needle"}')
    await store.create(FIRST, [asked(1, 'Die "STRASSE"?'), said(2, "Über allen Gipfeln"), record, event], summary())

    async def finds(text: str) -> bool:
        return ids(await store.find(Query(text=text))) == [FIRST]

    assert [await finds(text) for text in ('"straße"', "über ALLEN", "a title")] == [True] * 3
    assert [await finds(text) for text in ("needle", "user_message", "m1", "%")] == [False] * 4


async def test_a_conversation_is_found_by_the_approval_that_it_requested_and_not_by_one_that_is_mentioned(
    store: Store,
) -> None:
    for number, name, argv in ((1, FIRST, ("make",)), (2, OTHER, ("echo", approval_id(1)))):
        _, request = command_approval(number, *argv)
        entry = Entry(Seq(1), 1.0, record_type(ApprovalRequest), False, encode(request))
        await store.create(name, [entry], summary(updated_at=float(number)))

    found = [ids(await store.find(Query(asked=approval_id(number), archived=None))) for number in (1, 2, 3)]

    assert found == [[FIRST], [OTHER], []]


async def test_an_active_conversation_is_listed_first_also_after_the_clock_was_set_back(store: Store) -> None:
    third = ConversationId("00000000-0000-0000-0000-00000000000a")
    await store.create(OTHER, [], summary(updated_at=1000.0))
    await store.create(FIRST, [], replace(summary(updated_at=10.0), is_active=True))
    assert ids(await store.find(Query())) == [FIRST, OTHER]

    lease = await store.acquire(OTHER, address="")
    await store.append(lease, [said(1, "one")], replace(summary(updated_at=11.0), is_active=True))
    assert ids(await store.find(Query())) == [OTHER, FIRST]

    # an import keeps the time of its last activity, so it is not listed first
    await store.create(third, [], summary(updated_at=12.0))
    assert ids(await store.find(Query())) == [OTHER, FIRST, third]

    await store.append(lease, [said(2, "two")], replace(summary(updated_at=2000.0), is_active=True))
    (newest, *_) = (await store.find(Query())).items
    assert newest.summary == summary(updated_at=2000.0)


async def test_a_list_can_be_limited_to_one_conversation(store: Store) -> None:
    for one in (FIRST, OTHER):
        await store.create(one, [], summary(updated_at=1.0))
    assert [one.conversation_id for one in (await store.find(Query(conversation=OTHER))).items] == [OTHER]
    assert (await store.find(Query(conversation=OTHER, archived=True))).items == ()
