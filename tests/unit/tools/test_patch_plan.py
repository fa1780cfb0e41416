"""The effects of patches, and refused patches, which change no file."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.builders.trees import not_a_link, patch, plant, tree
from parley.common.guarded_files import identity_of
from parley.tools.errors import PatchNotApplied
from parley.tools.patch import limits
from parley.tools.patch.commit import commit
from parley.tools.patch.deadline import CancelToken
from parley.tools.patch.plan import Change, Plan, verify
from parley.wire.events import AddedFile, OtherChange, UpdatedFile


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Return the working directory. Its parent directory contains other files."""
    path = tmp_path / "work"
    usual = os.umask(0o022)
    path.mkdir()
    yield path
    os.umask(usual)


def planned(work: Path, *lines: str, workdir: Path | None = None) -> Plan:
    return verify(patch(*lines), workdir=str(workdir or work), cwd=str(work))


def apply(work: Path, *lines: str, workdir: Path | None = None) -> Plan:
    plan = planned(work, *lines, workdir=workdir)
    commit(plan.changes)
    return plan


def refusal(work: Path, *lines: str, workdir: Path | None = None) -> str:
    """Return the error of a refused patch, after checking that no file changed."""
    before = tree(work.parent)
    with pytest.raises(PatchNotApplied) as refused:
        planned(work, *lines, workdir=workdir)
    assert tree(work.parent) == before
    return str(refused.value)


# --- effects -------------------------------------------------------------------------------------


def test_a_plan_says_what_becomes_of_each_file(work: Path) -> None:
    plant(work, old__txt="alpha\nbeta\ngamma\n", gone__txt="x\n", from__txt="one\ntwo\n")
    (work / "from.txt").chmod(0o751)

    plan = planned(
        work,
        "*** Add File: sub/a.txt",
        "+a",
        "*** Delete File: gone.txt",
        "*** Update File: old.txt",
        "@@",
        "-alpha",
        "+ALPHA",
        "*** Update File: from.txt",
        "*** Move to: ./to.txt",
        "@@",
        "-two",
        "+TWO",
    )

    assert plan == Plan(
        changes=(
            Change(written="sub/a.txt", path=f"{work}/sub/a.txt", before=None, after=b"a\n", mode=None),
            Change(written="gone.txt", path=f"{work}/gone.txt", before=b"x\n", after=None, mode=0o644),
            Change(
                written="old.txt",
                path=f"{work}/old.txt",
                before=b"alpha\nbeta\ngamma\n",
                after=b"ALPHA\nbeta\ngamma\n",
                mode=0o644,
            ),
            Change(
                written="./to.txt",
                path=f"{work}/from.txt",
                before=b"one\ntwo\n",
                after=b"one\nTWO\n",
                mode=0o751,
                move_to=f"{work}/to.txt",
            ),
        ),
        inside_cwd=True,
        folders={f"{work}/sub": None, str(work): identity_of(work.stat())},
    )
    assert plan.summary() == (
        "Success. Updated the following files:\nA sub/a.txt\nM old.txt\nM ./to.txt\nD gone.txt\n"
    )
    assert plan.for_events() == {
        f"{work}/sub/a.txt": OtherChange(add=AddedFile(content="a\n")),
        f"{work}/gone.txt": "delete",
        f"{work}/old.txt": OtherChange(
            update=UpdatedFile(unified_diff="@@ -1,2 +1,2 @@\n-alpha\n+ALPHA\n beta\n", move_path=None)
        ),
        f"{work}/from.txt": OtherChange(
            update=UpdatedFile(unified_diff="@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n", move_path=f"{work}/to.txt")
        ),
    }
    assert tree(work) == {
        "from.txt": ("-rwxr-x--x", b"one\ntwo\n"),
        "gone.txt": ("-rw-r--r--", b"x\n"),
        "old.txt": ("-rw-r--r--", b"alpha\nbeta\ngamma\n"),
    }


