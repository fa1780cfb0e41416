"""Patches that a thread with a Landlock restriction writes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.builders.transcript import RecordingTranscript
from kit.builders.trees import Tree, patch, plant, tree
from kit.models.raw_provider import settings
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import LANDLOCK
from parley.ports.commands import SandboxPolicy, WritableRoot
from parley.ports.tools import Action, Granted, ToolContext, Verdict
from parley.sandbox import Sandboxed
from parley.tools.apply_patch import Patches
from parley.tools.commands.executor import Executor
from parley.wire.events import PatchApplyEnd
from parley.wire.ids import CallId

CALL = CallId("c1")
DENIED = "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1, stdout: , "


@pytest.fixture
async def sandboxed() -> AsyncIterator[Sandboxed]:
    commands = Sandboxed(Executor)
    yield commands
    await commands.close()


class Bench:
    """A project in which patches are written under the policy of its own directory."""

    def __init__(self, work: Path, commands: Sandboxed, root: Path) -> None:
        found = os.lstat(root)
        roots = (WritableRoot(path=str(root), device=found.st_dev, inode=found.st_ino),)
        self._policy = SandboxPolicy(writable=roots)
        self.work, self.transcript = work, RecordingTranscript(appended=self._begun)
        self.spoil: Path | None = None
        """A file that another process changes directly after the patch has begun; None if there is none."""
        context = ToolContext(
            settings=settings(cwd=str(work)), transcript=self.transcript, authorize=self._authorize
        )
        self.patches = Patches(context, commands)

    async def _authorize(self, action: Action) -> Verdict:
        return Granted(policy=self._policy)

    def _begun(self) -> None:
        if self.spoil is not None:
            self.spoil.write_bytes(b"another user's\n")

    async def apply(self, *lines: str) -> str:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.patches.apply(CALL, patch(*lines), workdir=str(self.work))


ALL = (
    *("*** Add File: sub/new.txt", "+new"),
    *("*** Update File: old.txt", "*** Move to: moved.txt", "-alpha", "+ALPHA"),
    *("*** Update File: run", "-true", "+false"),
    "*** Delete File: gone.txt",
)


def planted(work: Path) -> Tree:
    work.mkdir()
    plant(work, old__txt="alpha\nbeta\n", gone__txt="x\n", run="true\n")
    (work / "run").chmod(0o751)
    return tree(work)


def bench_in(tmp_path: Path, commands: Sandboxed) -> Bench:
    return Bench(tmp_path / "work", commands, root=tmp_path / "work")


@LANDLOCK
async def test_a_patch_is_written_whole_under_its_policy(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed)

    output = json.loads(await bench.apply(*ALL))

    assert (
        output["output"] == "Success. Updated the following files:\nA sub/new.txt\nM moved.txt\nM run\nD gone.txt\n"
    )
    assert tree(tmp_path / "work") == {
        "sub": ("drwxr-xr-x", b""),
        "sub/new.txt": ("-rw-r--r--", b"new\n"),
        "moved.txt": ("-rw-r--r--", b"ALPHA\nbeta\n"),
        "run": ("-rwxr-x--x", b"false\n"),
    }


@LANDLOCK
async def test_the_system_itself_enforces_the_policy_of_a_patch(tmp_path: Path, sandboxed: Sandboxed) -> None:
    before = planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed)

    output = await bench.apply(*ALL, "*** Add File: ../outside.txt", "+x")

    assert output.startswith(f"{DENIED}stderr: Failed to write file ../outside.txt: ")
    assert tree(tmp_path) == {
        "work": ("drwxr-xr-x", b""),
        **{f"work/{name}": file for name, file in before.items()},
    }
    assert isinstance(end := bench.transcript.payloads[-1], PatchApplyEnd)
    assert (end.success, end.stdout) == (False, "")


@LANDLOCK
async def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path, sandboxed: Sandboxed) -> None:
    before = planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed)
    bench.spoil = tmp_path / "work" / "run"

    output = await bench.apply(*ALL)

    assert output.startswith(f"{DENIED}stderr: ")
    assert tree(tmp_path / "work") == {**before, "run": ("-rwxr-x--x", b"another user's\n")}


@LANDLOCK
async def test_the_thread_that_writes_is_confined_and_no_other(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed)

    await bench.apply(*ALL)
    (tmp_path / "outside.txt").write_text("mine\n")
    await asyncio.to_thread((tmp_path / "also outside.txt").write_text, "mine\n")

    assert {name for name in tree(tmp_path) if "/" not in name} == {"also outside.txt", "outside.txt", "work"}
