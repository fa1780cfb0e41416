"""The choice of the node that runs a turn (`parley.runtime.placement`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.ports.nodes import Node, WorkingDirectory
from parley.runtime.errors import NoNodeForDirectory
from parley.runtime.placement import SLACK, choose_node


def node(name: str, *roots: str, **options: Any) -> Node:
    return Node(id=name, url=f"http://{name}", version="1", roots=roots, **options)


REPOSITORY: dict[str, Any] = {"mode": "git", "repository": "app"}


def git(name: str, *repositories: str, **options: Any) -> Node:
    return node(name, mode="git", repositories=repositories, **options)


def chosen(nodes: list[Node], **options: Any) -> str:
    defaults: dict[str, Any] = {"mode": "local", "here": "a", "exists_here": False}
    assigned, repository = options.pop("assigned", None), options.pop("repository", None)
    directory = WorkingDirectory(path="" if repository else "/work/p", repository=repository, node=assigned)
    return choose_node(nodes, directory, **{**defaults, **options}).id


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        pytest.param([node("a", "/work"), node("b", "/other")], {}, "a", id="the root of this node"),
        pytest.param([node("a", "/other"), node("b", "/work")], {}, "b", id="the root of another node"),
        pytest.param([node("a", "/wor"), node("b", "/work/p")], {}, "b", id="a root is no prefix of a name"),
        pytest.param([node("a"), node("b")], {"exists_here": True}, "a", id="a directory of this node, no roots"),
        pytest.param(
            [node("a"), node("b")], {"assigned": "b", "exists_here": True}, "b", id="the assigned, no roots"
        ),
        pytest.param(
            [node("a", "/work"), node("b", "/work", running=9)], {"assigned": "b"}, "b", id="the assigned first"
        ),
        pytest.param(
            [node("a", "/work"), node("b", "/work", is_alive=False)],
            {"assigned": "b"},
            "a",
            id="the assigned has ended",
        ),
        pytest.param([node("a", "/work", running=SLACK), node("b", "/work")], {}, "a", id="a small difference"),
        pytest.param([node("a", "/work", running=SLACK + 1), node("b", "/work")], {}, "b", id="the lower load"),
        pytest.param([node("a", "/work", is_draining=True), node("b", "/work")], {}, "b", id="a draining node"),
        pytest.param([node("a", "/work"), node("b", "/work")], {"refused": {"a"}}, "b", id="a node that refused"),
        pytest.param(
            [node("a", "/work", missing=("/work",)), node("b", "/work")], {}, "b", id="a root that is not mounted"
        ),
        pytest.param([node("a", "/work", "/x", missing=("/x",))], {}, "a", id="another root is not mounted"),
        pytest.param(
            [node("a", mode="shared", running=9), node("b", mode="shared")],
            {"mode": "shared", "assigned": "a"},
            "b",
            id="shared: any node",
        ),
        pytest.param(
            [node("a", "/other", mode="shared"), node("b", "/work", mode="shared")],
            {"mode": "shared"},
            "b",
            id="shared: below the roots",
        ),
        pytest.param([node("a", "/work"), node("b", mode="shared")], {}, "a", id="nodes of the same mode only"),
        pytest.param([git("a"), git("b", "app")], REPOSITORY, "b", id="git: the node with the repository"),
        pytest.param(
            [git("a", "app"), git("b", "app", running=9)], {**REPOSITORY, "assigned": "b"}, "b", id="git: home"
        ),
        pytest.param(
            [git("a", "app", running=9), git("b", "app", is_alive=False), git("c", "app")],
            {**REPOSITORY, "assigned": "b"},
            "c",
            id="git: the home has ended",
        ),
        pytest.param([git("a"), git("b")], {"mode": "git", "exists_here": True}, "a", id="git: a directory"),
    ],
)
def test_the_directory_decides_first_then_the_load(
    nodes: list[Node], options: dict[str, Any], expected: str
) -> None:
    assert chosen(nodes, **options) == expected


@pytest.mark.parametrize(
    ("nodes", "options", "described"),
    [
        ([node("a", "/other")], {}, "no node has announced it"),
        ([node("a"), node("b")], {}, "no node has announced it"),
        ([node("a"), node("b", is_alive=False)], {"assigned": "b", "exists_here": True}, "b (not running)"),
        ([node("a")], {"assigned": "gone"}, "gone (not running)"),
        ([node("a"), node("b", "/work", is_draining=True)], {}, "b (stopping)"),
        ([node("a"), node("b", "/work")], {"refused": {"b"}}, "b (does not answer)"),
        ([node("b", "/work", missing=("/work",))], {}, "b (the root does not exist there now)"),
    ],
)
def test_the_error_names_the_directory_and_the_nodes_that_announced_it(
    nodes: list[Node], options: dict[str, Any], described: str
) -> None:
    with pytest.raises(NoNodeForDirectory) as raised:
        chosen(nodes, **options)

    assert "/work/p" in str(raised.value)
    assert described in str(raised.value)


def test_a_directory_cannot_leave_a_root_with_dots() -> None:
    with pytest.raises(NoNodeForDirectory):
        choose_node(
            [node("a", "/work")], WorkingDirectory(path="/work/../etc"), mode="local", here="a", exists_here=True
        )


NODES = st.lists(
    st.builds(
        Node,
        id=st.sampled_from("abcd"),
        url=st.just("http://x"),
        version=st.just("1"),
        mode=st.sampled_from(["local", "shared"]),
        roots=st.sampled_from([(), ("/work",), ("/other",)]),
        running=st.integers(0, 12),
        is_draining=st.booleans(),
        is_alive=st.booleans(),
    ),
    unique_by=lambda one: one.id,
    max_size=4,
)


@given(NODES, st.sampled_from([None, *"abcd"]), st.booleans(), st.sets(st.sampled_from("abcd")))
def test_a_chosen_node_can_run_the_turn_and_is_not_much_busier_than_another(
    nodes: list[Node], assigned: str | None, exists_here: bool, refused: set[str]
) -> None:
    own = next((one for one in nodes if one.id == "a"), None)
    mode = "local" if own is None else own.mode

    def can_run(one: Node) -> bool:
        if one.mode != mode or not one.is_alive or one.is_draining or one.id in refused:
            return False
        if one.roots:
            return one.roots == ("/work",)
        return mode == "shared" or (one.id == assigned if assigned is not None else one.id == "a" and exists_here)

    able = [one for one in nodes if can_run(one)]
    try:
        directory = WorkingDirectory(path="/work/p", node=assigned)
        found = choose_node(nodes, directory, mode=mode, here="a", exists_here=exists_here, refused=refused)
    except NoNodeForDirectory:
        assert not able
        return
    assert found in able
    if mode == "local" and any(one.id == assigned for one in able):
        assert found.id == assigned
    else:
        assert found.running <= min(one.running for one in able) + SLACK
        assert found.id == "a" or own is None or own not in able or own.running > found.running + SLACK