def test_a_patch_changes_all_its_files_and_leaves_nothing_else(work: Path) -> None:
    plant(work, old__txt="alpha\n", gone__txt="x\n", from__txt="one\n", other__txt="other\n")
    (work / "from.txt").chmod(0o751)
    (work / "old.txt").chmod(0o604)

    apply(
        work,
        "*** Add File: sub/deeper/a.txt",
        "+a",
        "*** Add File: empty.txt",
        "*** Delete File: gone.txt",
        "*** Update File: old.txt",
        "-alpha",
        "+ALPHA",
        "*** Update File: from.txt",
        "*** Move to: sub/to.txt",
        "-one",
        "+ONE",
    )

    assert tree(work) == {
        "empty.txt": ("-rw-r--r--", b""),
        "old.txt": ("-rw----r--", b"ALPHA\n"),
        "other.txt": ("-rw-r--r--", b"other\n"),
        "sub": ("drwxr-xr-x", b""),
        "sub/deeper": ("drwxr-xr-x", b""),
        "sub/deeper/a.txt": ("-rw-r--r--", b"a\n"),
        "sub/to.txt": ("-rwxr-x--x", b"ONE\n"),
    }


def test_several_hunks_on_one_file_are_one_change(work: Path) -> None:
    plant(work, a__txt="one\ntwo\nthree\n")
    (work / "x").mkdir()

    plan = apply(
        work, "*** Update File: a.txt", "-three", "+THREE", "*** Update File: ./x/../a.txt", "-one", "+ONE"
    )

    assert [(change.path, change.after) for change in plan.changes] == [(f"{work}/a.txt", b"ONE\ntwo\nTHREE\n")]
    assert tree(work) == {"a.txt": ("-rw-r--r--", b"ONE\ntwo\nTHREE\n"), "x": ("drwxr-xr-x", b"")}


@pytest.mark.parametrize(
    ("lines", "summary", "expected"),
    [
        (["*** Delete File: a", "*** Add File: a", "+new"], "M a\n", {"a": ("-rwxr-x--x", b"new\n")}),
        (
            ["*** Add File: b", "+x", "*** Update File: b", "-x", "+y"],
            "A b\n",
            {"a": ("-rwxr-x--x", b"old\n"), "b": ("-rw-r--r--", b"y\n")},
        ),
        (["*** Add File: b", "+x", "*** Delete File: b"], "", {"a": ("-rwxr-x--x", b"old\n")}),
        (["*** Update File: a", "-old", "*** Delete File: a"], "D a\n", {}),
        (
            ["*** Update File: a", "*** Move to: b", "*** Update File: b", "-old", "+new"],
            "M b\n",
            {"b": ("-rwxr-x--x", b"new\n")},
        ),
        (
            ["*** Update File: a", "*** Move to: b", "*** Update File: b", "*** Move to: c"],
            "M c\n",
            {"c": ("-rwxr-x--x", b"old\n")},
        ),
        (
            ["*** Update File: a", "*** Move to: b", "*** Add File: a", "+new"],
            "A b\nM a\n",
            {"a": ("-rwxr-x--x", b"new\n"), "b": ("-rwxr-x--x", b"old\n")},
        ),
        (["*** Update File: a", "*** Move to: a", "-old", "+new"], "M a\n", {"a": ("-rwxr-x--x", b"new\n")}),
        (["*** Update File: a", " old"], "M a\n", {"a": ("-rwxr-x--x", b"old\n")}),
    ],
)
def test_hunks_are_played_through_in_order(
    work: Path, lines: list[str], summary: str, expected: dict[str, tuple[str, bytes]]
) -> None:
    plant(work, a="old\n")
    (work / "a").chmod(0o751)

    plan = apply(work, *lines)

    assert plan.summary() == f"Success. Updated the following files:\n{summary}"
    assert tree(work) == expected


def test_paths_are_read_from_the_directory_of_the_call(work: Path) -> None:
    (work / "sub").mkdir()

    plan = apply(work, "*** Add File: a.txt", "+a", workdir=work / "sub")

    assert plan.inside_cwd
    assert tree(work) == {"sub": ("drwxr-xr-x", b""), "sub/a.txt": ("-rw-r--r--", b"a\n")}


