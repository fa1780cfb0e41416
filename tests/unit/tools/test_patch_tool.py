"""One patch of the model: its arguments, its events in order, and the output for the model."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kit.builders.records import call, command_output
from kit.builders.transcript import Appended, OutputShown, RecordingTranscript
from kit.builders.trees import patch, plant, tree
from kit.models.raw_provider import settings
from kit.system.commands import TIMEOUT_SECONDS
from parley.config.types import Sandbox
from parley.conversation.records import CommandOutput
from parley.errors import SandboxUnavailable
from parley.ports.commands import Command, CommandResult, Output, SandboxPolicy, WritableRoot
from parley.ports.tools import Action, ApplyPatch, Granted, RejectedByPolicy, RejectedByUser, ToolContext, Verdict
from parley.tools.apply_patch import Patches
from parley.tools.patch.commit import System, commit
from parley.tools.patch.limits import MAX_DIFF_BYTES
from parley.tools.patch.parser import parse
from parley.tools.patch.plan import verify
from parley.tools.patch.turndiff import TouchedFiles
from parley.tools.truncation import MAX_BYTES
from parley.wire.events import (
    AddedFile,
    BackgroundEvent,
    FileChange,
    OtherChange,
    PatchApplyBegin,
    PatchApplyEnd,
    PatchRefused,
    TurnDiff,
    UpdatedFile,
)
from parley.wire.ids import CallId

CALL = CallId("c1")
GRANTED = Granted()
POLICY = SandboxPolicy(writable=(WritableRoot(path="/project", device=1, inode=2),))
CONFINED = Granted(policy=POLICY)
SANDBOX = "MacosSeatbelt" if sys.platform == "darwin" else "LinuxSeccomp"


class Files(NamedTuple):
    """All files directly after an append."""

    found: dict[str, bytes]


class Confined(NamedTuple):
    """A record that the thread of this name was confined with this policy."""

    thread: str
    policy: SandboxPolicy


class Sandboxes:
    """A command runner that confines a thread. It succeeds, fails, or does not support this (`has_landlock`)."""

    def __init__(self, *, has_landlock: bool = True, fails: SandboxUnavailable | None = None) -> None:
        self.did: list[object] = []
        self._has_landlock, self._fails = has_landlock, fails

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        raise AssertionError("a patch runs no command")

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        raise AssertionError("others ask that")

    async def unrestored(self, policy: SandboxPolicy) -> tuple[str, ...]:
        return ()

    def confine_thread(self, policy: SandboxPolicy) -> bool:
        self.did.append(Confined(threading.current_thread().name, policy))
        if self._fails is not None:
            raise self._fails
        return self._has_landlock


class Bench:
    """The fakes around the tool, with one list of all calls in order."""

    def __init__(
        self,
        work: Path,
        *verdicts: Verdict,
        touched: TouchedFiles | None = None,
        commands: Sandboxes | None = None,
        **changes: Any,
    ) -> None:
        self.work, self._verdicts = work, list(verdicts)
        self.transcript = RecordingTranscript(appended=self._look)
        self.did = self.transcript.did
        self.covered: list[str] = []
        """The `covers` of each approval request."""
        self.spoil: Path | None = None
        """A file that another process changes directly after the patch has begun; None if there is none."""
        self.spoil_with = b"another user's\n"
        self.asked_again: Callable[[], object] = lambda: None
        """A function that is called at the second approval request."""
        commands = commands or Sandboxes()
        commands.did = self.did
        context = ToolContext(
            settings=settings(cwd=str(work), **changes), transcript=self.transcript, authorize=self._authorize
        )
        self.patches = Patches(context, commands, touched)

    async def apply(self, *lines: str, workdir: Path | None = None) -> str:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = await self.patches.apply(CALL, patch(*lines), workdir=str(workdir or self.work))
        return without_seconds(output)

    async def call(self, arguments: str, name: str = "apply_patch") -> str:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return without_seconds(await self.patches.run(call(CALL, arguments, name=name)))

    async def _authorize(self, action: Action) -> Verdict:
        assert isinstance(action, ApplyPatch)
        if self.covered:
            self.asked_again()
        self.covered.append(action.covers)
        self.did.append(msgspec.structs.replace(action, covers=""))
        return self._verdicts.pop(0) if self._verdicts else GRANTED

    def _look(self) -> None:
        self.did.append(Files(self.files()))
        if self.spoil is not None:
            self.spoil.write_bytes(self.spoil_with)
            self.spoil = None

    def files(self) -> dict[str, bytes]:
        return {name: content for name, (mode, content) in tree(self.work).items() if mode.startswith("-")}


def stored_output(shown: OutputShown, *, item: str = "i1") -> CommandOutput:
    return command_output(CALL, shown.data, stream=shown.stream, item=item)


def without_seconds(output: str) -> str:
    """Return the event without its duration."""
    try:
        answer = json.loads(output)
    except ValueError:
        return output
    assert answer["metadata"].pop("duration_seconds") >= 0
    return json.dumps(answer)


def ran(output: str, exit_code: int) -> str:
    return json.dumps({"output": output, "metadata": {"exit_code": exit_code}})


def refused(message: str) -> Appended:
    return Appended((PatchRefused(call_id=CALL, message=message),))


def rejection(verdict: Verdict) -> list[Appended]:
    """Return the events of a rejected patch. The event `approval_settled` reports the rejection by a person."""
    return [refused(verdict.why)] if isinstance(verdict, RejectedByPolicy) else []


def blob(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    plant(tmp_path, old__txt="alpha\nbeta\n")
    return tmp_path


# --- events ------------------------------------------------------------------------------

UPDATE = ("*** Update File: old.txt", "-alpha", "+ALPHA")
DIFF = "@@ -1,2 +1,2 @@\n-alpha\n+ALPHA\n beta\n"


def updated(work: Path) -> dict[str, FileChange]:
    return {f"{work}/old.txt": OtherChange(update=UpdatedFile(unified_diff=DIFF, move_path=None))}


def action(work: Path) -> ApplyPatch:
    return ApplyPatch(call_id=CALL, changes=updated(work), paths=(f"{work}/old.txt",), inside_cwd=True)


@pytest.mark.parametrize("by_person", [False, True])
async def test_a_patch_is_verified_permitted_announced_written_and_shown(work: Path, by_person: bool) -> None:
    bench = Bench(work, Granted(by_person=by_person))

    output = await bench.apply(*UPDATE)

    said = "Success. Updated the following files:\nM old.txt\n"
    shown = OutputShown(CALL, "stdout", said.encode())
    before, after = b"alpha\nbeta\n", b"ALPHA\nbeta\n"
    whole = (
        f"diff --git a/{work}/old.txt b/{work}/old.txt\nindex {blob(before)}..{blob(after)}\n"
        f"--- a/{work}/old.txt\n+++ b/{work}/old.txt\n{DIFF}"
    )
    begin = PatchApplyBegin(call_id=CALL, auto_approved=not by_person, changes=updated(work))
    end = PatchApplyEnd(call_id=CALL, stdout=said, stderr="", success=True)
    assert output == ran(said, 0)
    assert bench.did == [
        action(work),
        Appended((begin,)),
        Files({"old.txt": before}),
        shown,
        Appended((stored_output(shown), end, TurnDiff(unified_diff=whole))),
        Files({"old.txt": after}),
    ]


async def test_the_diff_of_a_turn_goes_over_all_its_patches(work: Path) -> None:
    bench = Bench(work)
    await bench.apply(*UPDATE)

    await bench.apply("*** Update File: old.txt", "-beta", "+BETA")

    assert isinstance(diff := bench.transcript.payloads[-1], TurnDiff)
    assert diff.unified_diff.endswith("@@ -1,2 +1,2 @@\n-alpha\n-beta\n+ALPHA\n+BETA\n")


async def test_a_moved_file_is_shown_once_with_both_names(work: Path) -> None:
    bench = Bench(work)

    output = await bench.apply("*** Update File: old.txt", "*** Move to: new.txt", "-alpha", "+ALPHA")

    assert isinstance(diff := bench.transcript.payloads[-1], TurnDiff)
    assert output == ran("Success. Updated the following files:\nM new.txt\n", 0)
    assert diff.unified_diff.splitlines()[0] == f"diff --git a/{work}/old.txt b/{work}/new.txt"


def added(path: Path, content: bytes, *, hunk: str) -> str:
    """Return the diff of a new file."""
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex {'0' * 40}..{blob(content)}\n"
        f"--- /dev/null\n+++ b/{path}\n{hunk}"
    )


async def test_files_beyond_the_size_of_the_diff_are_shown_like_binary_files(work: Path) -> None:
    bench = Bench(work)
    line, count = "x" * 99, 6000
    large = f"{line}\n".encode() * count

    for name in ("a", "b"):
        await bench.apply(f"*** Add File: {name}", *[f"+{line}"] * count)
    await bench.apply("*** Add File: c", "+c")

    shown = f"@@ -0,0 +1,{count} @@\n" + f"+{line}\n" * count
    assert 2 * len(shown) > MAX_DIFF_BYTES
    first, second, third = (one.unified_diff for one in bench.transcript.payloads if isinstance(one, TurnDiff))
    assert first == added(work / "a", large, hunk=shown)
    assert second == first + added(work / "b", large, hunk="Binary files differ\n")
    assert third == second + added(work / "c", b"c\n", hunk="@@ -0,0 +1 @@\n+c\n")


class Unreadable(TouchedFiles):
    """Touched files whose diff cannot be computed."""

    def render(self) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_patch_whose_diff_cannot_be_shown_is_written_all_the_same(
    work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(work, touched=Unreadable(str(work)))

    output = await bench.apply(*UPDATE)

    assert output == ran("Success. Updated the following files:\nM old.txt\n", 0)
    assert [type(one) for one in bench.transcript.payloads] == [PatchApplyBegin, CommandOutput, PatchApplyEnd]
    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n"}
    assert [one.getMessage() for one in caplog.records] == ["failed to compute the diff of a turn"]


async def test_a_patch_that_changes_nothing_has_no_diff(work: Path) -> None:
    bench = Bench(work)

    await bench.apply("*** Update File: old.txt", " alpha")

    assert [type(one) for one in bench.transcript.payloads] == [PatchApplyBegin, CommandOutput, PatchApplyEnd]


async def test_a_patch_that_does_not_match_is_refused(work: Path) -> None:
    bench = Bench(work)

    output = await bench.apply("*** Update File: old.txt", "-nothing like this", "+x")

    assert output == f'error: Failed to find expected lines ["nothing like this"] in {work}/old.txt'
    assert seen(bench) == [refused(output.removeprefix("error: "))]


@pytest.mark.parametrize(
    ("lines", "beginning", "end"),
    [
        (("*** Bogus " + "z" * 100_000,), "error: invalid hunk at line 2, '*** Bogus zzz", "Update File: {path}'"),
        (("*** Update File: " + "z" * 100_000, "-a"), "error: invalid path 'zzz", "zzz': it is too long"),
        (
            ("*** Update File: old.txt", "@@ " + "z" * 100_000, "-a"),
            "error: Failed to find context 'zzz",
            "/old.txt",
        ),
        (
            ("*** Update File: old.txt", *["-" + "z" * 1000] * 1000),
            'error: Failed to find expected lines ["zzz',
            "/old.txt",
        ),
    ],
)
async def test_the_error_for_a_refused_patch_has_only_a_part_of_it(
    work: Path, lines: tuple[str, ...], beginning: str, end: str
) -> None:
    output = await Bench(work).apply(*lines)

    assert output.startswith(beginning)
    assert output.endswith(end)
    assert "bytes truncated ...]\n" in output
    assert len(output) <= MAX_BYTES + 100


async def test_a_patch_in_our_own_home_is_refused(work: Path) -> None:
    bench = Bench(work)

    output = await bench.apply("*** Add File: /nonexistent/config.toml", "+x")

    assert output == "error: /nonexistent/config.toml must not be changed: Parley's home is protected"
    assert seen(bench) == [refused(output.removeprefix("error: "))]


async def test_an_empty_patch_is_refused(work: Path) -> None:
    bench = Bench(work)

    assert await bench.apply() == "patch rejected: empty patch"
    assert seen(bench) == [refused("empty patch")]


async def test_a_patch_of_what_is_hidden_is_refused_before_anything_of_it_is_read(work: Path) -> None:
    (work / "keys").mkdir()
    plant(work / "keys", id="secret\n")
    (work / "link").symlink_to("keys")
    bench = Bench(work, sandbox=Sandbox(hidden_paths=(f"{work}/link",)))

    output = await bench.apply("*** Update File: keys/id", "-guess", "+x")

    assert output == f"error: {work}/keys/id must not be changed: {work}/link is protected"
    assert seen(bench) == [refused(output.removeprefix("error: "))]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (RejectedByPolicy(why="no sandbox is available"), "patch rejected: no sandbox is available"),
        (RejectedByUser(), "patch rejected by user"),
        (RejectedByUser(reason="not this file"), "patch rejected by user: not this file"),
    ],
)
async def test_a_patch_that_must_not_be_written_changes_nothing(
    work: Path, verdict: Verdict, expected: str
) -> None:
    bench = Bench(work, verdict)

    assert await bench.apply(*UPDATE) == expected
    assert seen(bench) == [action(work), *rejection(verdict)]
    assert bench.files() == {"old.txt": b"alpha\nbeta\n"}


async def test_an_approval_names_both_ends_of_a_move(work: Path) -> None:
    bench = Bench(work, RejectedByUser())

    await bench.apply("*** Update File: old.txt", "*** Move to: ../new.txt", "-alpha", "+ALPHA")

    assert isinstance(asked := bench.did[0], ApplyPatch)
    assert (asked.paths, asked.inside_cwd) == ((f"{work}/old.txt", f"{work.parent}/new.txt"), False)


async def test_clients_and_the_model_see_a_failure_while_writing(work: Path) -> None:
    bench = Bench(work)
    bench.spoil = work / "old.txt"

    output = await bench.apply("*** Add File: sub/new.txt", "+x", *UPDATE)

    said = "Failed to write file old.txt: it changed after the patch was verified\n"
    shown = OutputShown(CALL, "stderr", said.encode())
    end = PatchApplyEnd(call_id=CALL, stdout="", stderr=said, success=False)
    changes = {f"{work}/sub/new.txt": OtherChange(add=AddedFile(content="x\n")), **updated(work)}
    begin = PatchApplyBegin(call_id=CALL, auto_approved=True, changes=changes)
    assert output == ran(said, 1)
    assert bench.did[1:] == [
        Appended((begin,)),
        Files({"old.txt": b"alpha\nbeta\n"}),
        shown,
        Appended((stored_output(shown), end)),
        Files({"old.txt": b"another user's\n"}),
    ]
    assert tree(work).keys() == {"old.txt"}


async def test_paths_are_read_from_the_directory_of_the_call(work: Path) -> None:
    bench = Bench(work)
    (work / "sub").mkdir()

    await bench.apply("*** Add File: a.txt", "+a", workdir=work / "sub")

    assert bench.files() == {"old.txt": b"alpha\nbeta\n", "sub/a.txt": b"a\n"}


@pytest.fixture
def odd(work: Path) -> Path:
    """Return a directory whose name is not UTF-8."""
    path = Path(os.fsdecode(bytes(work) + b"/\xff"))
    path.mkdir()
    return path


async def test_a_directory_whose_name_is_not_text_can_be_worked_in(work: Path, odd: Path) -> None:
    bench = Bench(odd)

    output = await bench.apply("*** Add File: a", "+a", "*** Add File: b", "+b")

    assert output == ran("Success. Updated the following files:\nA a\nA b\n", 0)
    assert isinstance(asked := bench.did[0], ApplyPatch)
    assert asked.changes.keys() == {f"{work}/?/a", f"{work}/?/b"}
    assert asked.paths == (f"{odd}/a", f"{odd}/b")


class Held(System):
    """A file system that stops before the first rename until the test continues it."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def link(self, name: str, other: str, *, folder: int) -> None:
        self.reached.set()
        assert self.let_go.wait(TIMEOUT_SECONDS)
        super().link(name, other, folder=folder)


