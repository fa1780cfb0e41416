"""The diff of a turn outside of a repository: the names of files, and safe reading."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from parley.tools.patch.limits import MAX_FILE_BYTES
from parley.tools.patch.turndiff import TouchedFiles

NO_BLOB = "0" * 40


# --- names -----------------------------------------------------------------------------------


def test_outside_of_a_repository_paths_are_shown_as_they_were_given(tmp_path: Path) -> None:
    cwd = tmp_path / "work"
    cwd.mkdir()
    turn = TouchedFiles(str(cwd))

    turn.before(f"{cwd}/../outside.txt", None, None)
    (tmp_path / "outside.txt").write_bytes(b"x\n")

    assert turn.render() == (
        f"diff --git a/{cwd}/../outside.txt b/{cwd}/../outside.txt\n"
        "new file mode 100644\n"
        f"index {NO_BLOB}..587be6b4c3f93f93c489c0111bba5596147a26cb\n"
        "--- /dev/null\n"
        f"+++ b/{cwd}/../outside.txt\n"
        "@@ -0,0 +1 @@\n+x\n"
    )


def test_two_spellings_of_a_path_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    turn = TouchedFiles(str(tmp_path))

    turn.before(f"{tmp_path}/folder/a.txt", None, None)
    (tmp_path / "folder" / "a.txt").write_bytes(b"a\n")
    turn.before(f"{tmp_path}/folder/../folder/a.txt", b"a\n", 0o644)
    turn.before("folder/a.txt", b"a\n", 0o644)

    assert re.findall("(?m)^diff.*", turn.render()) == [
        f"diff --git a/{tmp_path}/folder/a.txt b/{tmp_path}/folder/a.txt"
    ]


# --- hidden and unreadable files -----------------------------------------------------------------


def a_turn_with(file: Path) -> TouchedFiles:
    turn = TouchedFiles(str(file.parent))
    file.write_bytes(b"x\n")
    turn.before(str(file), b"x\n", 0o644)
    file.unlink()
    return turn


def deletion_of(file: Path) -> str:
    return (
        f"diff --git a/{file} b/{file}\n"
        "deleted file mode 100644\n"
        f"index 587be6b4c3f93f93c489c0111bba5596147a26cb..{NO_BLOB}\n"
        f"--- a/{file}\n"
        "+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-x\n"
    )


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda file: None, id="nothing"),
        pytest.param(lambda file: file.symlink_to("/etc/passwd"), id="a link"),
        pytest.param(lambda file: file.symlink_to("nowhere"), id="a broken link"),
        pytest.param(lambda file: file.mkdir(), id="a folder"),
        pytest.param(os.mkfifo, id="a pipe without a writer"),
    ],
)
def test_special_files_count_as_missing(put: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "file"
    turn = a_turn_with(file)
    put(file)
    descriptors = open_descriptors()

    diff = turn.render()

    assert diff == deletion_of(file)
    assert open_descriptors() == descriptors


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "file").write_bytes(b"secret\n")
    turn = a_turn_with(tmp_path / "folder" / "file")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").symlink_to("secrets")
    descriptors = open_descriptors()

    diff = turn.render()

    assert diff == deletion_of(tmp_path / "folder" / "file")
    assert open_descriptors() == descriptors


def test_a_folder_that_is_gone_takes_its_files_with_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    turn = a_turn_with(tmp_path / "folder" / "file")
    shutil.rmtree(tmp_path / "folder")

    assert turn.render() == deletion_of(tmp_path / "folder" / "file")


def test_a_file_that_has_become_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    turn = a_turn_with(file)
    with file.open("wb") as handle:
        handle.truncate(1 << 40)

    assert turn.render() == f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\nBinary files differ\n"


def test_a_file_as_large_as_may_be_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "file"
    before = b"x" * 15 + b"\n"
    before *= MAX_FILE_BYTES // len(before)
    turn = TouchedFiles(str(tmp_path))
    turn.before(str(file), before, 0o644)
    file.write_bytes(b"y" + before[1:])

    diff = turn.render()

    assert diff.splitlines()[2:] == [
        f"--- a/{file}",
        f"+++ b/{file}",
        "@@ -1,4 +1,4 @@",
        f"-{'x' * 15}",
        f"+y{'x' * 14}",
        *[f" {'x' * 15}"] * 3,
    ]


@pytest.mark.long
def test_a_turn_that_touches_very_much_shows_the_rest_without_lines(tmp_path: Path) -> None:
    content = b"x" * 15 + b"\n"
    content *= (15 << 20) // len(content)
    turn = TouchedFiles(str(tmp_path))
    for name in "abcde":
        turn.before(str(tmp_path / name), content, 0o644)
        (tmp_path / name).write_bytes(content + b"one more\n")

    shown = [("+one more\n" in section, "Binary" in section) for section in turn.render().split("diff --git")[1:]]

    assert shown == [(True, False)] * 4 + [(False, True)]


def test_a_path_deeper_than_python_can_recurse_is_named(tmp_path: Path) -> None:
    turn = TouchedFiles(str(tmp_path))
    path = f"{tmp_path}/{'d/' * 1_500}file"

    turn.before(path, b"x\n", 0o644)

    assert turn.render() == deletion_of(Path(path))


@pytest.mark.parametrize(
    ("content", "name"), [(None, "{folder}/a.txt"), ("HEAD", "a.txt")], ids=["empty", "with something in it"]
)
def test_an_empty_git_directory_makes_no_repository(tmp_path: Path, content: str | None, name: str) -> None:
    (tmp_path / ".git").mkdir()
    if content is not None:
        (tmp_path / ".git" / content).touch()
    turn = TouchedFiles(str(tmp_path))
    turn.before("a.txt", None, None)
    (tmp_path / "a.txt").write_text("a\n")

    shown = name.format(folder=tmp_path)
    assert turn.render().splitlines()[0] == f"diff --git a/{shown} b/{shown}"
