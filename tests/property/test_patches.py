"""Any edit can be expressed as a patch, and an invalid patch changes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.builders.trees import Tree, patch, tree
from parley.tools.errors import PatchNotApplied
from parley.tools.patch.commit import commit
from parley.tools.patch.deadline import Deadline
from parley.tools.patch.matching import Text, apply_chunks
from parley.tools.patch.parser import UpdateFile, parse
from parley.tools.patch.plan import verify

SURROGATES: tuple[Literal["Cs"]] = ("Cs",)

odd_text = st.text(
    st.characters(exclude_characters="\n\r\ufeff", exclude_categories=SURROGATES), max_size=6
) | st.sampled_from(
    [
        "",
        " ",
        "\t",
        "-",
        "+",
        "@@",
        "*** End Patch",
        "*** End of File",
        "\u2028",
        "\x0b",
        "\x00",
        "“x”",
        "\u00a0",
        "EOF",
    ]
)
ends = st.sampled_from(["\n", "\r\n"])


class OldLine(NamedTuple):
    text: str
    end: str


class Edited(NamedTuple):
    """The edit of one line, and the lines that are inserted before it."""

    added: tuple[str, ...]
    kill_point: Literal["kept", "removed"]


class File(NamedTuple):
    lines: tuple[OldLine, ...]
    has_bom: bool
    ends_openly: bool

    def content(self) -> bytes:
        text = "".join(line.text + line.end for line in self.lines)
        if self.ends_openly and self.lines:
            text = text[: -len(self.lines[-1].end)]
        return (b"\xef\xbb\xbf" if self.has_bom else b"") + text.encode()


class Edit(NamedTuple):
    file: File
    script: tuple[Edited, ...]
    """The edit of each line of the file."""
    at_end: tuple[str, ...]
    """The lines that are added after the last line."""

    def expected(self) -> bytes:
        """Return the edited file, computed without a patch."""
        return self.file._replace(lines=tuple(self._edited_lines())).content()

    def _edited_lines(self) -> Iterator[OldLine]:
        old = self.file.lines
        group_start = 0
        """The index of the first of the removed lines directly before this step."""
        waiting: list[str] = []
        steps = [*self.script, Edited(self.at_end, "kept")]
        for at, (added, kill_point) in enumerate(steps):
            waiting += added
            if kill_point == "removed":
                continue
            removed = old[group_start:at]
            like = removed or old[at - 1 : at] if at else removed or old[:1]
            for number, text in enumerate(waiting):
                yield OldLine(text, like[min(number, len(like) - 1)].end if like else "\n")
            waiting = []
            yield from old[at : at + 1]
            group_start = at + 1


@st.composite
def files(draw: st.DrawFn, *, texts: st.SearchStrategy[str] = odd_text) -> File:
    end = draw(ends)
    line_ends = st.just(end) if draw(st.booleans()) else ends
    lines = tuple(draw(st.lists(st.builds(OldLine, texts, line_ends), max_size=12)))
    ends_openly = bool(lines) and draw(st.booleans())
    if ends_openly:
        # The line before determines the missing line end. An empty last line would not be a line at all.
        last_end = lines[-2].end if len(lines) > 1 else "\n"
        lines = (*lines[:-1], OldLine(lines[-1].text or "x", last_end))
    return File(lines, draw(st.booleans()), ends_openly)


@st.composite
def edits(draw: st.DrawFn, *, texts: st.SearchStrategy[str] = odd_text) -> Edit:
    file = draw(files(texts=texts))
    added = st.lists(texts, max_size=2).map(tuple)
    step = st.builds(Edited, st.just(()) | added, st.sampled_from(("kept", "kept", "removed")))
    script = tuple(draw(st.lists(step, min_size=len(file.lines), max_size=len(file.lines))))
    return Edit(file, script, draw(st.just(()) | added))


def as_lines(edit: Edit) -> list[str]:
    """Return the whole file as lines of one chunk."""
    lines: list[str] = []
    for old, (added, kill_point) in zip(edit.file.lines, edit.script, strict=True):
        lines += [f"+{text}" for text in added]
        lines.append(f"{' ' if kill_point == 'kept' else '-'}{old.text}")
    return lines + [f"+{text}" for text in edit.at_end]


def applied(content: bytes, lines: list[str]) -> bytes:
    (hunk,) = parse(patch("*** Update File: a", *lines))
    assert isinstance(hunk, UpdateFile)
    return apply_chunks(content, hunk.chunks, path="a", deadline=Deadline())


# --- edits -------------------------------------------------------------------------------


@given(edit=edits())
def test_an_edit_said_as_one_chunk_gives_the_edited_file(edit: Edit) -> None:
    lines = as_lines(edit)

    assert not lines or applied(edit.file.content(), ["@@", *lines]) == edit.expected()


numbered = st.integers(min_value=0, max_value=10**9).flatmap(
    lambda number: odd_text.map(lambda text: f"{number}{text}{number}")
)
"""Generates lines that are almost always distinct."""


def in_chunks(lines: list[str], around: int) -> list[str]:
    """Return the same edit in as many chunks as possible, with some unchanged lines around each change."""
    changed = [at for at, line in enumerate(lines) if line[0] != " "]
    wanted = sorted(
        {near for at in changed for near in range(max(0, at - around), min(len(lines), at + around + 1))}
    )
    chunks: list[str] = []
    for number, at in enumerate(wanted):
        if number == 0 or wanted[number - 1] != at - 1:
            chunks.append("@@")
        chunks.append(lines[at])
    return chunks


@given(edit=edits(texts=numbered), around=st.integers(min_value=1, max_value=3))
def test_an_edit_said_as_many_chunks_gives_the_edited_file(edit: Edit, around: int) -> None:
    keys = [line.text.strip() for line in edit.file.lines]
    lines = in_chunks(as_lines(edit), around)
    adds_only = not edit.file.lines
    if not lines or adds_only or len(set(keys)) < len(keys):
        return

    assert applied(edit.file.content(), lines) == edit.expected()


@given(
    content=st.binary() | st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xff", b"\xef\xbb\xbf"])).map(b"".join)
)
def test_any_bytes_come_back_when_no_line_is_changed(content: bytes) -> None:
    text = Text.of(content)

    assert text.with_lines(list(text.lines)) == content


# --- searches ----------------------------------------------------------------------------

LEVELS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)

few_words = st.sampled_from(["a", "b"]) | st.sampled_from(["a", "b", " a", "b "])


class WantedLines(NamedTuple):
    """A chunk that removes lines."""

    context: str | None
    lines: tuple[str, ...]
    at_end: bool

    def as_lines(self) -> list[str]:
        start = "@@" if self.context is None else f"@@ {self.context}"
        return [start, *(f"-{line}" for line in self.lines), *(["*** End of File"] if self.at_end else [])]


def first_place(lines: list[str], run: tuple[str, ...], places: range) -> int | None:
    """Return the position of a sequence of lines, found by trying every position at every matching level."""
    for level in LEVELS:
        for at in places:
            if [level(line) for line in lines[at : at + len(run)]] == [level(line) for line in run]:
                return at
    return None


def removed_plainly(lines: list[str], chunks: list[WantedLines]) -> list[str] | None:
    """Return the remaining lines, computed without the matcher; None if a chunk does not match."""
    left: list[str] = []
    start = copied = 0
    for chunk in chunks:
        if chunk.context is not None:
            at = first_place(lines, (chunk.context,), range(start, len(lines)))
            if at is None:
                return None
            start = at + 1
        end = len(lines) - len(chunk.lines)
        at = first_place(lines, chunk.lines, range(max(start, end) if chunk.at_end else start, end + 1))
        if at is None:
            return None
        left += lines[copied:at]
        copied = start = at + len(chunk.lines)
    return left + lines[copied:]


@given(
    lines=st.lists(few_words, max_size=12),
    chunks=st.lists(
        st.builds(
            WantedLines,
            st.none() | few_words,
            st.lists(few_words, min_size=1, max_size=4).map(tuple),
            st.sampled_from([False, False, True]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_chunks_are_found_where_trying_every_place_finds_them(lines: list[str], chunks: list[WantedLines]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    try:
        left: bytes | None = applied(content, [line for chunk in chunks for line in chunk.as_lines()])
    except PatchNotApplied:
        left = None

    expected = removed_plainly(lines, chunks)
    assert left == (None if expected is None else "".join(f"{line}\n" for line in expected).encode())


# --- mutations ---------------------------------------------------------------------------

VALID = [
    "*** Add File: new/file.txt",
    "+one",
    "+two",
    "*** Update File: src/a.py",
    "@@ def f():",
    "     one()",
    "-    two()",
    "+    three()",
    "@@ def g():",
    "     one()",
    "-    two()",
    "*** Update File: crlf.txt",
    "*** Move to: src/moved.txt",
    "@@",
    " alpha",
    "-beta",
    "+BETA",
    "*** End of File",
    "*** Delete File: gone.txt",
]

FILES = {
    "src/a.py": (b"def f():\n    one()\n    two()\n\ndef g():\n    one()\n    two()\n", 0o755),
    "crlf.txt": (b"\xef\xbb\xbfalpha\r\nbeta", 0o640),
    "gone.txt": (b"\xff\xfe\n", 0o644),
    ".git/config": (b"[core]\n", 0o644),
}

hostile = (
    "*** Add File: gone.txt",
    "*** Add File: link/x",
    "*** Add File: src/a.py/x",
    "*** Delete File: .git/config",
    "*** Update File: ../x",
    "*** Move to: gone.txt",
)
pieces = st.sampled_from([*VALID, *hostile, "*** Begin Patch", "*** End Patch", "", " ", "+", "-", "@@"])
characters = st.sampled_from(list(" +-*@/.\t\r\n\x00x")) | st.characters(exclude_categories=SURROGATES)


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """Generate a valid patch with some lines and characters changed."""
    lines = list(VALID)
    for _ in range(draw(st.integers(min_value=0, max_value=4))):
        at = draw(st.integers(min_value=0, max_value=len(lines)))
        match draw(st.sampled_from(["insert", "delete", "replace", "swap", "double"])):
            case "insert":
                lines.insert(at, draw(pieces))
            case "delete":
                del lines[at : at + draw(st.integers(min_value=1, max_value=3))]
            case "replace":
                lines[at : at + 1] = [draw(pieces)]
            case "swap":
                lines[at : at + 2] = reversed(lines[at : at + 2])
            case _:
                lines[at:at] = lines[at : at + draw(st.integers(min_value=1, max_value=6))]
    text = patch(*lines)
    for _ in range(draw(st.integers(min_value=0, max_value=2))):
        at = draw(st.integers(min_value=0, max_value=len(text)))
        text = text[:at] + draw(st.just("") | characters) + text[at + draw(st.integers(min_value=0, max_value=1)) :]
    return text


@contextmanager
def planted() -> Iterator[Path]:
    """Create a directory with files, a link that leads out of it, and a file outside."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve() / "work"
        (work.parent / "outside").mkdir()
        for name, (content, mode) in FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)
        (work / "link").symlink_to("../outside")
        yield work