async def test_cancelling_ends_verifying_and_nothing_happens(work: Path) -> None:
    bench = Bench(work)
    plant(work, old__txt="x\n" * 200_000)
    before = bench.files()
    text = patch("*** Update File: old.txt", *["@@\n-x\n+y"] * 100_000)
    others = threading.enumerate()  # cancelled threads of other tests may still be ending
    async with asyncio.timeout(TIMEOUT_SECONDS):
        applying = asyncio.create_task(bench.patches.apply(CALL, text, workdir=str(work)))
        await asyncio.sleep(0)
        new = [thread for thread in threading.enumerate() if thread not in others]
        threads = [thread for thread in new if thread.name == "verify-patch"]
        applying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await applying

    (thread,) = threads
    thread.join(TIMEOUT_SECONDS)
    assert (thread.daemon, thread.is_alive()) == (True, False)
    assert bench.did == []
    assert bench.files() == before


async def test_cancelling_waits_until_the_files_are_written_and_that_was_said(work: Path) -> None:
    bench, held = Bench(work), Held()
    other = verify(patch("*** Add File: other.txt", "+x"), workdir=str(work), cwd=str(work))
    first = threading.Thread(target=commit, args=(other.changes,), kwargs={"system": held})
    first.start()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await asyncio.to_thread(held.reached.wait, TIMEOUT_SECONDS)
        applying = asyncio.create_task(bench.patches.apply(CALL, patch(*UPDATE), workdir=str(work)))
        await bench.transcript.until(1)

        for _ in range(3):
            applying.cancel()
            await asyncio.sleep(0)
        assert not applying.done()
        held.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await applying
        await asyncio.to_thread(first.join)

    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n", "other.txt": b"x\n"}
    assert [type(one) for one in bench.did] == [ApplyPatch, Appended, Files, OutputShown, Appended, Files]


