"""The diff of a turn in a real repository is the same as Git's diff of these edits."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.system.git import git
from parley.tools.patch.turndiff import TouchedFiles


class Repository:
    """A real repository, and a turn in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        self.turn = TouchedFiles(str(root))

    def git(self, *arguments: str) -> str:
        return git(*arguments, cwd=self.root).decode(errors="replace")

    def commit(self) -> None:
        """End the turn, commit, and begin the next turn."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a turn")
        self.turn = TouchedFiles(str(self.root))

    def touch(self, name: str) -> Path:
        """Record a file in the turn before it changes."""
        file = self.root / name
        if file.exists():
            self.turn.before(str(file), file.read_bytes(), file.stat().st_mode)
        else:
            self.turn.before(str(file), None, None)
        return file

    def write(self, name: str, content: bytes, *, mode: int = 0o644) -> None:
        file = self.touch(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    def delete(self, name: str) -> None:
        self.touch(name).unlink()

    def git_diff(self, *options: str) -> str:
        """Return git's diff of the same changes, in the format of the protocol."""
        self.git("add", "--all")
        diff = self.git("diff", "--cached", "--full-index", "--no-ext-diff", *(options or ("--no-renames",)))
        diff = re.sub(r"(?m)^(index \w+\.\.\w+) \d+$", r"\1", diff)
        diff = re.sub(r"(?m)^Binary files (.*) and (.*) differ$", r"--- \1\n+++ \2\nBinary files differ", diff)
        return re.sub(r"(?m)^(@@ [^@]*@@).*$", r"\1", diff)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


LINES = b"".join(b"line %d\n" % number for number in range(30))


class Write(NamedTuple):
    name: str
    content: bytes
    mode: int = 0o644


class Delete(NamedTuple):
    name: str


EDITS: dict[str, list[Write | Delete]] = {
    "a new file": [Write("new.txt", b"one\ntwo\n")],
    "a new empty file": [Write("new.txt", b"")],
    "a new file that can be run": [Write("run.sh", b"true\n", mode=0o755)],
    "a new file in a new folder": [Write("a/b/c.txt", b"x\n")],
    "a deleted file": [Delete("old.txt")],
    "a deleted empty file": [Delete("empty.txt")],
    "a deleted file that could be run": [Delete("run")],
    "an edited file": [Write("old.txt", LINES.replace(b"line 7\n", b"LINE 7\n"))],
    "a file edited twice": [Write("old.txt", LINES[7:]), Write("old.txt", LINES.replace(b"line 9\n", b""))],
    "an edit taken back": [Write("old.txt", b"x\n"), Write("old.txt", LINES)],
    "a file emptied": [Write("old.txt", b"")],
    "a file filled": [Write("empty.txt", b"x")],
    "a file that can now be run": [Write("old.txt", LINES, mode=0o755)],
    "a file that can be run no more": [Write("run", b"true\n")],
    "mode and content": [Write("run", b"false\n", mode=0o600)],
    "other bits of the mode": [Write("old.txt", LINES, mode=0o600)],
    "no final newline any more": [Write("old.txt", LINES[:-1])],
    "a final newline at last": [Write("open end.txt", b"a\nb\n")],
    "an edit before an open end": [Write("open end.txt", b"A\nb")],
    "CRLF kept": [Write("crlf.txt", b"a\r\nB\r\nc\r\n")],
    "CRLF made LF": [Write("crlf.txt", b"a\nb\nc\n")],
    "bytes that are no UTF-8": [Write("old.txt", b"\xff\xfe\n" + LINES)],
    "a binary file": [Write("image.bin", b"\0\2" * 20)],
    "a new binary file": [Write("new.bin", b"\0")],
    "a deleted binary file": [Delete("image.bin")],
    "a text made binary": [Write("old.txt", LINES + b"\0")],
    "a zero byte too late to count": [Write("new.txt", b"x" * 8000 + b"\0\n")],
    "a zero byte just early enough": [Write("new.txt", b"x" * 7999 + b"\0\n")],
    "a name with blanks": [Write("my file.txt", b"x\n")],
    "a name with an umlaut": [Write("schön.txt", b"x\n")],
    "a name with quotes": [Write('say "hi".txt', b"x\n")],
    "a name with a backslash": [Write("back\\slash", b"x\n")],
    "a name with control characters": [Write("a\ab\bt\tn\nv\vf\fr\re\x1bd\x7f", b"x\n")],
    "a name that is no UTF-8": [Write("\udcff.txt", b"x\n")],
    "an edit under an unusual name": [Write("ein täglich Ding.txt", b"neu\n")],
    "names in the order of bytes": [Write(name, b"x\n") for name in ("b", "ä", "a/b", "a-b", "B", "a.b", "z")],
    "nothing at all": [],
    "a file written as it was": [Write("old.txt", LINES)],
    "a file that came and went": [Write("new.txt", b"x"), Delete("new.txt")],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS.keys())