def test_the_working_directory_itself_may_be_reached_through_a_link(work: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(work)

    plan = verify(
        patch("*** Add File: a", "+a", f"*** Add File: {link}/b", "+b", f"*** Add File: {work}/c", "+c"),
        workdir=str(link),
        cwd=str(link),
    )

    assert [change.path for change in plan.changes] == [f"{work}/a", f"{work}/b", f"{work}/c"]
    assert plan.inside_cwd


# --- paths and links -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../outside.txt", "sub/../../outside.txt", "{outside}/outside.txt"])
def test_a_plan_has_the_path_of_a_file_outside_of_the_directory(work: Path, path: str) -> None:
    (work / "sub").mkdir()

    plan = planned(work, f"*** Add File: {path.format(outside=work.parent)}", "+x")

    assert [change.path for change in plan.changes] == [f"{work.parent}/outside.txt"]
    assert not plan.inside_cwd


def test_a_move_to_the_outside_is_outside(work: Path) -> None:
    plant(work, a="x\n")

    assert not planned(work, "*** Update File: a", "*** Move to: ../a").inside_cwd


def test_a_neighbour_whose_name_begins_alike_is_outside(work: Path) -> None:
    assert not planned(work, "*** Add File: ../work_evil/a", "+x").inside_cwd


def test_a_call_in_a_directory_elsewhere_is_outside(work: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (work / "link").symlink_to(tmp_path / "elsewhere")

    plan = planned(work, "*** Add File: a", "+x", workdir=work / "link")

    assert [change.path for change in plan.changes] == [f"{tmp_path}/elsewhere/a"]
    assert not plan.inside_cwd


@pytest.fixture
def elsewhere(work: Path) -> Path:
    """Return the directory that `link` leads to. Each directory around it contains a file `f`."""
    path = work.parent / "elsewhere"
    for folder in (work, work / "sub", path, path / "inner", path / "sub"):
        folder.mkdir(exist_ok=True)
        plant(folder, f="x\n")
    (work / "link").symlink_to(path / "inner")
    return path


@pytest.mark.parametrize("workdir", ["link/..", "link/../sub", "sub/../link/../sub"])
def test_a_path_is_never_taken_for_another_because_the_call_went_back_from_a_link(
    work: Path, elsewhere: Path, workdir: str
) -> None:
    for path in (f"{work}/f", f"{work}/sub/f"):
        plan = planned(work, f"*** Update File: {path}", "-x", "+y", workdir=work / workdir)
        assert [change.path for change in plan.changes] == [path]

    plan = planned(work, "*** Update File: f", "-x", "+y", workdir=work / workdir)
    assert [change.path for change in plan.changes] == [f"{os.path.realpath(work / workdir)}/f"]
    assert not plan.inside_cwd


def test_a_conversation_may_be_in_a_linked_directory(work: Path, elsewhere: Path) -> None:
    cwd = f"{work}/link/../sub"

    plan = verify(
        patch("*** Update File: f", "-x", "+y", f"*** Update File: {work}/sub/f", "-x", "+z"), workdir=cwd, cwd=cwd
    )

    assert [change.path for change in plan.changes] == [f"{elsewhere}/sub/f", f"{work}/sub/f"]
    assert not plan.inside_cwd


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link/../f", "{work}/link is a symbolic link"),
        ("{work}/link/../f", "{work}/link is a symbolic link"),
        ("sub/../link/../../sub/f", "{work}/link is a symbolic link"),
        ("nowhere/../f", "{work}/nowhere: No such file or directory (os error 2)"),
        ("f/../f", "{work}/f is not a directory"),
        ("link/nowhere/../../f", "{work}/link/nowhere: No such file or directory (os error 2)"),
    ],
)
def test_a_path_does_not_go_back_from_what_is_no_directory(
    work: Path, elsewhere: Path, path: str, why: str
) -> None:
    path = path.format(work=work)

    assert refusal(work, f"*** Update File: {path}", "-x", "+y") == (
        f"error: invalid path '{path}': {why.format(work=work)}"
    )


