"""The nodes in a database: their ids, their restarts, and when a conversation of a node may be taken over
(`parley.stores.postgres.nodes`, `parley.stores.postgres.leases`, `parley.stores.postgres.held_lease`).
"""

from __future__ import annotations

import asyncio

import pytest

from kit.builders.entries import FIRST, said, summary
from kit.servers.database_port import DatabasePort
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.system.commands import TIMEOUT_SECONDS
from parley.errors import BadHome, LeaseLost, OwnedElsewhere
from parley.ports.nodes import Node
from parley.stores.postgres.store import PostgresStore

pytestmark = [NEEDS_POSTGRES, pytest.mark.waits]

A = Node(id="a", url="http://127.0.0.1:1", version="1")
B = Node(id="b", url="http://127.0.0.1:2", version="2")


async def test_nodes_see_each_other_until_they_leave(databases: Databases) -> None:
    one, two, process = (PostgresStore(databases.url()) for _ in range(3))
    await one.join(A)
    await two.join(B)
    seen = await one.nodes(), await two.nodes(), await process.nodes()
    await two.close()
    left = await one.nodes()
    await one.close()
    await process.close()

    assert seen == ([B], [A], [A, B])
    assert left == []


async def test_a_process_that_already_holds_leases_can_become_a_node(databases: Databases) -> None:
    one, two = PostgresStore(databases.url()), PostgresStore(databases.url())
    await one.create(FIRST, [], summary())
    lease = await one.acquire(FIRST, address="")
    await one.join(A)
    seen = await two.nodes()
    await one.append(lease, [said(1, "still the owner")], summary())
    await one.close()
    left = await two.nodes()
    await two.close()

    assert seen == [A]
    assert left == []


async def test_two_running_nodes_cannot_have_the_same_id(databases: Databases) -> None:
    one, two = (PostgresStore(databases.url(), lease_seconds=0.3) for _ in range(2))
    await one.join(A)
    with pytest.raises(BadHome, match=r"the node `a` is already running as process .* at http://127.0.0.1:1"):
        await two.join(A)
    await one.close()
    await two.join(A)
    await two.close()


async def test_a_lease_names_its_node(databases: Databases) -> None:
    one, two = PostgresStore(databases.url()), PostgresStore(databases.url())
    await one.join(A)
    await one.create(FIRST, [], summary())
    await one.acquire(FIRST, address=A.url)
    owner = (await two.head(FIRST)).owner
    with pytest.raises(OwnedElsewhere) as refused:
        await two.acquire(FIRST, address="")
    await one.close()
    await two.close()

    assert owner is not None
    assert (owner.node, owner.address) == ("a", A.url)
    assert refused.value.process.endswith(" on a")
    assert refused.value.address == A.url


@pytest.mark.promises("nodes.cut-off")
async def test_a_node_without_the_database_loses_its_conversations_before_another_node_can_take_them(
    databases: Databases,
) -> None:
    """The node is cut off, so PostgreSQL releases its lock at once."""
    lost = asyncio.Event()
    times: dict[str, float] = {}
    loop = asyncio.get_running_loop()

    def on_lost() -> None:
        times["lost"] = loop.time()
        lost.set()

    async with asyncio.timeout(TIMEOUT_SECONDS), DatabasePort(databases.url()) as port:
        one = PostgresStore(port.url, lease_seconds=2.0)
        two = PostgresStore(databases.url(), lease_seconds=2.0)
        await one.join(A)
        await one.create(FIRST, [], summary())
        lease = await one.acquire(FIRST, address=A.url, on_lost=on_lost)
        port.refuses = True
        port.cut()
        while "taken" not in times:
            try:
                await two.acquire(FIRST, address=B.url)
                times["taken"] = loop.time()
            except OwnedElsewhere:
                await asyncio.sleep(0.01)
        port.refuses = False
        await lost.wait()
        while not await two.nodes():  # noqa: ASYNC110 - the node joins again when the database is back
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost):
            await one.append(lease, [said(1, "late")], summary())
        await one.close()
        await two.close()

    assert times["lost"] < times["taken"]


@pytest.mark.promises("nodes.node-lost")
async def test_a_cut_off_node_is_replaced_at_once_if_its_computer_refuses_connections(databases: Databases) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), DatabasePort(databases.url()) as port:
        one, two = PostgresStore(port.url), PostgresStore(databases.url())
        await one.join(A)
        await one.create(FIRST, [], summary())
        await one.acquire(FIRST, address=A.url)
        port.refuses = True
        port.cut()
        with pytest.raises(OwnedElsewhere):
            await two.acquire(FIRST, address=B.url)
        two.note_refused(A.url)
        taken = None
        while taken is None:
            try:
                taken = await two.acquire(FIRST, address=B.url)
            except OwnedElsewhere:
                await asyncio.sleep(0.01)  # PostgreSQL has not noticed the end of the connection
        port.refuses = False
        await two.close()
        await one.close()