def overlaid(before: Tree, changes: dict[str, bytes | None]) -> dict[str, bytes]:
    """Return the expected contents of all files."""
    contents: dict[str, bytes | None] = {
        name: content for name, (mode, content) in before.items() if mode[0] != "d"
    }
    contents |= changes
    return {name: content for name, content in contents.items() if content is not None}


@given(text=mutations())
def test_a_spoiled_patch_applies_exactly_or_changes_nothing(text: str) -> None:
    with planted() as work:
        root = work.parent
        before = tree(root)
        try:
            plan = verify(text, workdir=str(work), cwd=str(root))
            if plan.inside_cwd:  # a mutated path could be absolute, and the patch would then write to this computer
                commit(plan.changes)
        except PatchNotApplied:
            assert tree(root) == before
            return

        wanted: dict[str, bytes | None] = {}
        for change in plan.changes if plan.inside_cwd else ():
            wanted[os.path.relpath(change.path, root)] = None if change.move_to else change.after
            if change.move_to:
                wanted[os.path.relpath(change.move_to, root)] = change.after
        after = tree(root)
        assert overlaid(after, {}) == overlaid(before, wanted)
        assert [name for name, (mode, _) in after.items() if name in before and before[name][0] != mode] == []
        assert "work/.git/config" not in wanted


