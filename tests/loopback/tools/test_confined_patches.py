"""Patches written within bounds, for real: by a thread, or by a process where no thread can be confined."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.builders.records import call
from kit.builders.transcript import RecordingTranscript
from kit.builders.trees import Tree, patch, plant, tree
from kit.models.raw_provider import settings
from kit.system.needs import BUBBLEWRAP, LANDLOCK, SANDBOX
from parley.config.types import Mechanism
from parley.ports.commands import Bounds, Command, Ended, Output, Root
from parley.ports.tools import Action, Desk, Granted, Verdict
from parley.sandbox import Sandboxed
from parley.tools.apply_patch import Patches
from parley.tools.commands.executor import Executor
from parley.tools.patch.threads import all_written
from parley.wire.events import PatchApplyEnd
from parley.wire.ids import CallId

PATIENCE_SECONDS = 20
CALL = CallId("c1")
DENIED = "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1, stdout: , "


class ByProcess:
    """Commands as they are, on a system that can confine no thread."""

    def __init__(self, commands: Sandboxed) -> None:
        self._commands = commands
        self.asked = asyncio.Event()
        self.ended: list[Ended] = []

    async def run(self, command: Command, *, output: Output) -> Ended:
        self.asked.set()
        ended = await self._commands.run(command, output=output)
        self.ended.append(ended)
        return ended

    async def why_unconfined(self, bounds: Bounds) -> str | None:
        return await self._commands.why_unconfined(bounds)

    def confine_thread(self, bounds: Bounds) -> bool:
        return False


@pytest.fixture
async def sandboxed() -> AsyncIterator[Sandboxed]:
    commands = Sandboxed(Executor)
    yield commands
    await commands.close()


class Bench:
    """A project in which patches are written within the bounds that its own directory makes."""

    def __init__(self, work: Path, commands: Sandboxed | ByProcess, *, mechanism: Mechanism, root: Path) -> None:
        found = os.lstat(root)
        roots = (Root(path=str(root), device=found.st_dev, inode=found.st_ino),)
        self._bounds = Bounds(writable=roots, mechanism=mechanism)
        self.work, self.notebook = work, RecordingTranscript(appended=self._begun)
        self.spoil: Path | None = None
        """A file that somebody else changes as soon as the patch has begun."""
        desk = Desk(settings=settings(cwd=str(work)), transcript=self.notebook, permit=self._permit)
        self.patches = Patches(desk, commands)

    async def _permit(self, action: Action) -> Verdict:
        return Granted(bounds=self._bounds)

    def _begun(self) -> None:
        if self.spoil is not None:
            self.spoil.write_bytes(b"somebody else's\n")

    async def apply(self, *lines: str) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.patches.apply(CALL, patch(*lines), workdir=str(self.work))


WAYS = [
    pytest.param("landlock", False, marks=LANDLOCK, id="thread"),
    pytest.param("bubblewrap", True, marks=BUBBLEWRAP, id="process-bubblewrap"),
    pytest.param("landlock", True, marks=LANDLOCK, id="process-landlock"),
]

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


def bench_in(tmp_path: Path, commands: Sandboxed, mechanism: Mechanism, *, by_process: bool) -> Bench:
    work = tmp_path / "work"
    return Bench(work, ByProcess(commands) if by_process else commands, mechanism=mechanism, root=work)


@pytest.mark.parametrize(("mechanism", "by_process"), WAYS)
async def test_a_patch_is_written_whole_within_its_bounds(
    tmp_path: Path, sandboxed: Sandboxed, mechanism: Mechanism, by_process: bool
) -> None:
    planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed, mechanism, by_process=by_process)

    told = json.loads(await bench.apply(*ALL))

    assert (
        told["output"] == "Success. Updated the following files:\nA sub/new.txt\nM moved.txt\nM run\nD gone.txt\n"
    )
    assert tree(tmp_path / "work") == {
        "sub": ("drwxr-xr-x", b""),
        "sub/new.txt": ("-rw-r--r--", b"new\n"),
        "moved.txt": ("-rw-r--r--", b"ALPHA\nbeta\n"),
        "run": ("-rwxr-x--x", b"false\n"),
    }


@pytest.mark.parametrize(("mechanism", "by_process"), WAYS)
async def test_the_system_itself_keeps_a_patch_within_its_bounds(
    tmp_path: Path, sandboxed: Sandboxed, mechanism: Mechanism, by_process: bool
) -> None:
    before = planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed, mechanism, by_process=by_process)

    told = await bench.apply(*ALL, "*** Add File: ../outside.txt", "+x")

    assert told.startswith(f"{DENIED}stderr: Failed to write file ../outside.txt: ")
    assert tree(tmp_path) == {
        "work": ("drwxr-xr-x", b""),
        **{f"work/{name}": file for name, file in before.items()},
    }
    assert isinstance(end := bench.notebook.happened[-1], PatchApplyEnd)
    assert (end.success, end.stdout) == (False, "")


@pytest.mark.parametrize(("mechanism", "by_process"), WAYS)
async def test_a_file_that_somebody_else_changes_meanwhile_is_left_alone(
    tmp_path: Path, sandboxed: Sandboxed, mechanism: Mechanism, by_process: bool
) -> None:
    before = planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed, mechanism, by_process=by_process)
    bench.spoil = tmp_path / "work" / "run"

    told = await bench.apply(*ALL)

    assert told.startswith(f"{DENIED}stderr: ")
    assert tree(tmp_path / "work") == {**before, "run": ("-rwxr-x--x", b"somebody else's\n")}


@SANDBOX
async def test_the_thread_that_writes_is_confined_and_no_other(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed, "auto", by_process=False)

    await bench.apply(*ALL)
    (tmp_path / "outside.txt").write_text("mine\n")
    await asyncio.to_thread((tmp_path / "also outside.txt").write_text, "mine\n")

    assert {name for name in tree(tmp_path) if "/" not in name} == {"also outside.txt", "outside.txt", "work"}


@SANDBOX
async def test_cancelling_waits_for_the_process_that_writes(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    bench = bench_in(tmp_path, sandboxed, "auto", by_process=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        applying = asyncio.create_task(bench.patches.run(call(CALL, json.dumps({"input": patch(*ALL)}))))
        await bench.notebook.until(1)
        applying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await applying

    assert isinstance(end := bench.notebook.happened[-2], PatchApplyEnd)
    assert end.success
    assert (tmp_path / "work" / "moved.txt").read_bytes() == b"ALPHA\nbeta\n"


@SANDBOX
@pytest.mark.promises("patch.whole")
async def test_an_ending_server_lets_the_process_finish_that_writes(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    commands = ByProcess(sandboxed)
    bench = Bench(tmp_path / "work", commands, mechanism="auto", root=tmp_path / "work")
    async with asyncio.timeout(PATIENCE_SECONDS):
        applying = asyncio.create_task(bench.apply(*ALL))
        await commands.asked.wait()

        await all_written()
        await sandboxed.close()

        assert json.loads(await applying)["metadata"]["exit_code"] == 0
        assert (tmp_path / "work" / "moved.txt").read_bytes() == b"ALPHA\nbeta\n"


@SANDBOX
async def test_two_processes_do_not_write_to_the_same_files_at_once(tmp_path: Path, sandboxed: Sandboxed) -> None:
    planted(tmp_path / "work")
    benches = [bench_in(tmp_path, sandboxed, "auto", by_process=True) for _ in range(2)]
    first = [
        bench.patches.apply(CALL, patch("*** Add File: a", "+x"), workdir=str(bench.work)) for bench in benches
    ]
    async with asyncio.timeout(PATIENCE_SECONDS):
        told = sorted(await asyncio.gather(*first))

    assert [one[:9] for one in told] == ["failed in", '{"output"']
    assert "Failed to write file a" in told[0] or "File already exists" in told[0]