# --- in the sandbox -----------------------------------------------------------------------

WRITTEN = "Success. Updated the following files:\nM old.txt\n"
SPOILED = "Failed to write file old.txt: it changed after the patch was verified\n"
DENIED = f"sandbox denied exec error, exit code: 1, stdout: , stderr: {SPOILED}"
IN_THREAD = Confined("write-patch", POLICY)


def seen(bench: Bench) -> list[object]:
    """Return the calls, without the contents of files between them and without the diff of the turn."""
    did = (entry for entry in bench.did if not isinstance(entry, Files))
    return [
        Appended(tuple(one for one in entry.payloads if not isinstance(one, TurnDiff)))
        if isinstance(entry, Appended)
        else entry
        for entry in did
    ]


def written(work: Path, *, by: Sequence[object] = (IN_THREAD,), item: str = "i1") -> list[object]:
    shown = OutputShown(CALL, "stdout", WRITTEN.encode())
    end = PatchApplyEnd(call_id=CALL, stdout=WRITTEN, stderr="", success=True)
    return [begun(work), *by, shown, Appended((stored_output(shown, item=item), end))]


def begun(work: Path) -> Appended:
    return Appended((PatchApplyBegin(call_id=CALL, auto_approved=True, changes=updated(work)),))


def failed(work: Path, said: str = SPOILED, *, by: Sequence[object] = (IN_THREAD,)) -> list[object]:
    shown = OutputShown(CALL, "stderr", said.encode())
    end = PatchApplyEnd(call_id=CALL, stdout="", stderr=said, success=False)
    return [begun(work), *by, shown, Appended((stored_output(shown), end))]