@pytest.mark.parametrize(
    ("workdir", "why"),
    [
        ("nowhere", "No such file or directory (os error 2)"),
        ("nowhere/..", "No such file or directory (os error 2)"),
        ("f", "Not a directory (os error 20)"),
        ("f/..", "Not a directory (os error 20)"),
        ("circle", "Too many levels of symbolic links (os error 40)"),
    ],
)
def test_a_call_must_be_in_a_directory(work: Path, elsewhere: Path, workdir: str, why: str) -> None:
    (work / "circle").symlink_to("circle")

    message = refusal(work, "*** Update File: ../f", "-x", "+y", workdir=work / workdir)

    assert message == f"error: invalid working directory {work}/{workdir}: {why}"


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".git",
        "sub/.git/config",
        ".GIT/config",
        ".Git",
        ".g\u200cit/config",
        "\ufeff.git/config",
        ".git./config",
        ".git . ./config",
        ".git::$INDEX_ALLOCATION/config",
        "x\\.git\\config",
        "git~1/config",
        "GIT~2",
        "../.git/config",
        "x/../.git/config",
    ],
)
@pytest.mark.parametrize("header", ["*** Add File: {}", "*** Update File: a\n*** Move to: {}"])
def test_git_is_refused_in_every_spelling(work: Path, header: str, path: str) -> None:
    plant(work, a="x\n")

    message = refusal(work, header.format(path))

    assert message == f"error: {work}/{path} must not be changed: .git is protected"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".parley/config.toml", ".parley"),
        (".CODEX/x", ".codex"),
        ("a/parley~1", ".parley"),
        (".agents/skills/x", ".agents"),
        (".claude/settings.json", ".claude"),
        (".cursor/mcp.json", ".cursor"),
        (".gemini/settings.json", ".gemini"),
        ("sub/.windsurf/x", ".windsurf"),
    ],
)
def test_the_configuration_of_agents_is_refused(work: Path, path: str, name: str) -> None:
    assert refusal(work, f"*** Add File: {path}", "+x") == (
        f"error: {work}/{path} must not be changed: {name} is protected"
    )


