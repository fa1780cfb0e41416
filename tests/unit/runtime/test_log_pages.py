"""A fork has the entries up to the end of a turn, and the latest title. One page is read at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kit.builders.events import agent_message, task_complete, user_message
from kit.builders.records import renamed, session_granted, settings_chosen, turn_ended, turn_started
from parley.conversation.errors import UnknownMessage
from parley.conversation.log import Entry, Log
from parley.ports.store import PAGE
from parley.runtime.errors import TurnIsRunning
from parley.runtime.log_pages import entries_of_fork, last_turn_end
from parley.wire.ids import START, MessageId, Seq

A, B = MessageId("a"), MessageId("b")


class Pages:
    """A log that is read in small pages."""

    def __init__(self, log: Log, size: int) -> None:
        self.entries, self._size = log.entries, size

    async def read_after(self, after: Seq) -> Sequence[Entry]:
        return self.entries[after : after + self._size]

    async def read_before(self, before: Seq, *, limit: int = PAGE) -> Sequence[Entry]:
        return self.entries[max(0, before - 1 - min(self._size, limit)) : before - 1]

    async def position_of_message(self, message_id: MessageId) -> Seq | None:
        return {A: Seq(3), B: Seq(7)}.get(message_id)


def two_turns(*, ended: bool = True) -> Log:
    log = Log()
    first = (turn_started("1"), user_message("a", message_id="a"), task_complete("One"), turn_ended())
    second = (turn_started("2"), user_message("go", message_id="b", parent="a"), agent_message("Two"))
    log.append((settings_chosen(), *first, *second, *((turn_ended(),) if ended else ())), at=1.0)
    return log


async def forked(log: Log, at: MessageId | None, *, size: int, is_idle: bool = True) -> list[Entry]:
    pages = entries_of_fork(Pages(log, size), at, last=log.last, is_idle=is_idle)
    return [entry async for page in pages for entry in page]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_fork_has_all_entries_up_to_the_end_of_a_turn(size: int) -> None:
    log = two_turns()

    assert await forked(log, A, size=size) == log.entries[:5]
    assert await forked(log, B, size=size) == await forked(log, None, size=size) == log.entries
    with pytest.raises(UnknownMessage):
        await forked(log, MessageId("c"), size=size)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_the_last_title_comes_with_a_fork_and_grants_do_not(size: int) -> None:
    log = two_turns()
    log.append((renamed("Foxes"), renamed("Hares"), session_granted()), at=2.0)
    title = log.entries[-2]

    assert await forked(log, A, size=size) == [*log.entries[:5], replace(title, seq=Seq(6))]
    assert await forked(log, B, size=size) == [*log.entries[:9], replace(title, seq=Seq(10))]
    whole = await forked(log, None, size=size)
    assert (whole[:-1], b'"key":""' in whole[-1].encoded) == (log.entries[:-1], True)


async def test_a_turn_that_has_not_ended_has_no_fork() -> None:
    log = two_turns(ended=False)

    assert await forked(log, A, size=2) == log.entries[:5]
    for at in (B, None):
        with pytest.raises(TurnIsRunning):
            await forked(log, at, size=2, is_idle=False)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_the_end_of_a_turn_is_found_between_two_positions(size: int) -> None:
    log = Pages(two_turns(), size)
    ends = [
        await last_turn_end(log, after=after, up_to=up_to)
        for after, up_to in ((START, Seq(4)), (START, Seq(5)), (Seq(1), Seq(8)), (Seq(5), Seq(8)), (Seq(5), Seq(9)))
    ]

    assert [None if end is None else (end.ended.why, end.text) for end in ends] == [
        None,
        ("done", "One"),
        ("done", "One"),
        None,
        ("done", None),
    ]
