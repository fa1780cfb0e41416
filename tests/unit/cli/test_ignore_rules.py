"""The rules of `.gitignore` files."""

from __future__ import annotations

import time

import pytest

from parley.cli.chat.ignore_rules import IgnoreRules


def is_ignored(rules: str, path: str) -> bool | None:
    return IgnoreRules(rules).decide(path.rstrip("/").split("/"), is_directory=path.endswith("/"))


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ("*.log", "a/b/error.log", True),
        ("*.log", "error.txt", None),
        ("build/", "a/build/", True),
        ("build/", "build", None),
        ("/dist", "dist", True),
        ("/dist", "a/dist", None),
        ("docs/out", "docs/out", True),
        ("docs/out", "a/docs/out", None),
        ("docs/**/out", "docs/out", True),
        ("docs/**/out", "docs/a/b/out", True),
        ("**/cache", "a/b/cache/", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a/", None),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("# a comment\n\n", "# a comment", None),
        ("\\#file", "#file", True),
        ("name  ", "name", True),
        ("f?o[0-9]", "fao7", True),
        ("f?o[!0-9]", "fao7", None),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", None),
        ("a\\*b", "a*b", True),
        ("a\\*b", "axb", None),
        ("[z-a]", "z", None),
        ("[", "[", True),
        ("é*", "ete", None),
        ("é*", "étang", True),
    ],
)
def test_a_rule_has_the_meaning_that_git_gives_it(rules: str, path: str, expected: bool | None) -> None:
    assert is_ignored(rules, path) is expected


def test_hostile_patterns_take_little_time() -> None:
    rules = IgnoreRules("\n".join(["*a" * 50 + "b", "a/" + "**/a/" * 50 + "b"]))
    path = ["a"] * 100 + ["a" * 250]
    began = time.process_time()
    assert rules.decide(path, is_directory=False) is None
    assert time.process_time() - began < 5