def test_our_own_home_is_refused_whatever_it_is_called(work: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    home = f"{tmp_path}/home"

    for path in (f"{tmp_path}/real/config.toml", "../real/new/config.toml"):
        with pytest.raises(PatchNotApplied) as refused:
            verify(patch(f"*** Add File: {path}", "+x"), workdir=str(work), cwd=str(work), home=home)
        shown = os.path.join(work, path)
        assert str(refused.value) == f"error: {shown} must not be changed: Parley's home is protected"


def test_a_conversation_may_work_below_our_own_home(tmp_path: Path) -> None:
    work = tmp_path / "home" / "checkouts" / "one"
    work.mkdir(parents=True)

    def paths(path: str) -> list[str]:
        text = patch(f"*** Add File: {path}", "+x")
        plan = verify(text, workdir=str(work), cwd=str(work), home=f"{tmp_path}/home")
        return [change.path for change in plan.changes]

    assert paths("a") == [f"{work}/a"]
    with pytest.raises(PatchNotApplied):
        paths("../../config.toml")


@pytest.mark.parametrize("name", ["id", "folder", "link", "none", "none/none", "folder/none"])
def test_no_refusal_shows_whether_a_file_exists_in_a_hidden_directory(work: Path, name: str) -> None:
    keys = work / "keys"
    (keys / "folder").mkdir(parents=True)
    (keys / "id").write_text("key")
    (keys / "link").symlink_to(work)
    (work / "way").symlink_to(keys)
    back = "../" * (name.count("/") + 2)
    expected = {
        (str(work), f"keys/{name}"): f"error: {keys}/{name} must not be changed: {keys} is protected",
        (str(work), f"keys/{name}/{back}x"): f"error: invalid path 'keys/{name}/{back}x': {keys} is protected",
        (str(work), f"way/{name}/{back}x"): f"error: invalid path 'way/{name}/{back}x': {keys} is protected",
        (f"{keys}/{name}", "x"): f"error: invalid working directory {keys}/{name}: {keys} is protected",
        (f"{work}/way/{name}", "x"): f"error: invalid working directory {work}/way/{name}: {keys} is protected",
    }

    for (workdir, path), text in expected.items():
        with pytest.raises(PatchNotApplied) as refused:
            verify(patch(f"*** Add File: {path}", "+x"), workdir=workdir, cwd=str(work), hidden=(str(keys),))
        assert str(refused.value) == text


def test_a_hidden_file_is_refused_although_the_patch_matches(work: Path, tmp_path: Path) -> None:
    (work / "keys").mkdir()
    (work / "keys" / "id").write_text("secret\n")
    hidden = (f"{work}/keys", f"{tmp_path}/not there")

    for lines in (("*** Update File: keys/id", "-secret", "+x"), ("*** Delete File: keys/id",)):
        with pytest.raises(PatchNotApplied) as refused:
            verify(patch(*lines), workdir=str(work), cwd=str(work), hidden=hidden)
        assert str(refused.value) == f"error: {work}/keys/id must not be changed: {work}/keys is protected"


def test_the_target_of_a_git_file_is_refused(work: Path) -> None:
    (work / "meta" / "own").mkdir(parents=True)
    (work / ".git").write_text("gitdir: meta/own\n")
    (work / "meta" / "own" / "commondir").write_text("../shared\n")

    for path in ("meta/own/config", "meta/shared/hooks/pre-commit"):
        assert refusal(work, f"*** Add File: {path}", "+x") == (
            f"error: {work}/{path} must not be changed: .git is protected"
        )


@pytest.mark.parametrize("content", [b"", b"gitdir:", b"gitdir: \0\xff", b"gitdir: /\n" * 1000])
def test_a_git_file_that_makes_no_sense_prevents_nothing(work: Path, content: bytes) -> None:
    (work / ".git").write_bytes(content)

    verify(patch("*** Add File: a.txt", "+x"), workdir=str(work), cwd=str(work))


def test_git_is_refused_from_within(work: Path) -> None:
    (work / ".git").mkdir()

    message = refusal(work, "*** Add File: config", "+x", workdir=work / ".git")

    assert message == f"error: {work}/.git/config must not be changed: .git is protected"


def test_a_working_directory_below_such_a_name_is_like_any_other(tmp_path: Path) -> None:
    work = tmp_path / ".codex" / "checkouts" / "one"
    work.mkdir(parents=True)

    apply(work, "*** Add File: .gitignore", "+x")

    assert tree(work) == {".gitignore": ("-rw-r--r--", b"x\n")}


# --- existing files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        (["*** Add File: link/a", "+x"], "Failed to write file {work}/link/a"),
        (["*** Update File: link/f", "-x"], "Failed to read file to update {work}/link/f"),
        (["*** Delete File: link/f"], "Failed to delete file {work}/link/f"),
        (["*** Update File: own", "*** Move to: link/a"], "Failed to write file {work}/link/a"),
    ],
)
def test_a_directory_that_is_a_link_is_not_followed(work: Path, lines: list[str], failure: str) -> None:
    outside = work.parent / "outside"
    outside.mkdir()
    plant(outside, f="x\n")
    plant(work, own="x\n")
    (work / "link").symlink_to(outside)

    assert refusal(work, *lines) == f"error: {failure.format(work=work)}: {work}/link is a symbolic link"


@pytest.mark.parametrize(
    ("lines", "failure"),
    [
        (["*** Add File: link", "+x"], "Failed to write file {work}/link"),
        (["*** Add File: dangling", "+x"], "Failed to write file {work}/dangling"),
        (["*** Update File: link", "-x"], "Failed to read file to update {work}/link"),
        (["*** Delete File: link"], "Failed to delete file {work}/link"),
    ],
)
def test_a_file_that_is_a_link_is_refused(work: Path, lines: list[str], failure: str) -> None:
    plant(work, f="x\n")
    (work / "link").symlink_to("f")
    (work / "dangling").symlink_to("nowhere")

    link = lines[0].rpartition(" ")[2]
    assert refusal(work, *lines) == f"error: {failure.format(work=work)}: {work}/{link} is a symbolic link"


def test_a_hard_link_elsewhere_keeps_its_content(work: Path) -> None:
    outside = work.parent / "outside.txt"
    outside.write_text("x\n")
    os.link(outside, work / "a.txt")

    apply(work, "*** Update File: a.txt", "-x", "+y")

    assert (outside.read_text(), (work / "a.txt").read_text()) == ("x\n", "y\n")


def test_only_regular_files_are_changed(work: Path) -> None:
    (work / "folder").mkdir()
    os.mkfifo(work / "pipe")

    assert refusal(work, "*** Update File: pipe", "-x") == f"error: {work}/pipe is not a regular file"
    assert refusal(work, "*** Delete File: folder") == f"error: {work}/folder is not a regular file"
    assert refusal(work, "*** Add File: pipe", "+x") == f"error: File already exists: {work}/pipe"


