"""The hunks are the same as Git's hunks, and Git can apply all of them, even for difficult files."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.builders.diffs import changed_lines, distinct
from kit.system.git import git
from parley.tools.patch.diffs import STEPS, Effort, unified_diff

OVERDRAWN = 10_000
"""The maximum number of steps by which a round in progress may exceed the remaining effort."""

CODE = tuple(
    line.encode() + b"\n"
    for line in (
        *(
            "",
            "",
            "",
            "",
            "}",
            "}",
            "    }",
            "        }",
            "    return None",
            "    else:",
            "    pass",
            "try:",
            "finally:",
        ),
        *(f"def function_{number}() -> None:" for number in range(12)),
        *(f"    value_{number} = compute({number})" for number in range(40)),
        *(f"    # a word about {number}" for number in range(12)),
    )
)


Kind = Callable[[random.Random], tuple[bytes, bytes]]
"""A function that creates the two versions of a file."""


def written(chance: random.Random) -> list[bytes]:
    return [chance.choice(CODE) for _ in range(chance.randrange(400))]


def edited(chance: random.Random, lines: list[bytes]) -> list[bytes]:
    """Return the lines after some typical edits."""
    lines = list(lines)
    for _ in range(chance.randint(1, 8)):
        at, size = chance.randrange(len(lines) + 1), chance.randint(1, 7)
        match chance.randrange(6):
            case 0:
                del lines[at : at + size]
            case 1:
                lines[at:at] = [chance.choice(CODE) for _ in range(size)]
            case 2:
                lines[at : at + size] = [line.upper() for line in lines[at : at + size]]
            case 3:
                lines[at:at] = lines[max(at - size, 0) : at]
            case 4:
                lines[at:at] = [b"new line %d\n" % chance.randrange(1000)]
            case _:
                block = lines[at : at + size]
                del lines[at : at + size]
                there = chance.randrange(len(lines) + 1)
                lines[there:there] = block
    return lines


def few_words(chance: random.Random) -> list[bytes]:
    words = chance.choice((2, 3, 5, 20))
    return [b"%d\n" % chance.randrange(words) for _ in range(chance.randrange(40))]


def without_newline(chance: random.Random, text: bytes) -> bytes:
    return text[:-1] if chance.random() < 0.2 else text


def realistic(chance: random.Random) -> tuple[bytes, bytes]:
    lines = written(chance)
    before, after = b"".join(lines), b"".join(edited(chance, lines))
    return without_newline(chance, before), without_newline(chance, after)


def unrelated(chance: random.Random) -> tuple[bytes, bytes]:
    before, after = b"".join(few_words(chance)), b"".join(few_words(chance))
    return without_newline(chance, before), without_newline(chance, after)


def many(kind: Kind, *, seed: int) -> list[tuple[bytes, bytes]]:
    chance = random.Random(seed)
    return [(before, after) for before, after in (kind(chance) for _ in range(250)) if before != after]


def write_all(pairs: list[tuple[bytes, bytes]], folder: Path) -> None:
    for side in ("a", "b"):
        (folder / side).mkdir()
    for number, pair in enumerate(pairs):
        for side, text in zip(("a", "b"), pair, strict=True):
            (folder / side / f"{number:04}").write_bytes(text)


def hunks_of(diff: str) -> Iterator[tuple[int, str]]:
    """Return git's hunks of each file, by its number, without file headers and function names."""
    for section in re.split(r"(?m)^diff --git ", diff)[1:]:
        number = int(re.match(r"a/(?:[ab]/)?(\d+)", section)[1])  # type: ignore[index]  # git's own words
        start = section.find("\n@@ ") + 1
        yield number, re.sub(r"(?m)^(@@ [^@]*@@).*$", r"\1", section[start:])


