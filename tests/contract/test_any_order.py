"""Operations on a store in any order have the same results as on a dictionary."""

from __future__ import annotations

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.builders.entries import everything_in, said, summary
from parley.conversation.log import Entry
from parley.errors import LeaseLost, OwnedElsewhere, ParleyError, StoreFailed, UnknownConversation
from parley.ports.store import Lease, Query, StateName, Store, Summary
from parley.wire.ids import ConversationId, Seq

NAMES = tuple(map(ConversationId, "abc"))

Verb = Literal["create", "acquire", "release", "append", "archive", "restore", "delete"]


class Step(NamedTuple):
    verb: Verb
    name: ConversationId
    text: str
    number: int
    """The number of entries."""
    off: int
    """The distance between the position that the entries have and the position that they should have."""
    old: bool
    """True if the operation uses the lease before the last one."""
    summary: Summary


def texts() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(max_size=20),
        st.integers(4000, 9000).map(lambda size: b64encode(bytes([size % 256]) * size).decode()),
    )


def summaries() -> st.SearchStrategy[Summary]:
    return st.builds(
        summary,
        st.sampled_from(("one", "two", "ONE and two")),
        cwd=st.sampled_from(("/", "/work")),
        state=st.sampled_from(("idle", "running", "asking")),
        updated_at=st.sampled_from((1.0, 1.5, 2.0)),
    )


def steps() -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        st.sampled_from(("create", "acquire", "append", "append", "release", "archive", "restore", "delete")),
        st.sampled_from(NAMES),
        texts(),
        st.integers(0, 3),
        st.sampled_from((0, 0, 0, 0, 1, -1)),
        st.sampled_from((False, False, False, True)),
        summaries(),
    )


class Kept:
    def __init__(self, entries: list[Entry], summary: Summary) -> None:
        self.entries, self.summary, self.archived, self.owned = entries, summary, False, False


class Model:
    """The expected content of the store, and the leases that it granted."""

    def __init__(self) -> None:
        self.kept: dict[ConversationId, Kept] = {}
        self.leases: dict[ConversationId, list[Lease]] = {name: [] for name in NAMES}

    def lease(self, step: Step) -> Lease:
        leases = self.leases[step.name]
        return leases[-2 if step.old and len(leases) > 1 else -1]

    def entries(self, step: Step) -> list[Entry]:
        there = len(self.kept[step.name].entries) if step.name in self.kept else 0
        first = max(1, there + 1 + step.off)
        return [said(seq, step.text) for seq in range(first, first + step.number)]

    def expected(self, step: Step) -> type[ParleyError] | None:
        """Apply an operation, or return the error that is expected."""
        kept = self.kept.get(step.name)
        if step.verb == "create":
            if kept is not None:
                return StoreFailed
            self.kept[step.name] = Kept([said(seq, step.text) for seq in range(1, step.number + 1)], step.summary)
            return None
        if step.verb in ("acquire", "archive", "restore"):
            if kept is None:
                return UnknownConversation
            if step.verb != "acquire":
                kept.archived = step.verb == "archive"
            elif kept.owned:
                return OwnedElsewhere
            else:
                kept.owned = True
            return None
        current = kept is not None and kept.owned and self.lease(step) is self.leases[step.name][-1]
        if kept is None or not current:
            return None if step.verb == "release" else LeaseLost
        return self._with_the_lease(step, kept)

    def _with_the_lease(self, step: Step, kept: Kept) -> type[ParleyError] | None:
        if step.verb == "release":
            kept.owned = False
        elif step.verb == "delete":
            del self.kept[step.name]
        else:
            entries = self.entries(step)
            if entries and entries[0].seq <= len(kept.entries):
                return LeaseLost
            if entries and entries[0].seq > len(kept.entries) + 1:
                return StoreFailed
            kept.entries += entries
            kept.summary = step.summary
        return None


async def do(store: Store, model: Model, step: Step) -> None:
    match step.verb:
        case "create":
            await store.create(step.name, [said(seq, step.text) for seq in range(1, step.number + 1)], step.summary)
        case "acquire":
            model.leases[step.name].append(await store.acquire(step.name, address=""))
        case "release":
            await store.release(model.lease(step))
        case "append":
            await store.append(model.lease(step), model.entries(step), step.summary)
        case "archive" | "restore":
            await store.archive(step.name, archived=step.verb == "archive")
        case "delete":
            await store.delete(model.lease(step))


async def came_of(doing: Any) -> type[BaseException] | None:
    try:
        await doing
    except ParleyError as error:
        return type(error)
    return None


async def shown(store: Store, query: Query) -> list[tuple[ConversationId, Summary, bool]]:
    return [(one.conversation_id, one.summary, one.owned) for one in (await store.find(query)).items]


def listed(model: Model, query: Query) -> list[tuple[ConversationId, Summary, bool]]:
    fits = [
        (name, kept.summary, kept.owned)
        for name, kept in model.kept.items()
        if kept.archived == query.archived
        and query.cwd in (None, kept.summary.cwd)
        and query.state in (None, kept.summary.state)
    ]
    return sorted(fits, key=lambda one: (one[1].updated_at, one[0]), reverse=True)


async def as_a_dictionary_would(store: Store, order: Sequence[Step], state: StateName) -> None:
    model = Model()
    for step in order:
        if step.verb in ("release", "append", "delete") and not model.leases[step.name]:
            continue
        came = await came_of(do(store, model, step))
        assert came == model.expected(step), step
    for name, kept in model.kept.items():
        assert await everything_in(store, name) == kept.entries
        head = await store.head(name)
        assert (head.last, head.summary, head.archived) == (Seq(len(kept.entries)), kept.summary, kept.archived)
        if kept.summary.state != "idle" or not kept.owned:
            assert (head.owner is not None) == kept.owned
    for query in (Query(), Query(archived=True), Query(cwd="/work"), Query(state=state)):
        assert await shown(store, query) == listed(model, query)


@given(order=st.lists(steps(), max_size=30), state=st.sampled_from(("idle", "running", "asking")))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_of_calls(new_store: Callable[[Path], Store], order: list[Step], state: StateName) -> None:
    any_order(new_store, order, state)


@pytest.mark.long
@given(order=st.lists(steps(), max_size=80), state=st.sampled_from(("idle", "running", "asking")))
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_long_order_of_calls(new_store: Callable[[Path], Store], order: list[Step], state: StateName) -> None:
    any_order(new_store, order, state)


def any_order(new_store: Callable[[Path], Store], order: list[Step], state: StateName) -> None:
    async def run(home: Path) -> None:
        store = new_store(home)
        try:
            await as_a_dictionary_would(store, order, state)
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(run(Path(home, "home")))