def test_a_file_is_not_added_over_another(work: Path) -> None:
    plant(work, a="x\n", b="y\n")

    assert refusal(work, "*** Add File: a", "+y") == f"error: File already exists: {work}/a"
    assert refusal(work, "*** Update File: a", "*** Move to: b") == f"error: File already exists: {work}/b"
    assert refusal(work, "*** Add File: c", "+1", "*** Add File: ./c", "+2") == (
        f"error: File already exists: {work}/./c"
    )


@pytest.mark.parametrize("lines", [["*** Update File: a", "-x"], ["*** Delete File: a"]])
def test_a_read_only_file_is_left_alone(work: Path, lines: list[str]) -> None:
    plant(work, a="x\n")
    (work / "a").chmod(0o444)

    assert refusal(work, *lines) == f"error: {work}/a is read-only"


def test_a_second_file_that_does_not_match_leaves_the_first_as_it_was(work: Path) -> None:
    plant(work, a="x\n", b="y\n")

    message = refusal(work, "*** Update File: a", "-x", "+z", "*** Update File: b", "-nothing like this")

    assert message == f'error: Failed to find expected lines ["nothing like this"] in {work}/b'


def test_a_missing_file_is_named(work: Path) -> None:
    missing = "No such file or directory (os error 2)"

    assert refusal(work, "*** Update File: a", "-x") == f"error: Failed to read file to update {work}/a: {missing}"
    assert refusal(work, "*** Delete File: b/a") == f"error: Failed to delete file {work}/b/a: {missing}"
    assert refusal(work, "*** Add File: n", "*** Delete File: n", "*** Delete File: n") == (
        f"error: Failed to delete file {work}/n: {missing}"
    )


def test_a_file_in_place_of_a_directory_is_named(work: Path) -> None:
    plant(work, a="x\n")

    assert refusal(work, "*** Add File: a/b", "+x") == (
        f"error: Failed to write file {work}/a/b: Not a directory (os error 20)"
    )
    assert refusal(work, "*** Add File: n", "+x", "*** Add File: n/b", "+x") == (
        f"error: {work}/n would be both a file and a directory"
    )


# --- refused patches -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a\x00b", 'invalid path "a\\u0000b": it has control characters'),
        ("a\x1bb", 'invalid path "a\\u001bb": it has control characters'),
        ("a\u2028b", 'invalid path "a\\u2028b": it has control characters'),
        ("folder/", "invalid path 'folder/': it does not name a file"),
        ("..", "invalid path '..': it does not name a file"),
        ("a/..", "invalid path 'a/..': it does not name a file"),
        ("x/" * 2100 + "a", f"invalid path '{'x/' * 2100}a': it is too long"),
    ],
)
def test_a_path_must_be_the_name_of_a_file(work: Path, path: str, expected: str) -> None:
    assert refusal(work, f"*** Add File: {path}", "+x") == f"error: {expected}"


def test_a_name_that_the_system_does_not_take_is_refused(work: Path) -> None:
    name = "n" * 300

    assert refusal(work, f"*** Add File: {name}", "+x") == (
        f"error: Failed to write file {work}/{name}: File name too long (os error 36)"
    )


