"""The capacity model (`bench/capacity.py`)."""

from __future__ import annotations

import pytest
from bench.capacity import Costs, Load, Site, Work, largest, predict

COSTS = Costs(
    turn=Work(node=0.010, database=0.002, rest=0.008),
    delta=Work(node=0.0001, rest=0.0001),
    remote_turn=Work(other=0.005),
    remote_delta=Work(other=0.0001),
)
LOCAL = Load(deltas=101, remote=0.0)
HALF = Load(deltas=101, remote=0.5)


def test_nodes_add_up_until_the_primary_is_used_up() -> None:
    turns = [predict(COSTS, LOCAL, Site(nodes=count, database_cores=1)) for count in (1, 2, 10, 20)]

    assert [one.turns for one in turns] == pytest.approx([50, 100, 500, 500])
    assert (turns[1].limit, turns[3].limit) == ("the nodes (one core each)", "the primary")
    assert turns[0].deltas == pytest.approx(5050)
    assert largest(COSTS, LOCAL, 1) == 10


def test_on_one_computer_all_processes_share_the_cores() -> None:
    turns = [predict(COSTS, LOCAL, Site(nodes=count, database_cores=2, shared_cores=2)) for count in (1, 2, 3)]

    # One turn costs 20 ms on a node, 2 ms on the primary and 18 ms elsewhere, so two cores carry 50 turns.
    assert [one.turns for one in turns] == pytest.approx([50, 50, 50])
    assert {one.limit for one in turns[1:]} == {"the cores of the computer"}


def test_clients_of_other_nodes_cost_more() -> None:
    local, half = (predict(COSTS, load, Site(nodes=4, database_cores=8)) for load in (LOCAL, HALF))

    assert local.turns == pytest.approx(200)
    assert half.turns == pytest.approx(4 / 0.0275)
