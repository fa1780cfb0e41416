"""A command that a person approved starts in the approved directory, with the approved program, or not at all."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from kit.system.commands import PATH, TIMEOUT_SECONDS
from kit.system.swapped_files import swapped
from parley.errors import CommandNotStarted
from parley.ports.commands import Approved, LaunchSpec
from parley.tools.command_target import CommandTarget
from parley.tools.commands.executor import Executor
from parley.tools.errors import CommandReplaced
from parley.wire.events import OutputStream

STARTS: Final = 30


def ignored(stream: OutputStream, data: bytes) -> None:
    pass


def start(cwd: Path, approved: Approved, *argv: str, path: str = PATH) -> LaunchSpec:
    return LaunchSpec(
        argv=argv, cwd=str(cwd), env={"PATH": path}, timeout_seconds=TIMEOUT_SECONDS, approved=approved
    )


def target(cwd: Path, *argv: str, path: str = PATH) -> CommandTarget:
    return CommandTarget(argv, str(cwd), path)


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_the_approved_command_runs(executor: Executor, tmp_path: Path) -> None:
    program(tmp_path / "bin/tool", "touch ran")
    path = f"relative::{tmp_path}/bin:{PATH}"
    for number, word in enumerate(("tool", f"{tmp_path}/bin/tool", "../bin/tool")):
        work = tmp_path / str(number)
        work.mkdir()
        with target(work, word, path=path) as its:
            ended = await executor.start(start(work, its.approved, word, path=path), output=ignored)

        assert (ended.exit_code, its.change()) == (0, None)
        assert (work / "ran").exists()


async def test_another_directory_of_that_name_is_refused(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with target(tmp_path / "work", "touch", "ran") as its:
        (tmp_path / "work").rmdir()
        (tmp_path / "work").mkdir()  # the new directory would have the same inode if the old one were not held open

        with pytest.raises(CommandReplaced) as refused:
            await executor.start(start(tmp_path / "work", its.approved, "touch", "ran"), output=ignored)

    assert (refused.value.changed, its.change()) == ("directory", "directory")
    assert os.listdir(tmp_path / "work") == []


async def test_another_program_of_that_name_is_refused(executor: Executor, tmp_path: Path) -> None:
    program(tmp_path / "bin/tool", "touch good")
    path = f"{tmp_path}/first:{tmp_path}/bin"
    with target(tmp_path, "tool", path=path) as its:
        program(tmp_path / "first/tool", "touch evil")

        with pytest.raises(CommandReplaced) as refused:
            await executor.start(start(tmp_path, its.approved, "tool", path=path), output=ignored)

    assert (refused.value.changed, its.change()) == ("program", "program")
    assert not (tmp_path / "evil").exists()


async def test_a_program_that_did_not_exist_is_not_covered_by_the_approval(
    executor: Executor, tmp_path: Path
) -> None:
    with target(tmp_path, "./tool") as its:
        with pytest.raises(CommandNotStarted, match="No such file") as missing:
            await executor.start(start(tmp_path, its.approved, "./tool"), output=ignored)
        program(tmp_path / "tool", "touch evil")
        with pytest.raises(CommandReplaced):
            await executor.start(start(tmp_path, its.approved, "./tool"), output=ignored)

    assert not isinstance(missing.value, CommandReplaced)
    assert not (tmp_path / "evil").exists()


async def test_a_program_that_may_not_be_run_is_passed_over(executor: Executor, tmp_path: Path) -> None:
    program(tmp_path / "first/tool", "touch evil")
    (tmp_path / "first/tool").chmod(0o644)
    program(tmp_path / "bin/tool", "touch good")
    path = f"{tmp_path}/first:{tmp_path}/bin:{PATH}"
    with target(tmp_path, "tool", path=path) as its:
        ended = await executor.start(start(tmp_path, its.approved, "tool", path=path), output=ignored)

    assert (ended.exit_code, (tmp_path / "good").exists()) == (0, True)


async def test_a_directory_that_is_swapped_all_the_time_is_never_another_one(
    executor: Executor, tmp_path: Path
) -> None:
    for name in ("approved", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / f"to-{name}").symlink_to(name)
    work, came = tmp_path / "work", Counter[str]()
    work.symlink_to("approved")
    with target(tmp_path / "approved", "sh") as its:
        async with swapped(work, tmp_path / "to-approved", tmp_path / "to-other"):
            for _ in range(STARTS):
                try:
                    await executor.start(start(work, its.approved, "sh", "-c", "echo >> ran"), output=ignored)
                    came["ran"] += 1
                except CommandReplaced as refused:
                    came[refused.changed] += 1

    assert not (tmp_path / "other/ran").exists()
    ran = (tmp_path / "approved/ran").read_bytes().count(b"\n") if came["ran"] else 0
    assert came == Counter(ran=ran, directory=STARTS - ran) or came.total() == STARTS == ran
