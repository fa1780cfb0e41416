"""Commands that are classified as safe run without a sandbox, and change nothing."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from parley.agent.safe import is_safe
from parley.ports.tools import RunCommand
from parley.wire.ids import CallId

SEARCH_PATH: Final = "/usr/bin:/bin"
COMMAND_SECONDS: Final = 90

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "cat": ("-n", "-A", "--show-all", "-o", "--output=new"),
    "cd": ("-P", "-e"),
    "echo": ("-n", "-e", ">new"),
    "find": (
        *(
            ".",
            "-name",
            "*.txt",
            "-type",
            "f",
            "-o",
            "-print",
            "-print0",
            "-ls",
            "-printf",
            "%p",
            "-mtime",
            "-7",
            "(",
            ")",
        ),
        *(
            "-delete",
            "-exec",
            "rm",
            "{}",
            ";",
            "+",
            "-execdir",
            "-ok",
            "-fprint",
            "-fprintf",
            "-fls",
            "-prune",
            "-depth",
        ),
    ),
    "git": (
        *(
            "status",
            "log",
            "diff",
            "show",
            "branch",
            "--no-pager",
            "-c",
            "-C",
            "--output=new",
            "--output",
            "-o",
            "new",
        ),
        *(
            "-p",
            "--stat",
            "--format=%G?",
            "--format=%h",
            "--show-signature",
            "--ext-diff",
            "--textconv",
            "HEAD",
            "--",
        ),
        *(
            "-d",
            "-D",
            "-m",
            "-M",
            "-f",
            "-a",
            "-v",
            "-vv",
            "--list",
            "--contains",
            "--sort",
            "-n",
            "1",
            "-1",
            "-s",
            "-u",
        ),
        *(
            "commit",
            "add",
            "-A",
            "config",
            "a.b",
            "stash",
            "checkout",
            "gc",
            "tag",
            "main",
            "-l",
            "-t",
            "--edit-description",
        ),
    ),
    "grep": ("-r", "-n", "a", "-f", "--file=a.txt", "-e", "-A", "3", "--color=always", "-c", "-z", "-P"),
    "head": ("-n", "1", "-c", "-3", "-q"),
    "ls": ("-la", "-R", "--color=always", "-I", "x", "--sort", "size", "-D"),
    "nl": ("-ba", "-w", "3", "-s", ":"),
    "pwd": ("-L", "-P"),
    "sed": ("-n", "1p", "1,2p", "$p", "1p;2,$p", "1p;w new", "-i", "w new", "1w new", "1e touch new", "-e", "-n1p"),
    "tail": ("-n", "1", "+2", "-c", "-3", "-f", "-F", "+1f", "+f"),
    "wc": ("-l", "-c", "--files0-from=a.txt"),
    "which": ("-a", "ls", "git"),
}
FILES: Final = ("a.txt", "b.txt", "deep", "new", ".")
OPERATORS: Final = (" && ", " | ", "; ", " || ", "\n", " 2>/dev/null | ", " 2>&1; ", " >/dev/null && ", " >new; ")


def argv(chance: random.Random) -> tuple[str, ...]:
    program = chance.choice(list(WORDS))
    words = (chance.choice(WORDS[program] if chance.random() < 0.8 else FILES) for _ in range(chance.randrange(6)))
    return (program, *words)


def command(chance: random.Random) -> tuple[str, ...]:
    if chance.random() < 0.7:
        return argv(chance)
    script = shlex.join(argv(chance))
    for _ in range(chance.randrange(3)):
        script += chance.choice(OPERATORS) + shlex.join(argv(chance))
    return ("bash", "-c", script)


def safe_commands(seed: int, wanted: int) -> Iterator[tuple[str, ...]]:
    chance = random.Random(seed)
    found = set[tuple[str, ...]]()
    while len(found) < wanted:
        words = command(chance)
        action = RunCommand(call_id=CallId("call"), argv=words, cwd="/project", search_path=SEARCH_PATH)
        if words not in found and is_safe(action, ["/project"]):
            found.add(words)
            yield words


class Project:
    """A repository that configures programs for everything that git may run, and records whether they run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._env = folder / "project", {"PATH": SEARCH_PATH, "HOME": str(folder), "LC_ALL": "C.UTF-8"}
        self.record = folder / "record"
        recorder = folder / "recorder"
        recorder.write_text(f'#!/bin/sh\necho "$@" >>{self.record}\n')
        recorder.chmod(0o755)
        (self.folder / "deep").mkdir(parents=True)
        for name in ("a.txt", "b.txt", "deep/c.txt"):
            (self.folder / name).write_text("a\nb\nc\n")
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=false")
        self.run("git", "init", "--quiet", "--initial-branch=main")
        self.run("git", *identity, "add", ".")
        self.run("git", *identity, "commit", "--quiet", "--message=first")
        for key in ("core.pager", "core.editor", "core.sshCommand", "gpg.program", "alias.status", "pager.log"):
            self.run("git", "config", key, str(recorder))
        (self.folder / "a.txt").write_text("a\nchanged\n")
        self._env["GIT_OPTIONAL_LOCKS"] = "0"

    def run(self, *words: str) -> int:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return done.returncode

    def state(self) -> dict[str, tuple[int, int, bytes]]:
        """Return everything that a command could have changed, and the recorded runs."""
        files = [Path(folder, name) for folder, _, names in os.walk(self.folder.parent) for name in names]
        return {str(path): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def changing(folder: Path, seed: int, wanted: int) -> list[tuple[str, ...]]:
    project = Project(folder)
    before = project.state()
    for words in safe_commands(seed, wanted):
        # `cd` is a builtin of the shell, and a system need not have a program of this name
        if words[0] != "cd":
            project.run(*words)
        if project.state() != before:
            return [words]
    return []


def test_safe_commands_change_nothing(tmp_path: Path) -> None:
    assert changing(tmp_path, seed=4, wanted=100) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_thousand_safe_commands_change_nothing(tmp_path: Path, seed: int) -> None:
    assert changing(tmp_path, seed=seed, wanted=1_000) == []


def test_a_change_would_be_seen(tmp_path: Path) -> None:
    project = Project(tmp_path)
    before = project.state()

    project.run("git", "branch", "new")

    assert project.state() != before
