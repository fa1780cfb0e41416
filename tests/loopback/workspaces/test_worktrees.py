"""Worktrees of a real repository (`parley.workspaces.worktrees`, `parley.workspaces.worktree`,
`parley.workspaces.worktree_git`, `parley.workspaces.git`, `parley.workspaces.clone`, `parley.workspaces.changes`,
`parley.workspaces.commits`, `parley.workspaces.fetching`, `parley.workspaces.locks`, `parley.workspaces.paths`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kit.servers.git_http import serve_git
from kit.servers.git_nodes import Origin
from kit.servers.worktree_node import WorktreeNode as Node
from parley.agent.sandbox_policy import Roots, policy_for
from parley.config.types import Repository
from parley.errors import WorkspaceUnavailable
from parley.ports.commands import Command, CommandResult, Output
from parley.sandbox import Sandboxed
from parley.wire.events import WorkspaceUpdated
from parley.workspaces.clone import add_objects
from parley.workspaces.git import Git, GitFailed, Remote
from parley.workspaces.names import branch_of


async def test_a_turn_is_committed_and_pushed_to_a_branch_of_its_own(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    await node.run("echo new > file; rm README; mkdir -p sub; echo x > sub/x")
    ended = await node.saved(begun, "Change the files\nwith care")

    branch = branch_of(node.id)
    assert begun == WorkspaceUpdated(
        repository="app", branch=branch, commit=origin.branches()["main"], pushed=True, node="a"
    )
    assert ended == replace(begun, commit=origin.branches()[branch])
    assert origin.git("ls-tree", "-r", "--name-only", branch).split() == ["file", "sub/x"]
    written = origin.git("log", "-1", "--format=%an %ae|%B", branch)
    assert written == f"Parley parley@localhost|Change the files\n\nParley-Conversation: {node.id}"


async def test_a_turn_without_changes_makes_no_commit_and_no_event(node: Node, origin: Origin) -> None:
    begun = await node.prepared()

    assert await node.save(begun) is None
    assert await node.prepare(begun) is None
    assert set(origin.branches()) == {"main"}


@pytest.mark.promises("nodes.git-hostile")
async def test_the_model_can_read_the_history_and_not_write_to_the_clone(node: Node) -> None:
    await node.prepared()
    before = (node.clone / "config").read_text()
    # The clone lies below /tmp, which is writable by default, and below the directory of another conversation.
    other = replace(node.settings, repository=None, cwd=str(node.directory.parent))
    attack = f"""
        touch {node.clone}/planted; echo x >> {node.clone}/config; rm -rf {node.clone}/*; mv {node.clone} moved
        mkdir -p {node.clone}/hooks; echo x > {node.clone}/hooks/pre-push
    """

    assert "By a person" in await node.run("git log --oneline")
    await node.run("git config core.fsmonitor /bin/false; git commit --allow-empty -m x; git checkout -b other")
    await node.run(attack)
    await node.run(attack, settings=other)

    assert (node.clone / "config").read_text() == before
    assert not (node.clone / "hooks").exists()
    assert not (node.clone / "planted").exists()


@pytest.mark.long
async def test_another_node_continues_from_the_pushed_branch(
    node: Node, sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    first = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(first)
    other = Node(sandboxed, tmp_path, str(origin.path), name="b", conversation=node.id)

    moved = await other.prepared(first)
    text = await other.run("cat file; echo two >> file")
    second = await other.saved(moved)
    back = await node.prepared(second)

    assert (moved, text) == (replace(first, node="b"), "one\n")
    assert back == replace(second, node="a")
    assert (node.tree / "file").read_text() == "one\ntwo\n"


@pytest.mark.long
async def test_work_that_another_node_does_not_know_is_set_aside(
    node: Node, sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    begun = await node.prepared()
    await node.run("echo lost > lost; echo ignored > .gitignore; echo ignored > ignored")  # the node is then killed
    other = Node(sandboxed, tmp_path, str(origin.path), name="b", conversation=node.id)
    moved = await other.prepared(begun)
    await other.run("echo other > file")
    ended = await other.saved(moved)

    back = await node.prepared(ended)

    assert (back.code, back.commit, back.branch) == ("work_set_aside", ended.commit, ended.branch)
    kept = str(back.message).rpartition(" ")[2]
    assert origin.git("show", f"{kept}:lost", cwd=node.clone) == "lost"
    assert sorted(path.name for path in node.tree.iterdir()) == [".git", "README", "file", "ignored"]


@pytest.mark.long
async def test_files_of_a_killed_turn_stay_if_the_conversation_continues_on_the_node(node: Node) -> None:
    begun = await node.prepared()
    await node.run("echo half > file")

    assert await node.prepare(begun) is None
    assert (node.tree / "file").read_text() == "half\n"


@pytest.mark.long
async def test_a_commit_of_a_person_on_the_branch_is_taken_over(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(begun)
    commit = origin.commit(first.branch, {"review": "fixed\n"})

    second = await node.prepared(first)

    assert (second.commit, second.code) == (commit, UNSET)
    assert (node.tree / "review").read_text() == "fixed\n"


@pytest.mark.long
async def test_a_branch_that_has_diverged_is_not_overwritten(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(begun)
    commit = origin.commit(first.branch, {"review": "fixed\n"})
    await node.run("echo two > file")
    second = await node.saved(first)
    third = await node.saved(second) if await node.run("echo three > file") == "" else second

    assert (second.branch, second.code, second.pushed) == (f"{first.branch}-2", "branch_diverged", True)
    assert (third.branch, third.code) == (f"{first.branch}-2", UNSET)
    assert origin.branches()[first.branch] == commit
    assert origin.text(third.branch, "file") == "three"


@pytest.mark.long
async def test_work_that_cannot_be_pushed_stays_on_the_disk_and_is_pushed_later(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    moved = origin.path.with_name("moved.git")
    origin.path.rename(moved)
    await node.run("echo one > file")
    failed = await node.saved(begun)
    offline = await node.prepared(failed)
    moved.rename(origin.path)
    ended = await node.saved(offline)

    assert (failed.code, failed.pushed, offline.code) == ("push_failed", False, "fetch_failed")
    assert origin.git("show", f"{failed.commit}:file", cwd=node.clone) == "one"
    assert ended == WorkspaceUpdated(
        repository="app", branch=failed.branch, commit=failed.commit, pushed=True, node="a"
    )
    assert origin.branches()[ended.branch] == failed.commit


@pytest.mark.long
async def test_locks_of_killed_git_commands_are_removed(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    branch = branch_of(node.id)
    await node.run("echo one > file")
    old, new = node.clone / "packed-refs.lock", node.clone / "shallow.lock"
    for lock in (
        node.clone / "worktrees" / node.id / "index.lock",
        node.clone / f"refs/heads/{branch}.lock",
        old,
        new,
    ):
        lock.touch()
    tracking = node.clone / f"refs/remotes/origin/{branch}.lock"
    tracking.parent.mkdir(parents=True, exist_ok=True)
    tracking.touch()
    os.utime(old, (0, 0))

    assert await node.prepare(begun) is None
    ended = await node.saved(begun)

    assert (ended.pushed, ended.code) == (True, UNSET)
    assert (old.exists(), new.exists()) == (False, True)


async def test_a_file_that_cannot_be_read_is_left_out_of_the_commit(node: Node, origin: Origin) -> None:
    begun = await node.prepared()
    await node.run("echo one > file; echo x > closed; chmod 000 closed")
    ended = await node.saved(begun)

    assert (ended.code, ended.pushed) == ("commit_failed", True)
    assert "closed" in str(ended.message)
    assert origin.git("ls-tree", "--name-only", ended.branch).split() == ["README", "file"]


async def test_a_list_of_files_with_long_characters_is_not_truncated(node: Node, origin: Origin) -> None:
    origin.commit("main", {f"{number}-€€€€": "x\n" for number in range(10)})
    remote = Remote.of("app", Repository(url=str(origin.path)), {})
    git = Git(node.sandboxed, node.settings, remote, str(origin.path.parent))
    listing = ("ls-tree", "-r", "-z", "--name-only", "main")
    variables = {"GIT_DIR": str(origin.path)}
    whole = await git.run(*listing, variables=variables)
    size = len(whole.encode())

    assert await git.run(*listing, variables=variables, max_output=size, must_be_complete=True) == whole
    with pytest.raises(GitFailed, match=f"git ls-tree printed more than {size - 1} bytes"):
        await git.run(*listing, variables=variables, max_output=size - 1, must_be_complete=True)


async def test_a_repository_that_cannot_be_cloned_fails_without_its_address(
    sandboxed: Sandboxed, tmp_path: Path
) -> None:
    node = Node(sandboxed, tmp_path, str(tmp_path / "secret-place.git"))

    with pytest.raises(WorkspaceUnavailable) as raised:
        await node.prepare()

    assert raised.value.code == "workspace_unavailable"
    assert "secret-place" not in str(raised.value)


@pytest.mark.long
async def test_a_repository_without_commits_says_so(sandboxed: Sandboxed, tmp_path: Path, origin: Origin) -> None:
    origin.git("init", "--quiet", "--bare", str(tmp_path / "empty.git"))

    with pytest.raises(WorkspaceUnavailable, match="no default branch"):
        await Node(sandboxed, tmp_path, str(tmp_path / "empty.git")).prepare()


async def test_the_branch_of_the_settings_is_the_beginning(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    commit = origin.commit("develop", {"new": "x\n"})
    begun = await Node(sandboxed, tmp_path, str(origin.path), more='branch = "develop"').prepared()
    with pytest.raises(WorkspaceUnavailable, match="couldn't find remote ref refs/heads/missing"):
        await Node(sandboxed, tmp_path, str(origin.path), name="b", more='branch = "missing"').prepare()

    assert (begun.commit, begun.pushed) == (commit, True)


@pytest.mark.long
async def test_a_fork_begins_at_the_commit_of_its_parent(
    node: Node, sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    parent = await node.saved(begun)
    await node.run("echo two > file")
    await node.saved(parent)

    fork = Node(sandboxed, tmp_path, str(origin.path))
    forked = await fork.prepared(parent)

    assert forked == replace(parent, branch=branch_of(fork.id))
    assert (fork.tree / "file").read_text() == "one\n"


@pytest.mark.parametrize(
    "last",
    [
        WorkspaceUpdated(repository="app", branch="--upload-pack=touch /tmp/x", commit="a" * 40, pushed=True),
        pytest.param(
            WorkspaceUpdated(repository="app", branch="parley/" + "a" * 12, commit="--output=/tmp/x", pushed=True),
            marks=pytest.mark.long,
        ),
        pytest.param(
            WorkspaceUpdated(repository="other", branch="parley/" + "a" * 12, commit="a" * 40, pushed=True),
            marks=pytest.mark.long,
        ),
    ],
)
async def test_an_imported_log_names_no_options_and_no_other_repository(
    node: Node, origin: Origin, last: WorkspaceUpdated
) -> None:
    event = await node.prepared(last)

    assert (event.branch, event.commit) == (branch_of(node.id), origin.branches()["main"])


# --- hostile repositories ----------------------------------------------------------------


HOSTILE = """
mark=$1
mkdir -p nested sub
git init -q nested
(cd nested && git -c user.name=x -c user.email=x commit -q --allow-empty -m x)
printf '[core]\\n\\tfsmonitor = touch %s\\n\\tsshCommand = touch %s\\n' $mark $mark >> nested/.git/config
printf '* filter=evil diff=evil merge=evil\\n' > .gitattributes
printf '[submodule "s"]\\n\\tpath = sub\\n\\turl = ext::touch %s\\n' $mark > .gitmodules
printf '[core]\\n\\thooksPath = hooks\\n' > .gitconfig
mkdir -p hooks
for hook in pre-commit post-commit pre-push post-checkout reference-transaction post-index-change; do
    printf '#!/bin/sh\\ntouch %s\\n' $mark > hooks/$hook; chmod +x hooks/$hook
done
ln -s /etc/passwd link
mkfifo pipe
"""


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize("mechanism", ["auto", pytest.param("landlock", marks=pytest.mark.long)])
async def test_a_hostile_worktree_runs_no_program(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin, mechanism: str
) -> None:
    node = Node(sandboxed, tmp_path, str(origin.path), first=f'[sandbox]\nmechanism = "{mechanism}"')
    begun = await node.prepared()
    # Git commands of Parley may write here, and commands of the model may not.
    mark = node.clone / "worktrees" / node.id / "mark"
    await node.run(HOSTILE.replace("$1", str(mark)))
    first = await node.saved(begun)
    await node.run("echo more >> nested/file; echo more > file")
    second = await node.saved(first)

    assert await node.prepare(second) is None
    assert not mark.exists()
    assert (first.pushed, second.pushed, second.code) == (True, True, UNSET)
    assert "nested" in str(first.message)
    assert origin.git("ls-tree", second.branch, "link").startswith("120000")
    assert origin.git("ls-tree", second.branch, "nested") == ""


NESTED = """
cd $1
git init -q .
echo data > tracked
git add tracked
git -c user.name=x -c user.email=x commit -q -m x
printf '#!/bin/sh\\ntouch %s\\ncat\\n' $2 > program
chmod +x program
git config core.fsmonitor $PWD/program
git config filter.x.clean $PWD/program
echo '* filter=x' > .gitattributes
touch -d 2001-01-01 tracked
"""


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize("is_submodule", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_git_does_not_enter_a_repository_in_the_worktree(
    node: Node, origin: Origin, is_submodule: bool
) -> None:
    commit = origin.branches()["main"]
    if is_submodule:
        link = f"from refs/heads/main^0\nM 160000 {commit} sub\n"
        text = f"commit refs/heads/main\ncommitter Ada <ada@example.com> 1700000001 +0000\ndata 3\nSub\n{link}"
        origin.git("fast-import", "--quiet", text=text)
    begun = await node.prepared()
    mark = node.clone / "worktrees" / node.id / "mark"
    await node.run("mkdir -p sub")
    await node.run(f"set -- sub {mark}; {NESTED}")
    await node.run("echo more > file")
    first = await node.saved(begun)
    assert await node.prepare(first) is None
    await node.run("touch -d 2002-01-01 sub/tracked; echo more >> file")
    second = await node.saved(first)
    pushed = origin.commit(second.branch, {"review": "x\n"})
    await node.run("touch -d 2003-01-01 sub/tracked; echo more >> file")
    third = await node.prepared(second)

    assert not mark.exists()
    assert (third.commit, (node.tree / "review").read_text()) == (pushed, "x\n")
    expected = f"160000 commit {commit}\tsub" if is_submodule else ""
    assert origin.git("ls-tree", second.branch, "sub") == expected


@pytest.mark.long
async def test_a_nested_repository_is_reported_once_if_nothing_else_has_changed(node: Node) -> None:
    begun = await node.prepared()
    await node.run("git init -q nested")

    first = await node.saved(begun)

    assert (first.commit, first.code) == (begun.commit, UNSET)
    assert first.message == "Git repositories in the worktree are not committed: nested"
    assert await node.save(first) is None


CHANGES = """
echo x > new; echo x > -dash; echo x > 'new
line'; printf 'x' > "$(printf 'caf\\351')"; echo ignored > ignored; echo ignored > .gitignore
rm deleted; chmod +x mode; rm link; echo file > link; ln -s nowhere fresh
rm becomes-directory; mkdir becomes-directory; echo x > becomes-directory/inner
rm -r directory; echo x > directory; mv linked moved; ln -s moved linked; : > empty; mkdir nothing
i=0; while [ $i -lt 3000 ]; do echo $i > many-$i; i=$((i+1)); done
"""


@pytest.mark.long
async def test_every_kind_of_change_is_committed_as_git_add_does(
    node: Node, origin: Origin, tmp_path: Path
) -> None:
    origin.commit("main", {"deleted": "x\n"})
    for name in ("directory", "linked"):
        (tmp_path / "author" / name).mkdir()
    (tmp_path / "author" / "link").symlink_to("deleted")
    files = ("mode", "becomes-directory", "directory/inner", "linked/inner")
    origin.commit("main", dict.fromkeys(files, "x\n"))
    begun = await node.prepared()
    await node.run(CHANGES)

    ended = await node.saved(begun)

    (node.tree / ".git").rename(tmp_path / "pointer")
    reference = ("--git-dir", str(tmp_path / "reference"), "--work-tree", str(node.tree))
    origin.git(*reference, "init", "--quiet", cwd=tmp_path)
    origin.git(*reference, "add", "--all", cwd=node.tree)
    assert (ended.code, ended.message) == (UNSET, UNSET)
    assert origin.git("rev-parse", f"{ended.branch}^{{tree}}") == origin.git(
        *reference, "write-tree", cwd=node.tree
    )


# --- checkouts that were interrupted -------------------------------------------------------


class _Interrupting:
    """Runs commands until the Git command `at`. Instead of this command, it runs a shell script in the same
    sandbox, and then ends the task as an interrupt does.
    """

    def __init__(self, commands: Sandboxed, at: str, script: str) -> None:
        self._commands, self._at, self._script = commands, at, script

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        if self._at not in command.argv:
            return await self._commands.run(command, output=output)
        partial = replace(command, argv=("/bin/sh", "-c", self._script, command.argv[-1]))
        result = await self._commands.run(partial, output=output)
        assert result.exit_code == 0
        raise asyncio.CancelledError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commands, name)


PARTIAL = """
set -e
touch "$GIT_DIR/index.lock"
git show "$0:aaa" > aaa
rm -f README
"""
"""Does a part of the work of `git read-tree -u`: some files have changed, and the index has not."""


async def interrupt(node: Node, command: str, script: str, last: WorkspaceUpdated | None = None) -> None:
    """Interrupt the turn after `last` at a Git command, of which only a script was run."""
    node.worktrees._commands = _Interrupting(node.sandboxed, command, script)
    with pytest.raises(asyncio.CancelledError):
        await node.prepare(last)
    node.worktrees._commands = node.sandboxed


def files_of(node: Node) -> dict[str, str]:
    return {path.name: path.read_text() for path in node.tree.iterdir() if path.name != ".git"}


@pytest.mark.long
@pytest.mark.promises("nodes.git")
async def test_the_first_checkout_is_repeated_if_it_was_interrupted(node: Node, origin: Origin) -> None:
    commit = origin.commit("main", {"aaa": "a\n", "zzz": "z\n"})

    await interrupt(node, "read-tree", PARTIAL)
    begun = await node.prepared()

    assert (begun.commit, begun.code) == (commit, UNSET)
    assert files_of(node) == {"README": "hello\n", "aaa": "a\n", "zzz": "z\n"}
    assert await node.save(begun) is None


@pytest.mark.promises("nodes.git")
@pytest.mark.parametrize(
    ("command", "script"),
    [
        pytest.param("read-tree", PARTIAL, id="during"),
        pytest.param("update-ref", "true", id="before", marks=pytest.mark.long),
        pytest.param("read-tree", "true", id="begun", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "before_next_turn", ["removal", *(pytest.param(one, marks=pytest.mark.long) for one in ("nothing", "outage"))]
)
async def test_a_later_checkout_is_repeated_if_it_was_interrupted(
    node: Node, origin: Origin, command: str, script: str, before_next_turn: str
) -> None:
    begun = await node.prepared()
    await node.run("echo one > file; echo installed > .gitignore; echo x > installed")
    first = await node.saved(begun)
    theirs = {"README": "theirs\n", "aaa": "theirs\n", "zzz": "theirs\n"}
    commit = origin.commit(first.branch, theirs)

    await interrupt(node, command, script, first)
    not_saved = await node.saved(first)
    if before_next_turn == "removal":
        (origin.path.with_name("author") / "aaa").unlink()
        del theirs["aaa"]
        commit = origin.commit(first.branch, {})
    elif before_next_turn == "outage":
        origin.path.rename(origin.path.with_name("moved.git"))
    second = await node.prepared(first)

    assert (not_saved.code, not_saved.commit) == ("commit_failed", first.commit)
    assert second.commit == commit
    assert second.code == ("fetch_failed" if before_next_turn == "outage" else UNSET)
    own = {"file": "one\n", ".gitignore": "installed\n", "installed": "x\n"}
    assert files_of(node) == theirs | own
    assert await node.save(second) is None


@pytest.mark.long
@pytest.mark.parametrize("damage", ["marker", "index"])
async def test_a_worktree_whose_checkout_cannot_be_repeated_is_made_again(
    node: Node, origin: Origin, damage: str
) -> None:
    begun = await node.prepared()
    await node.run("rm README")
    if damage == "index":
        (node.clone / "worktrees" / node.id / "index").unlink()
    else:
        (node.clone / "worktrees" / node.id / "parley-checkout").write_text("--stdin ../../x")
    not_saved = await node.saved(begun)

    assert not_saved.message == "the worktree is incomplete, because its checkout was interrupted"
    assert await node.prepare(begun) is None
    assert files_of(node) == {"README": "hello\n"}
    assert await node.save(begun) is None


@pytest.mark.long
async def test_an_unused_worktree_is_removed_although_its_checkout_was_interrupted(
    node: Node, sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    first = await node.saved(begun)
    origin.commit(first.branch, {"aaa": "theirs\n"})
    await interrupt(node, "read-tree", PARTIAL, first)
    os.utime(node.clone / "worktrees" / node.id / "parley-used", (0, 0))

    await Node(sandboxed, tmp_path, str(origin.path)).prepared()

    assert not (node.clone / "worktrees" / node.id).exists()
    assert (await node.prepared(first)).code is UNSET


# --- what Git commands can write to --------------------------------------------------------


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize(
    "planted",
    [
        "config",
        "hooks/pre-push",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("info/attributes", "objects/info/alternates", "config.worktree", "commondir")
        ),
    ],
)
async def test_a_changed_clone_is_refused_before_git_runs(node: Node, planted: str) -> None:
    begun = await node.prepared()
    await node.run("echo x > file")
    (node.clone / planted).parent.mkdir(exist_ok=True)
    with (node.clone / planted).open("a") as file:
        file.write("[core]\n\talternateRefsCommand = touch /tmp/mark\n")

    failed = await node.saved(begun)
    with pytest.raises(WorkspaceUnavailable, match=f"app.git was changed.*{planted.split('/')[0]}"):
        await node.prepare(begun)

    assert (failed.code, failed.commit) == ("commit_failed", begun.commit)


@pytest.mark.promises("nodes.git-hostile")
async def test_git_can_write_only_to_the_parts_of_the_clone_that_a_command_needs(
    node: Node, origin: Origin
) -> None:
    runner = _Recorder(node.sandboxed)
    node.worktrees._commands = runner
    begun = await node.prepared()
    await node.run("echo x > file")
    ended = await node.saved(begun)
    origin.commit(ended.branch, {"review": "x\n"})
    await node.prepared(ended)

    admin = f"worktrees/{node.id}"
    local = {root for network, roots in runner.seen if not network for root in roots}
    shared = {"refs", "objects/pack", str(origin.path)}
    prefix = f"{node.clone}/"
    assert {root.removeprefix(prefix) for root in local} == {admin, "refs", f"{node.clone}.new"}
    assert {root.removeprefix(prefix) for network, roots in runner.seen if network for root in roots} == shared
    assert all(len(roots) == 1 for network, roots in runner.seen if roots and not network)


@pytest.mark.promises("nodes.git-hostile")
async def test_a_link_in_the_place_of_a_worktree_is_not_followed(node: Node, tmp_path: Path) -> None:
    begun = await node.prepared()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("x")
    node.tree.rename(tmp_path / "away")
    node.tree.symlink_to(victim)

    saved = await node.saved(begun)
    written = policy_for(node.settings, Roots())
    prepared = await node.prepare(begun)

    assert (saved.code, saved.commit) == ("commit_failed", begun.commit)
    assert written is not None
    assert str(victim) not in [root.path for root in written.writable]
    assert prepared is None
    assert [path.name for path in victim.iterdir()] == ["secret"]
    assert not node.tree.is_symlink()
    assert (node.tree / "README").read_text() == "hello\n"


@pytest.mark.promises("nodes.git-hostile")
async def test_a_command_before_the_first_turn_in_a_repository_cannot_make_a_clone(
    node: Node, tmp_path: Path, origin: Origin
) -> None:
    other = replace(node.settings, repository=None, cwd=str(tmp_path))
    attack = f"mkdir -p {node.clone}; mv {node.directory} {tmp_path}/moved; mkdir -p {node.clone}; echo ran"

    printed = await node.run(attack, settings=other)

    assert printed.endswith("ran\n")
    assert not node.clone.exists()
    assert not (tmp_path / "moved").exists()
    assert (await node.prepared()).commit == origin.branches()["main"]


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize(
    "planted", ["link", "clone", *(pytest.param(one, marks=pytest.mark.long) for one in ("objects", "writable"))]
)
async def test_a_clone_that_parley_has_not_made_is_refused(node: Node, tmp_path: Path, planted: str) -> None:
    """The clone was made before `workspace.directory` was set, so commands could write there."""
    elsewhere = tmp_path / "elsewhere"
    await Node(node.sandboxed, tmp_path, str(tmp_path / "origin.git"), name="b").prepared()
    (tmp_path / "git-b").rename(node.directory)
    if planted == "link":
        (node.directory / "repositories").rename(elsewhere)
        (node.directory / "repositories").symlink_to(elsewhere)
    elif planted == "writable":
        (node.directory / "repositories").chmod(0o777)
    else:
        path = node.clone if planted == "clone" else node.clone / "objects"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)

    with pytest.raises(WorkspaceUnavailable, match="directory"):
        await node.prepare()


@pytest.mark.parametrize("content", [b"", b"not zlib", zlib.compress(b"blob 1\0x") + b"more", zlib.compress(b"x")])
def test_an_object_that_does_not_match_its_name_is_not_added(tmp_path: Path, content: bytes) -> None:
    name = hashlib.sha1(b"blob 1\0x").hexdigest()
    clone, source = tmp_path / "clone", tmp_path / "source"
    (clone / "objects").mkdir(parents=True)
    place = source / name[:2] / name[2:]
    place.parent.mkdir(parents=True)
    place.write_bytes(content)

    with pytest.raises(GitFailed, match="does not match its name"):
        add_objects(str(source), str(clone))
    place.write_bytes(zlib.compress(b"blob 1\0x"))
    add_objects(str(source), str(clone))

    assert (clone / "objects" / name[:2] / name[2:]).exists()


class _Recorder:
    """Runs commands, and records their network access and their writable directories."""

    def __init__(self, commands: Sandboxed) -> None:
        self._commands = commands
        self.seen: list[tuple[bool, list[str]]] = []

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        assert command.policy is not None
        is_remote = command.env["GIT_ALLOW_PROTOCOL"] != "none"
        self.seen.append((is_remote, [root.path for root in command.policy.writable]))
        return await self._commands.run(command, output=output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commands, name)


@pytest.mark.promises("nodes.git-hostile")
@pytest.mark.parametrize(
    "planted", ["link", *(pytest.param(one, marks=pytest.mark.long) for one in ("file", "missing"))]
)
async def test_a_replaced_git_file_has_no_effect_and_is_repaired(
    node: Node, tmp_path: Path, origin: Origin, planted: str
) -> None:
    mark = tmp_path / "mark"
    begun = await node.prepared()
    other = tmp_path / "other"
    origin.git("init", "--quiet", str(other), cwd=tmp_path)
    (other / ".git" / "config").write_text(f"[core]\n\tfsmonitor = touch {mark}\n\tsshCommand = touch {mark}\n")
    pointer = node.tree / ".git"
    before = pointer.read_text()
    pointer.unlink()
    if planted == "link":
        pointer.symlink_to(other / ".git")
    elif planted == "file":
        pointer.write_text(f"gitdir: {other}/.git\n")
    (node.tree / "file").write_text("x\n")

    ended = await node.saved(begun)
    await node.prepare(ended)

    assert not mark.exists()
    assert origin.text(ended.branch, "file") == "x"
    assert (stat.S_ISREG(os.lstat(pointer).st_mode), pointer.read_text()) == (True, before)


# --- credentials -------------------------------------------------------------------------


@pytest.mark.long
async def test_the_password_of_a_url_reaches_the_repository_and_nothing_else(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    async with serve_git(origin.path, user="ada", password="s3cr3t-password") as server:
        url = f"http://ada:s3cr3t-password@127.0.0.1:{server.port}/origin.git"
        node = Node(sandboxed, tmp_path, url)
        begun = await node.prepared()
        await node.run("echo one > file")
        ended = await node.saved(begun)
        server.password = "changed"
        await node.run("echo two > file")
        failed = await node.saved(ended)

    assert ended.pushed
    assert failed.code == "push_failed"
    assert "s3cr3t" not in str(failed)
    files = [path for path in node.directory.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


@pytest.mark.long
async def test_the_password_may_come_from_a_variable_that_commands_do_not_get(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    async with serve_git(origin.path, user="x-access-token", password="s3cr3t-token") as server:
        url = f"http://127.0.0.1:{server.port}/origin.git"
        more, environ = 'token_env = "APP_TOKEN"', {"APP_TOKEN": "s3cr3t-token"}
        node = Node(sandboxed, tmp_path, url, more=more, environ=environ)
        begun = await node.prepared()
        without = Node(sandboxed, tmp_path, url, name="b", more=more)
        with pytest.raises(WorkspaceUnavailable, match="APP_TOKEN is not set"):
            await without.prepare()

    assert begun.pushed
    assert "APP_TOKEN" in node.settings.key_variables


@pytest.mark.long
async def test_a_redirect_to_another_server_is_not_followed(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    async with serve_git(origin.path, user="ada", password="s3cr3t") as target:
        async with serve_git(origin.path, redirect=f"http://127.0.0.1:{target.port}") as server:
            node = Node(sandboxed, tmp_path, f"http://ada:s3cr3t@127.0.0.1:{server.port}/origin.git")
            with pytest.raises(WorkspaceUnavailable):
                await node.prepare()

        assert target.requests == []


# --- the directory -----------------------------------------------------------------------


async def test_a_directory_that_commands_cannot_read_is_refused(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    node = Node(sandboxed, tmp_path, str(origin.path))
    text = (node.home / "config.toml").read_text()
    (node.home / "config.toml").write_text(text.replace(str(node.directory), str(node.home / "git")))

    with pytest.raises(WorkspaceUnavailable, match="commands cannot read"):
        await node.prepare()


async def test_an_unused_worktree_is_removed_if_its_work_was_pushed(
    sandboxed: Sandboxed, tmp_path: Path, origin: Origin
) -> None:
    pushed, dirty = Node(sandboxed, tmp_path, str(origin.path)), Node(sandboxed, tmp_path, str(origin.path))
    begun = await pushed.prepared()
    await pushed.run("echo one > file")
    ended = await pushed.saved(begun)
    await dirty.prepared()
    await dirty.run("echo one > file")
    for each in (pushed, dirty):
        os.utime(each.clone / "worktrees" / each.id / "parley-used", (0, 0))

    await Node(sandboxed, tmp_path, str(origin.path)).prepared()

    assert (pushed.tree.exists(), dirty.tree.exists()) == (False, True)
    assert await pushed.prepare(ended) is None
    assert (pushed.tree / "file").read_text() == "one\n"


@pytest.mark.long
async def test_a_removed_worktree_is_made_again(node: Node) -> None:
    begun = await node.prepared()
    await node.run("echo one > file")
    ended = await node.saved(begun)
    shutil.rmtree(node.tree)

    assert await node.prepare(ended) is None
    assert (node.tree / "file").read_text() == "one\n"