def test_a_turn_shows_what_git_shows_of(edits: list[Write | Delete], repository: Repository) -> None:
    repository.write("old.txt", LINES)
    repository.write("empty.txt", b"")
    repository.write("run", b"true\n", mode=0o755)
    repository.write("open end.txt", b"a\nb")
    repository.write("crlf.txt", b"a\r\nb\r\nc\r\n")
    repository.write("image.bin", b"\0\1" * 20)
    repository.write("ein täglich Ding.txt", b"alt\n")
    repository.commit()

    for edit in edits:
        match edit:
            case Write(name, content, mode):
                repository.write(name, content, mode=mode)
            case Delete(name):
                repository.delete(name)

    assert repository.turn.render() == repository.git_diff()


def test_turn_after_turn_shows_what_git_shows(repository: Repository) -> None:
    chance = random.Random(1)
    names = [f"folder {number % 3}/{number}.txt" for number in range(12)]
    for _ in range(8):
        for name in chance.choices(names, k=6):
            file = repository.root / name
            if file.exists() and chance.random() < 0.2:
                repository.delete(name)
                continue
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
            at = chance.randrange(len(lines) + 1)
            lines[at : at + chance.randrange(4)] = [
                b"%d\n" % chance.randrange(30) for _ in range(chance.randrange(9))
            ]
            repository.write(name, b"".join(lines), mode=chance.choice((0o644, 0o755)))

            assert repository.turn.render() == repository.git_diff()
        repository.commit()


def test_changes_of_other_programs_to_a_touched_file_are_shown(repository: Repository) -> None:
    repository.write("old.txt", LINES)
    repository.commit()

    repository.write("old.txt", b"x\n" + LINES)
    (repository.root / "old.txt").write_bytes(b"y\n" + LINES)
    (repository.root / "old.txt").chmod(0o755)

    assert repository.turn.render() == repository.git_diff()


def test_git_takes_a_turn_back(repository: Repository) -> None:
    repository.write("old.txt", LINES)
    repository.write("my file.txt", b"a\r\nb")
    repository.commit()
    repository.write("old.txt", LINES.replace(b"7", b"seven"), mode=0o755)
    repository.write("schön/ne u.txt", b"x")
    repository.delete("my file.txt")

    (repository.root / ".git" / "turn.diff").write_text(repository.turn.render(), newline="")
    repository.git("apply", "--reverse", "--whitespace=nowarn", ".git/turn.diff")

    assert repository.git("status", "--porcelain") == ""


# --- moves -----------------------------------------------------------------------------------


def move(repository: Repository, name: str, new_name: str, content: bytes) -> None:
    repository.touch(name)
    repository.write(new_name, content)
    (repository.root / name).unlink()
    repository.turn.moved(str(repository.root / name), str(repository.root / new_name))


def test_a_moved_file_is_shown_once_with_both_names(repository: Repository) -> None:
    repository.write("old.txt", b"alpha\nbeta\ngamma\n")
    repository.commit()

    move(repository, "old.txt", "moved.txt", b"alpha\nBETA\ngamma\n")

    assert repository.turn.render() == (
        "diff --git a/old.txt b/moved.txt\n"
        "index 85c30401ce288f253613cb07ee32e62128089caa..e50310a98706747e5f83d131572570985b069064\n"
        "--- a/old.txt\n"
        "+++ b/moved.txt\n"
        "@@ -1,3 +1,3 @@\n alpha\n-beta\n+BETA\n gamma\n"
    )


def test_a_file_moved_as_it_is_reads_as_in_git(repository: Repository) -> None:
    repository.write("old.txt", LINES)
    repository.commit()

    move(repository, "old.txt", "new place/schön.txt", LINES)

    assert repository.turn.render() == repository.git_diff("--find-renames")


def test_a_file_moved_twice_is_shown_with_its_first_and_its_last_name(repository: Repository) -> None:
    repository.write("a.txt", LINES)
    repository.commit()

    move(repository, "a.txt", "b.txt", LINES)
    move(repository, "b.txt", "c.txt", LINES)

    assert repository.turn.render() == repository.git_diff("--find-renames")


def test_a_file_moved_there_and_back_is_the_same(repository: Repository) -> None:
    repository.write("a.txt", LINES)
    repository.commit()

    move(repository, "a.txt", "b.txt", LINES)
    move(repository, "b.txt", "a.txt", LINES)

    assert repository.turn.render() == ""


def test_a_file_moved_over_another_is_a_deletion_and_an_edit(repository: Repository) -> None:
    repository.write("a.txt", LINES)
    repository.write("b.txt", b"b\n")
    repository.commit()

    move(repository, "a.txt", "b.txt", LINES)

    assert repository.turn.render() == repository.git_diff()


def test_a_name_that_is_used_again_after_a_move_is_an_edit_and_a_new_file(repository: Repository) -> None:
    repository.write("a.txt", LINES)
    repository.commit()

    move(repository, "a.txt", "b.txt", LINES)
    repository.write("a.txt", b"other\n")

    assert repository.turn.render() == repository.git_diff()


# --- names -----------------------------------------------------------------------------------


def test_each_file_is_named_from_the_nearest_repository(repository: Repository) -> None:
    inner = repository.root / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / ".git").write_text("gitdir: elsewhere\n")

    repository.write("inner/deep/a.txt", b"a\n")
    repository.write("outer.txt", b"a\n")

    assert re.findall("(?m)^diff.*", repository.turn.render()) == [
        "diff --git a/deep/a.txt b/deep/a.txt",
        "diff --git a/outer.txt b/outer.txt",
    ]