async def test_a_patch_is_written_by_a_thread_under_the_policy_that_was_granted(work: Path) -> None:
    bench = Bench(work, CONFINED)

    output = await bench.apply(*UPDATE)

    assert output == ran(WRITTEN, 0)
    assert seen(bench) == [action(work), *written(work)]
    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n"}


async def test_a_patch_that_fails_in_the_sandbox_was_denied_by_the_sandbox(work: Path) -> None:
    bench = Bench(work, CONFINED)
    bench.spoil = work / "old.txt"

    output = await bench.apply(*UPDATE)

    assert output == f"failed in sandbox {SANDBOX} with execution error: {DENIED}"
    assert seen(bench) == [action(work), *failed(work)]


async def test_a_patch_that_cannot_be_confined_is_not_written(work: Path) -> None:
    sandboxes = Sandboxes(fails=SandboxUnavailable("/project is not what it was"))
    bench = Bench(work, Granted(policy=POLICY, ask_again=True), commands=sandboxes)

    output = await bench.apply(*UPDATE)

    assert output == "execution error: /project is not what it was"
    assert seen(bench) == [action(work), *failed(work, "/project is not what it was")]
    assert bench.files() == {"old.txt": b"alpha\nbeta\n"}


async def test_a_patch_that_fails_in_the_sandbox_is_written_without_it_when_that_is_allowed(
    work: Path,
) -> None:
    bench = Bench(work, Granted(policy=POLICY, ask_again=True), Granted(by_person=True))
    bench.spoil = work / "old.txt"
    bench.asked_again = lambda: (work / "old.txt").write_bytes(b"alpha\nbeta\n")

    output = await bench.apply(*UPDATE)

    assert output == ran(WRITTEN, 0)
    assert seen(bench) == [
        action(work),
        *failed(work),
        Appended((BackgroundEvent(message=f"Execution failed: {DENIED}"),)),
        msgspec.structs.replace(action(work), has_failed=True),
        Appended((BackgroundEvent(message="retrying command without sandbox"),)),
        *written(work, by=(), item="i2"),
    ]
    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n"}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (RejectedByUser(), "patch rejected by user"),
        (RejectedByPolicy(why="no client is connected"), "patch rejected: no client is connected"),
    ],
)
async def test_a_patch_that_fails_in_the_sandbox_is_not_written_when_that_is_denied(
    work: Path, verdict: Verdict, expected: str
) -> None:
    bench = Bench(work, Granted(policy=POLICY, ask_again=True), verdict)
    bench.spoil = work / "old.txt"

    assert await bench.apply(*UPDATE) == expected
    assert seen(bench) == [
        action(work),
        *failed(work),
        Appended((BackgroundEvent(message=f"Execution failed: {DENIED}"),)),
        msgspec.structs.replace(action(work), has_failed=True),
        *rejection(verdict),
    ]