def test_the_patch_that_is_spoiled_is_a_good_one() -> None:
    with planted() as work:
        commit(verify(patch(*VALID), workdir=str(work), cwd=str(work)).changes)

        assert {name: found for name, found in tree(work).items() if found[0][0] == "-"} == {
            ".git/config": ("-rw-r--r--", b"[core]\n"),
            "new/file.txt": ("-rw-r--r--", b"one\ntwo\n"),
            "src/a.py": ("-rwxr-xr-x", b"def f():\n    one()\n    three()\n\ndef g():\n    one()\n"),
            "src/moved.txt": ("-rw-r-----", b"\xef\xbb\xbfalpha\r\nBETA"),
        }


# --- all kinds of paths ------------------------------------------------------------------

parts = st.sampled_from(["..", ".", "work", "sub", "link", "deep", "f", "missing"])
steps = st.lists(parts, max_size=6)


@pytest.fixture(scope="module")
def maze() -> Iterator[Path]:
    """Generate directories with few names, a file in each, and links between them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name in ("work", "work/sub", "work/sub/deep", "deep", "deep/work", "deep/sub"):
            (root / name).mkdir()
            (root / name / "f").write_text("x\n")
        (root / "work/link").symlink_to(root / "deep/work")
        (root / "work/sub/link").symlink_to("../..")
        (root / "deep/link").symlink_to("../work/sub")
        (root / "link").symlink_to("work")
        yield root


@given(cwd=steps, workdir=steps, path=steps, is_absolute=st.booleans())
def test_a_path_means_what_the_system_means_by_it_or_is_refused(
    maze: Path, cwd: list[str], workdir: list[str], path: list[str], is_absolute: bool
) -> None:
    place, call = "/".join([str(maze), *cwd]), "/".join([str(maze), *cwd, *workdir])
    written = "/".join([str(maze), *path, "f"] if is_absolute else [*path, "f"])
    try:
        (change,) = verify(patch(f"*** Update File: {written}", "-x", "+y"), workdir=call, cwd=place).changes
    except PatchNotApplied:
        meant = Path(call, written)
        is_there = meant.is_file() and meant.resolve().is_relative_to(maze)
        assert "link" in [*cwd, *workdir, *path] or not (os.path.isdir(call) and is_there)
        return

    assert os.path.samefile(change.path, os.path.join(call, written))
    assert change.path == os.path.realpath(change.path)
