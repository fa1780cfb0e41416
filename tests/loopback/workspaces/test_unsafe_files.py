"""Files in a worktree that could block Git, or that a checkout could overwrite
(`parley.workspaces.inspection`, `parley.workspaces.checkout`, `parley.workspaces.listings`).

A Git command of the server ends after minutes at the latest. The tests replace this limit by the limit of a test:
a command that blocks fails the test.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec import UNSET

from kit.servers.git_nodes import Origin
from kit.servers.worktree_node import WorktreeNode
from kit.system.commands import TIMEOUT_SECONDS
from parley.wire.events import WorkspaceUpdated

PIPES = {
    "ignore": ("mkfifo .gitignore", ".gitignore"),
    "attributes": ("mkdir sub; mkfifo sub/.gitattributes", "sub/.gitattributes"),
    "modules": ("mkfifo .gitmodules", ".gitmodules"),
    "link": ("mkfifo pipe; ln -s pipe .gitignore", ".gitignore"),
    "large": ("truncate -s 100G .gitattributes", ".gitattributes"),
}


async def soon(node: WorktreeNode, last: WorkspaceUpdated) -> WorkspaceUpdated:
    """Save the worktree. A Git command that waits without end fails the test."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await node.saved(last)


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "link" else pytest.mark.long) for kind in PIPES]
)
async def test_a_file_that_would_block_git_fails_the_commit_and_not_the_conversation(
    node: WorktreeNode, origin: Origin, kind: str
) -> None:
    script, name = PIPES[kind]
    begun = await node.prepared()
    await node.run(f"echo work > file; {script}")

    failed = await soon(node, begun)
    again = await node.prepare(begun)
    await node.run(f"rm -f {name}")
    ended = await soon(node, failed)

    assert (failed.code, failed.commit) == ("commit_failed", begun.commit)
    assert name in str(failed.message)
    assert again is None
    assert ended.pushed
    assert origin.git("show", f"{ended.branch}:file") == "work"


@pytest.mark.long
@pytest.mark.promises("nodes.git-hostile")
async def test_an_unsafe_worktree_is_set_aside_if_the_conversation_continues_elsewhere(
    node: WorktreeNode, origin: Origin
) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(begun)
    theirs = origin.commit(first.branch, {"aaa": "theirs\n"})
    await node.run("echo two > file; mkfifo .gitignore")

    async with asyncio.timeout(TIMEOUT_SECONDS):
        second = await node.prepared(first)

    assert (second.commit, second.code) == (theirs, "work_set_aside")
    (kept,) = node.tree.parent.glob(f"{node.id}.kept-*")
    assert f"worktrees/{kept.name}" in str(second.message)
    assert (kept / "file").read_text() == "two\n"
    assert sorted(path.name for path in node.tree.iterdir()) == [".git", "README", "aaa", "file"]


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize(
    "place", ["nested", *(pytest.param(one, marks=pytest.mark.long) for one in ("sub", "nested/in*ner", "tracked"))]
)
async def test_a_pipe_in_a_repository_inside_the_worktree_does_not_block_git(
    node: WorktreeNode, origin: Origin, place: str
) -> None:
    commit = origin.commit("main", {"tracked/file": "x\n"})
    link = f"from refs/heads/main^0\nM 160000 {commit} sub\n"
    text = f"commit refs/heads/main\ncommitter Ada <ada@example.com> 1700000001 +0000\ndata 3\nSub\n{link}"
    origin.git("fast-import", "--quiet", text=text)
    begun = await node.prepared()
    await node.run(f"""
        mkdir -p '{place}/.git/objects' '{place}/.git/refs'; mkfifo '{place}/.git/HEAD'; echo work > '{place}/work'
        printf 'nested/*\\n!nested/in*ner/\\n' > .gitignore; mkdir -p ignored/.git; mkfifo ignored/.git/HEAD
        echo ignored >> .gitignore; mkdir -p plain/.git; echo work > plain/work; echo more >> tracked/file
    """)

    ended = await soon(node, begun)
    files = origin.git("ls-tree", "-r", "--name-only", ended.branch).split("\n")
    origin.commit(ended.branch, {"review": "x\n"})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        moved = await node.prepared(ended)

    own = ["tracked/work"] if place == "tracked" else []
    assert files == [".gitignore", "README", "plain/work", "sub", "tracked/file", *own]
    assert ended.pushed
    assert (node.tree / "review").exists()
    assert (moved.code == "work_set_aside") is (place == "sub")
    reported = place in ("nested", "nested/in*ner")
    assert (place in str(ended.message)) is reported
    assert "ignored" not in str(ended.message)


@pytest.mark.long
@pytest.mark.promises("nodes.git-checkout")
async def test_a_checkout_overwrites_no_file_that_is_in_no_commit(node: WorktreeNode, origin: Origin) -> None:
    origin.commit("main", {"closed": "theirs\n", "open": "theirs\n"})
    begun = await node.prepared()
    await node.run("echo built > .gitignore; echo one > file")
    first = await node.saved(begun)
    await node.run(
        "echo mine > closed; chmod 000 closed; echo mine > built; git init -q folder; echo mine > folder/x"
    )
    theirs = {
        ".gitignore": "",
        "closed": "new\n",
        "open": "new\n",
        "built": "new\n",
        "folder": "new\n",
        "other/x": "new\n",
    }
    commit = origin.commit(first.branch, theirs)

    second = await node.prepared(first)

    (kept,) = node.tree.parent.glob(f"{node.id}.kept-*")
    assert (second.commit, second.code) == (commit, "work_set_aside")
    assert str(second.message) == f"files that were in no commit were moved to worktrees/{kept.name}"
    assert sorted(path.name for path in kept.iterdir()) == ["built", "closed", "folder"]
    (kept / "closed").chmod(0o600)
    assert [(kept / name).read_text() for name in ("built", "closed", "folder/x")] == ["mine\n"] * 3
    assert {name: (node.tree / name).read_text() for name in theirs} == theirs
    assert await node.save(second) is None


@pytest.mark.long
@pytest.mark.promises("nodes.git-checkout")
async def test_a_checkout_keeps_a_file_whose_name_begins_with_a_space(node: WorktreeNode, origin: Origin) -> None:
    origin.commit("main", {" closed": "theirs\n"})
    begun = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(begun)
    await node.run("echo mine > ' closed'; chmod 000 ' closed'")
    origin.commit(first.branch, {" closed": "new\n"})

    second = await node.prepared(first)

    (kept,) = node.tree.parent.glob(f"{node.id}.kept-*")
    (kept / " closed").chmod(0o600)
    assert second.code == "work_set_aside"
    assert (kept / " closed").read_text() == "mine\n"
    assert (node.tree / " closed").read_text() == "new\n"


@pytest.mark.promises("nodes.git-checkout")
async def test_directories_and_links_of_commits_are_replaced_without_a_report(
    node: WorktreeNode, origin: Origin
) -> None:
    begun = await node.prepared()
    await node.run("mkdir folder; echo x > folder/x; ln -s folder link; echo x > file")
    first = await node.saved(begun)
    author = origin.path.with_name("author")
    origin.commit(first.branch, {"unrelated": "x\n"})
    for path in (author / "folder" / "x", author / "link", author / "file"):
        path.unlink()
    (author / "folder").rmdir()
    commit = origin.commit(first.branch, {"folder": "new\n", "link/inner": "new\n", "file/inner": "new\n"})

    second = await node.prepared(first)

    assert (second.commit, second.code) == (commit, UNSET)
    assert [(node.tree / name).read_text() for name in ("folder", "link/inner", "file/inner")] == ["new\n"] * 3