async def test_a_patch_is_written_by_descriptor_alone_where_no_thread_can_be_confined(work: Path) -> None:
    bench = Bench(work, CONFINED, commands=Sandboxes(has_landlock=False))

    output = await bench.apply(*UPDATE)

    assert output == ran(WRITTEN, 0)
    assert seen(bench) == [action(work), *written(work)]
    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n"}


# --- the function ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["apply_patch", "applypatch"])
@pytest.mark.parametrize("argument", ["input", "patch"])
async def test_the_function_applies_its_argument(work: Path, name: str, argument: str) -> None:
    bench = Bench(work)

    output = await bench.call(json.dumps({argument: f"<<'EOF'\n{patch(*UPDATE)}\nEOF\n", "more": 1}), name)

    assert output == ran("Success. Updated the following files:\nM old.txt\n", 0)
    assert bench.files() == {"old.txt": b"ALPHA\nbeta\n"}


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{}", "missing field `input`"),
        ('{"input": null}', "missing field `input`"),
        ('{"input": 7}', "invalid type: integer `7`, expected a string (input)"),
        ('["x"]', "invalid type: sequence, expected a map (arguments)"),
    ],
)
async def test_arguments_that_do_not_fit_are_explained(work: Path, arguments: str, detail: str) -> None:
    bench = Bench(work)

    assert await bench.call(arguments) == f"failed to parse function arguments: {detail}"
    assert seen(bench) == [refused(detail)]