def both_diffs(pairs: list[tuple[bytes, bytes]], folder: Path, *, context: int) -> list[tuple[str, str]]:
    """Return Parley's hunks and Git's hunks."""
    write_all(pairs, folder)
    diff = git("diff", "--no-index", f"-U{context}", "--text", "a", "b", cwd=folder, status=1)
    gits = dict(hunks_of(diff.decode()))
    return [(unified_diff(*pair, context=context), gits[number]) for number, pair in enumerate(pairs)]


@pytest.mark.parametrize("context", [3, pytest.param(1, marks=pytest.mark.long)])
def test_edits_such_as_people_make_read_as_in_git(context: int, tmp_path: Path) -> None:
    diffs = both_diffs(many(realistic, seed=context), tmp_path, context=context)

    assert [ours for ours, _ in diffs] == [gits for _, gits in diffs]


def test_unrelated_texts_of_few_words_have_no_longer_diffs_than_in_git(tmp_path: Path) -> None:
    """Git skips frequent lines, and therefore sometimes does not find the shortest diff."""
    diffs = both_diffs(many(unrelated, seed=1), tmp_path, context=3)

    assert [ours for ours, gits in diffs if changed_lines(ours) > changed_lines(gits)] == []
    assert sum(ours == gits for ours, gits in diffs) > 0.8 * len(diffs)


@pytest.mark.parametrize("kind", [realistic, unrelated])
def test_git_applies_every_diff(kind: Kind, tmp_path: Path) -> None:
    pairs = many(kind, seed=7)
    write_all(pairs, tmp_path)

    diff = "".join(
        f"--- a/{number:04}\n+++ b/{number:04}\n" + unified_diff(*pair, context=3)
        for number, pair in enumerate(pairs)
    )
    (tmp_path / "diff").write_text(diff, newline="")
    git("apply", "--whitespace=nowarn", "--unsafe-paths", "../diff", cwd=tmp_path / "a")

    applied = [(tmp_path / "a" / f"{number:04}").read_bytes() for number in range(len(pairs))]
    assert applied == [after for _, after in pairs]


# --- bounded ---------------------------------------------------------------------------------


def shuffled() -> list[bytes]:
    lines = distinct()
    random.Random(1).shuffle(lines)
    return lines


def drawn(*, words: int, seed: int) -> list[bytes]:
    return random.Random(seed).choices(distinct(words), k=200_000)


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(lambda: (distinct(), [b"new " + line for line in distinct()]), id="nothing in common"),
        pytest.param(lambda: (distinct(), shuffled()), id="shuffled", marks=pytest.mark.long),
        pytest.param(lambda: (distinct(), distinct()[::-1]), id="reversed", marks=pytest.mark.long),
        pytest.param(
            lambda: (distinct(), distinct()[100_000:] + distinct(100_000)),
            id="halves swapped",
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda: (drawn(words=2, seed=1), drawn(words=2, seed=2)), id="two words", marks=pytest.mark.long
        ),
        pytest.param(
            lambda: (drawn(words=500, seed=1), drawn(words=500, seed=2)),
            id="five hundred words",
            marks=pytest.mark.long,
        ),
        pytest.param(lambda: (distinct(7) * 5_600, distinct(8) * 5_000), id="periods of seven and eight"),
        pytest.param(
            lambda: (distinct(1) * 200_000, (distinct(1) * 99 + distinct(2)[1:]) * 2_000),
            id="slides everywhere",
            marks=pytest.mark.long,
        ),
    ],
)
def test_files_made_to_be_hard_cost_no_more_than_they_may(
    texts: Callable[[], tuple[list[bytes], list[bytes]]], tmp_path: Path
) -> None:
    before, after = (b"".join(lines) for lines in texts())
    effort = Effort()

    diff = unified_diff(before, after, context=3, effort=effort)

    assert -OVERDRAWN < effort.left < STEPS
    (tmp_path / "file").write_bytes(before)
    (tmp_path / "diff").write_text("--- a/file\n+++ b/file\n" + diff, newline="")
    git("apply", "--whitespace=nowarn", "diff", cwd=tmp_path)
    assert (tmp_path / "file").read_bytes() == after
