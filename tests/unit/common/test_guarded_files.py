"""Files are opened by descriptor, and the opened file is checked, not its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kit.system.mounts import MOUNTS, UNSHARED
from parley.common.guarded_files import DirFds, HiddenPath, UnexpectedSymlink, identity_of, read_named

LIMIT: Final = 1000


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/deep").mkdir(parents=True)
    (tmp_path / "keys/inner").mkdir(parents=True)
    (tmp_path / "keys/inner/id").write_text("key")
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "project/own").write_text("own")
    return tmp_path / "project"


def read(project: Path, path: str, *, limit: int = LIMIT) -> str:
    hidden = [str(project.parent / "keys"), "/no/such/place"]
    return read_named(path, cwd=str(project), limit=limit, hidden=hidden).decode()


def test_links_are_resolved_within_the_project(project: Path) -> None:
    (project / "link").symlink_to("deep/../own")
    (project / "deep/up").symlink_to("..")
    (project / "absolute").symlink_to(project / "own")
    (project.parent / "way").symlink_to(project)

    for path in ("own", "link", "deep/up/own", "absolute", "../way/link", str(project / "own")):
        assert read(project, path) == "own"
    assert read(project.parent / "way", "link") == "own"


@pytest.mark.parametrize("target", ["../outside", "deep/../../outside", "../project/../outside", "{}/outside"])
def test_a_link_of_the_project_that_leads_out_of_it_is_refused(project: Path, target: str) -> None:
    (project / "link").symlink_to(target.format(project.parent))

    with pytest.raises(OSError, match="a symbolic link leads out of the project"):
        read(project, "link")
    assert read(project, "../outside") == "outside"


@pytest.mark.parametrize(
    "path", ["../keys/inner/id", "link", "folder/inner/id", "hard", "/proc/self/root{}/keys/inner/id"]
)
def test_hidden_files_are_refused_under_every_name(project: Path, path: str) -> None:
    keys = project.parent / "keys"
    (project / "link").symlink_to(keys / "inner/id")
    (project / "folder").symlink_to(keys)
    os.link(keys / "inner/id", project / "hard")

    with pytest.raises(OSError, match=r"access is not allowed|leads out of the project"):
        read(project, path.format(project.parent))


@pytest.mark.parametrize(
    "name", ["id", "pipe", "link", "folder/..", "none", "none/none", "none/..", "id/x", "a\0b"]
)
@pytest.mark.parametrize("way", ["../keys/inner", "folder/inner", "../keys/none"])
def test_no_error_shows_whether_a_file_exists_in_a_hidden_directory(project: Path, way: str, name: str) -> None:
    inner = project.parent / "keys/inner"
    (inner / "folder").mkdir()
    (inner / "link").symlink_to(project / "own")
    os.mkfifo(inner / "pipe")
    (project / "folder").symlink_to(project.parent / "keys")

    with pytest.raises(HiddenPath):
        read(project, f"{way}/{name}")


def test_a_visible_directory_is_found_through_a_hidden_one(project: Path) -> None:
    own = project.parent / "keys/inner"
    (own / "deep").mkdir()
    hidden = [str(project.parent / "keys"), str(own)]

    assert read_named("../keys/inner/id", cwd=str(project), limit=LIMIT, hidden=hidden, own=str(own)) == b"key"
    assert read_named("deep/../id", cwd=str(own), limit=LIMIT, hidden=hidden, own=str(own)) == b"key"
    with pytest.raises(FileNotFoundError):
        read_named("none", cwd=str(own), limit=LIMIT, hidden=hidden, own=str(own))
    with pytest.raises(HiddenPath):
        read_named("../none", cwd=str(own), limit=LIMIT, hidden=hidden, own=str(own))


def test_another_file_with_two_names_is_read(project: Path) -> None:
    os.link(project / "own", project / "other")

    assert read(project, "other") == "own"


OVERLAY = """
set -e
cd "$1"; mkdir lower upper merged
mount -t tmpfs lower lower; mount -t tmpfs upper upper
mkdir upper/changed upper/work lower/keys lower/project
echo key > lower/keys/id; ln lower/keys/id lower/project/other
mount -t overlay overlay -o xino=off,lowerdir=lower,upperdir=upper/changed,workdir=upper/work merged || exit 77
exec "$2" -c "$3" "$1/merged"
"""
READ_ON_OVERLAY = """
import sys
from parley.common.guarded_files import read_named
top = sys.argv[1]
print(read_named("other", cwd=f"{top}/project", limit=10, hidden=[f"{top}/keys"]))
"""


@MOUNTS
def test_a_second_name_of_a_hidden_file_is_refused_on_overlayfs_too(tmp_path: Path) -> None:
    ran = subprocess.run(
        [*UNSHARED, OVERLAY, "sh", str(tmp_path), sys.executable, READ_ON_OVERLAY],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode == 77:
        pytest.skip("overlayfs cannot be mounted here")

    assert (ran.stdout, ran.stderr.splitlines()[-1:]) == (
        "",
        [f"{HiddenPath.__module__}.HiddenPath: [Errno 0] access is not allowed"],
    )


def test_a_file_with_two_names_is_refused_where_too_much_is_hidden(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(project / "own", project / "other")
    monkeypatch.setattr("parley.common.guarded_files._MAX_HIDDEN_FILES", 1)

    with pytest.raises(OSError, match="access is not allowed"):
        read(project, "other")


def test_a_directory_in_a_hidden_one_can_be_visible(project: Path) -> None:
    inner = project.parent / "keys/inner"
    os.link(inner / "id", inner / "other")
    with DirFds([str(project.parent / "keys")], visible=str(inner)) as folders:
        assert folders.read(str(inner / "id"), limit=LIMIT) == b"key"
    hidden = [str(project.parent / "keys"), str(inner / "id")]
    with DirFds(hidden, visible=str(inner)) as folders, pytest.raises(OSError, match="access is not allowed"):
        folders.read(str(inner / "other"), limit=LIMIT)


@pytest.mark.parametrize("path", ["pipe", "deep", "/dev/zero", "/dev/stdin", "/proc/self/environ", "/proc/cpuinfo"])
def test_special_files_are_refused_at_once(project: Path, path: str) -> None:
    os.mkfifo(project / "pipe")

    with pytest.raises(OSError, match=r"regular file|No such|Is a directory"):
        read(project, path)


def test_of_a_huge_file_no_more_than_the_limit_is_read(project: Path) -> None:
    with (project / "huge").open("wb") as file:
        file.truncate(1 << 40)

    assert read(project, "huge", limit=5) == "\0" * 5
    with DirFds() as folders:
        assert folders.read_whole(str(project / "huge"), at_most=LIMIT) is None
        assert folders.read_whole(str(project / "own"), at_most=LIMIT) == b"own"


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "loop", "own/../own", "no/such", "x" * 5000])
def test_a_file_that_cannot_be_opened_is_an_os_error(project: Path, path: str) -> None:
    (project / "loop").symlink_to("loop")

    with pytest.raises(OSError):
        read(project, path)


def test_a_directory_must_be_the_expected_one(project: Path) -> None:
    deep = str(project / "deep")
    identity = identity_of(os.stat(deep))
    (project / "deep").rename(project / "aside")
    (project / "deep").mkdir()

    with DirFds(expected={deep: identity}) as folders, pytest.raises(OSError) as stale:
        folders.open(deep)
    with DirFds(expected={deep: None}) as folders, pytest.raises(OSError) as unexpected:
        folders.make(deep, made=lambda path: None)
    with DirFds(expected={f"{deep}/new": None}) as folders:
        folders.make(f"{deep}/new", made=lambda path: None)

    assert (stale.value.filename, unexpected.value.filename) == (deep, deep)


def test_no_link_is_followed_on_the_way_to_a_directory(project: Path) -> None:
    (project / "link").symlink_to("deep")
    before = sorted(os.listdir("/proc/self/fd"))

    with DirFds() as folders, pytest.raises(UnexpectedSymlink):
        folders.open(str(project / "link"))

    assert sorted(os.listdir("/proc/self/fd")) == before