async def test_arguments_that_are_not_json_are_explained(work: Path) -> None:
    output = await Bench(work).call("*** Begin Patch")

    assert output.startswith("failed to parse function arguments: arguments cannot be read: ")


def test_the_format_is_described_to_the_model_by_an_example_that_can_be_read(work: Path) -> None:
    spec: Any = Bench(work).patches.spec()

    example = spec.description[spec.description.index("*** Begin") :].partition("*** End Patch")
    assert [type(hunk).__name__ for hunk in parse("".join(example[:2]))] == ["AddFile", "UpdateFile", "DeleteFile"]
    assert (spec.name, spec.parameters["required"]) == ("apply_patch", ["input"])


# --- replaced after the approval -------------------------------------------------------------


async def test_a_patch_whose_file_changes_while_it_is_written_needs_another_approval(work: Path) -> None:
    bench = Bench(work, *[Granted(by_person=True)] * 2)
    bench.spoil, bench.spoil_with = work / "old.txt", b"zero\nalpha\nbeta\n"

    output = await bench.apply(*UPDATE)

    asked = [entry for entry in bench.did if isinstance(entry, ApplyPatch)]
    assert [action.changed for action in asked] == [None, "files"]
    assert len(set(bench.covered)) == 2
    assert output == ran("Success. Updated the following files:\nM old.txt\n", 0)
    assert bench.files() == {"old.txt": b"zero\nALPHA\nbeta\n"}


async def test_a_patch_whose_files_change_at_each_approval_is_refused_in_the_end(work: Path) -> None:
    bench = Bench(work, Granted(by_person=True))
    contents = iter(b"%d\nalpha\nbeta\n" % number for number in range(10))

    async def authorize(action: Action) -> Verdict:
        (work / "old.txt").write_bytes(next(contents))
        return Granted(by_person=True)

    bench.patches = Patches(
        ToolContext(settings=settings(cwd=str(work)), transcript=bench.transcript, authorize=authorize), Sandboxes()
    )

    assert await bench.apply(*UPDATE) == (
        "patch rejected: its program, directory or files were replaced after each of 3 approvals"
    )
    assert bench.files() == {"old.txt": b"2\nalpha\nbeta\n"}


async def test_a_patch_that_no_longer_matches_fails(work: Path) -> None:
    bench = Bench(work, Granted(by_person=True))
    bench.spoil = work / "old.txt"

    output = await bench.apply(*UPDATE)

    assert output == f'error: Failed to find expected lines ["alpha"] in {work}/old.txt'
    assert seen(bench)[-1] == refused(output.removeprefix("error: "))
    assert bench.files() == {"old.txt": b"another user's\n"}
