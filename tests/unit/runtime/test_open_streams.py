"""Streams that are taken over: all streams, or the streams that were opened before a given time."""

from __future__ import annotations

from functools import partial

from parley.runtime.open_streams import OpenStreams


class CountingClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError  # streams do not wait


def test_a_take_over_of_another_process_ends_only_earlier_streams() -> None:
    streams, ended = OpenStreams(CountingClock()), list[tuple[str, str]]()

    def note(name: str, by: str) -> None:
        ended.append((name, by))

    for name in ("first", "second", "third"):
        streams.add(name, partial(note, name))

    streams.end("phone", opened_before=2.0)
    assert ended == [("first", "phone")]
    streams.end("phone", opened_before=2.0)
    assert len(ended) == 1


def test_of_streams_that_take_over_at_the_same_time_the_later_one_stays() -> None:
    clock, ended = CountingClock(), list[tuple[str, str]]()
    here, there = OpenStreams(clock), OpenStreams(clock)
    here.add("one", lambda by: ended.append(("one", by)))
    there.add("two", lambda by: ended.append(("two", by)))
    first, second = here.take_over("one", "phone"), there.take_over("two", "desk")
    there.end("phone", opened_before=first)
    here.end("desk", opened_before=second)

    assert ended == [("one", "desk")]


def test_a_take_over_ends_all_other_streams_of_the_process() -> None:
    streams, ended = OpenStreams(CountingClock()), list[str]()
    for name in ("first", "second", "third"):
        streams.add(name, ended.append)
    streams.remove("second")

    assert streams.take_over("third", "desk") == 3.0
    assert ended == ["desk"]