def test_where_the_working_directory_is_moved_about_nothing_is_changed(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(work)
    monkeypatch.setattr(os, "readlink", not_a_link)
    with pytest.raises(PatchNotApplied) as refused:
        verify(patch("*** Add File: a", "+x"), workdir=str(work), cwd=f"{tmp_path}/link")

    assert str(refused.value) == f"error: {tmp_path}/link cannot be resolved: Invalid argument (os error 22)"


def test_a_call_cannot_be_in_a_directory_that_cannot_be(work: Path) -> None:
    with pytest.raises(PatchNotApplied) as refused:
        verify(patch("*** Add File: a"), workdir=f"{work}/\0", cwd=str(work))

    assert str(refused.value) == f'error: invalid working directory "{work}/\\u0000": it has control characters'


def test_a_patch_is_refused_where_no_file_can_be_opened(work: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        with pytest.raises(PatchNotApplied) as refused:
            planned(work, "*** Add File: a", "+x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)

    assert str(refused.value) == (
        "error: no file can be read: Too many open files (os error 24): "
        "the server can have at most 0 files and connections open (RLIMIT_NOFILE, `ulimit -n`)"
    )


def test_a_patch_without_a_waiting_caller_is_given_up(work: Path) -> None:
    plant(work, a="x\n")
    text = patch("*** Update File: a", "-x", "+y")
    cancel = CancelToken()
    plan = verify(text, workdir=str(work), cwd=str(work), cancel=cancel)
    cancel.cancel()

    for attempt in (
        lambda: verify(text, workdir=str(work), cwd=str(work), cancel=cancel),
        lambda: plan.for_events(cancel=cancel),
    ):
        with pytest.raises(PatchNotApplied) as refused:
            attempt()
        assert str(refused.value) == "error: interrupted"


def test_an_empty_patch_is_rejected(work: Path) -> None:
    assert refusal(work) == "patch rejected: empty patch"


def test_half_a_surrogate_pair_is_no_text(work: Path) -> None:
    assert refusal(work, "*** Add File: a", "+\ud800") == "error: invalid patch: the text is not valid Unicode"


def test_a_large_file_is_refused(work: Path) -> None:
    with (work / "large").open("wb") as file:
        file.truncate(limits.MAX_FILE_BYTES + 1)

    assert refusal(work, "*** Delete File: large") == f"error: {work}/large is larger than 16 MiB"


def test_a_file_of_too_many_lines_is_refused(work: Path) -> None:
    plant(work, lines=b"\n" * (limits.MAX_LINES + 1))

    assert refusal(work, "*** Update File: lines", "-x") == f"error: {work}/lines has more than 2000000 lines"


def test_a_patch_of_too_many_lines_or_bytes_is_refused(work: Path) -> None:
    assert (
        refusal(work, "*** Add File: a", "+\n" * limits.MAX_LINES) == "error: the patch has more than 2000000 lines"
    )
    assert refusal(work, "*** Add File: a", "+" + "x" * limits.MAX_PATCH_BYTES) == (
        "error: the patch is larger than 64 MiB"
    )


def test_a_file_must_not_become_too_large(work: Path) -> None:
    plant(work, a=b"x" * limits.MAX_FILE_BYTES)

    assert refusal(work, "*** Update File: a", "@@", "+more") == f"error: {work}/a would be larger than 16 MiB"


def test_all_files_together_must_not_be_too_large(work: Path) -> None:
    names = [f"f{number}" for number in range(5)]
    for name in names:
        with (work / name).open("wb") as file:
            file.truncate(limits.MAX_FILE_BYTES)

    with pytest.raises(PatchNotApplied) as refused:
        planned(work, *(f"*** Delete File: {name}" for name in names))

    assert str(refused.value) == "error: the patch reads more than 64 MiB"


def test_too_many_files_or_directories_are_refused(work: Path) -> None:
    many = limits.MAX_FILES + 1

    assert refusal(work, *(f"*** Add File: f{number}" for number in range(many))) == (
        "error: the patch has more than 2000 hunks"
    )
    assert refusal(work, *(f"*** Add File: {number}/{'d/' * 50}f" for number in range(50))) == (
        "error: the patch would create more than 2000 directories"
    )


# --- metadata of files ---------------------------------------------------------------------------


def test_owner_and_extended_attributes_are_kept_where_they_can_be(work: Path) -> None:
    plant(work, a="x\n", b="x\n")
    for name in ("a", "b"):
        if os.geteuid() == 0:
            os.chown(work / name, 1234, 2345)
        os.setxattr(work / name, "user.note", b"kept")
        (work / name).chmod(0o4751)
    owner = (work / "a").stat()

    apply(work, "*** Update File: a", "-x", "+y", "*** Update File: b", "*** Move to: c")

    for name in ("a", "c"):
        found = (work / name).stat()
        assert (found.st_uid, found.st_gid) == (owner.st_uid, owner.st_gid)
        assert stat.S_IMODE(found.st_mode) == 0o751
        assert os.getxattr(work / name, "user.note") == b"kept"
