"""Patches of a model: their forms, their effects, their events, and the output for the model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.builders.json import as_json
from kit.builders.trees import Tree, patch, plant_tree, regular, tree
from kit.clients.codex_calls import (
    APIS,
    EITHER_API,
    Output,
    User,
    Wire,
    answered,
    body,
    configured,
    events_in,
    failed,
    interrupted,
    is_event,
    pairs,
    speaking,
)
from kit.clients.patch_turns import (
    BETA_BLOB,
    BETA_HUNK,
    BOTH_BLOB,
    BOTH_HUNK,
    CALL_ID,
    NO_BLOB,
    OLD,
    OLD_BLOB,
    OUTSIDE_TOO,
    added,
    applied,
    at,
    calls_for,
    diff_of,
    diff_of_new_a,
    outputs,
    patch_output,
    sent,
    shell_call,
    spellings,
    success,
    turn,
    turn_diffs,
    untimed_requests,
    updated,
)
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import MECHANISMS
from parley.testing import HOLD, Data, Says, ScriptedModel
from parley.testing.render import Api
from parley.wire.events import FileChange, PatchApplyBegin
from parley.wire.ids import CallId

GO = User("go")


@pytest.fixture(autouse=True)
def usual_permissions() -> Iterator[None]:
    """Set the usual umask, regardless of the umask of the test runner."""
    before = os.umask(0o022)
    yield
    os.umask(before)


# --- spellings -----------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
async def test_a_patch_is_applied_however_it_is_spelt(parley_model: ScriptedModel, api: Api) -> None:
    calls = spellings(patch("*** Add File: a.txt", "+a"))
    output = success("A a.txt")
    async with speaking(parley_model, api=api) as wire:
        for number, (name, call) in enumerate(calls.items(), start=1):
            work = wire.work / name
            work.mkdir()
            parley_model.says(call)
            wire.codex(number, "go", cwd=str(work))
            messages = await wire.answer(number)

            events = applied({f"{work}/a.txt": added("a\n")}, output, diff_of_new_a(work))
            session = wire.sessions[-1]
            assert messages == [
                *configured(number, session),
                *pairs(number, str(number), *turn(api, *events)),
                answered(number, "Done"),
            ], name
            assert tree(work) == {"a.txt": regular("a\n")}
            assert untimed_requests(parley_model)[-2:] == [
                body(api, GO, cwd=work, session=session),
                body(api, GO, *sent(call), Output(CALL_ID, patch_output(output)), cwd=work, session=session),
            ]


# --- the effects of a patch ----------------------------------------------------------------------


class Case(NamedTuple):
    """A patch for existing files; `WORK` stands for their directory."""

    lines: tuple[str, ...]
    changes: Mapping[str, FileChange]
    said: tuple[str, ...]
    diff: str
    after: Tree


INDENTED = "  alpha\n\tbeta\n"
TYPESET = "“alpha” — beta\n"
BEFORE: Tree = {
    "gone.txt": regular("x\n"),
    "indented.txt": regular(INDENTED),
    "old.txt": regular(OLD),
    "run": regular("true\n", mode="-rwxr-x--x"),
    "typeset.txt": regular(TYPESET),
}


def _all_but(gone: str) -> Tree:
    return {name: file for name, file in BEFORE.items() if name != gone}


CASES = {
    "add": Case(
        lines=("*** Add File: a.txt", "+a"),
        changes={"WORK/a.txt": added("a\n")},
        said=("A a.txt",),
        diff=diff_of_new_a(Path("WORK")),
        after={**BEFORE, "a.txt": regular("a\n")},
    ),
    "add-an-empty-file": Case(
        lines=("*** Add File: empty",),
        changes={"WORK/empty": added("")},
        said=("A empty",),
        diff="diff --git a/WORK/empty b/WORK/empty\nnew file mode 100644\n"
        f"index {NO_BLOB}..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n",
        after={**BEFORE, "empty": regular("")},
    ),
    "add-in-new-folders": Case(
        lines=("*** Add File: one/two/a.txt", "+a"),
        changes={"WORK/one/two/a.txt": added("a\n")},
        said=("A one/two/a.txt",),
        diff="diff --git a/WORK/one/two/a.txt b/WORK/one/two/a.txt\nnew file mode 100644\n"
        f"index {NO_BLOB}..78981922613b2afb6025042ff6bd878ac1994e85\n"
        "--- /dev/null\n+++ b/WORK/one/two/a.txt\n@@ -0,0 +1 @@\n+a\n",
        after={
            **BEFORE,
            "one": ("drwxr-xr-x", b""),
            "one/two": ("drwxr-xr-x", b""),
            "one/two/a.txt": regular("a\n"),
        },
    ),
    "update": Case(
        lines=("*** Update File: old.txt", "@@", " alpha", "-beta", "+BETA", " gamma"),
        changes={"WORK/old.txt": updated(BETA_HUNK)},
        said=("M old.txt",),
        diff=diff_of("WORK/old.txt", BETA_BLOB, BETA_HUNK),
        after={**BEFORE, "old.txt": regular("alpha\nBETA\ngamma\n")},
    ),
    "update-by-an-absolute-path": Case(
        lines=("*** Update File: WORK/old.txt", "-beta", "+BETA"),
        changes={"WORK/old.txt": updated(BETA_HUNK)},
        said=("M WORK/old.txt",),
        diff=diff_of("WORK/old.txt", BETA_BLOB, BETA_HUNK),
        after={**BEFORE, "old.txt": regular("alpha\nBETA\ngamma\n")},
    ),
    "update-twice": Case(
        lines=(
            *("*** Update File: old.txt", "@@ alpha", "-beta", "+BETA"),
            *("*** Update File: old.txt", "-gamma", "+GAMMA", "*** End of File"),
        ),
        changes={"WORK/old.txt": updated(BOTH_HUNK)},
        said=("M old.txt",),
        diff=diff_of("WORK/old.txt", BOTH_BLOB, BOTH_HUNK),
        after={**BEFORE, "old.txt": regular("alpha\nBETA\nGAMMA\n")},
    ),
    "update-though-the-blanks-differ": Case(
        lines=("*** Update File: indented.txt", " alpha", "-    beta", "+BETA"),
        changes={"WORK/indented.txt": updated("@@ -1,2 +1,2 @@\n   alpha\n-\tbeta\n+BETA\n")},
        said=("M indented.txt",),
        diff=diff_of(
            "WORK/indented.txt",
            "f1e34d4962be262cd06024825cb28ac1add399c2",
            "@@ -1,2 +1,2 @@\n   alpha\n-\tbeta\n+BETA\n",
            before="0dcc6d16993fafb14f166ba1a7cffee929bc34b6",
        ),
        after={**BEFORE, "indented.txt": regular("  alpha\nBETA\n")},
    ),
    "update-though-quotes-and-dashes-differ": Case(
        lines=("*** Update File: typeset.txt", '-"alpha" - beta', "+ALPHA"),
        changes={"WORK/typeset.txt": updated(f"@@ -1 +1 @@\n-{TYPESET}+ALPHA\n")},
        said=("M typeset.txt",),
        diff=diff_of(
            "WORK/typeset.txt",
            "43581617a67b3cbef4bf71458d418efa59ac2de6",
            f"@@ -1 +1 @@\n-{TYPESET}+ALPHA\n",
            before="6eeb718a9fbb447852c0ae33660c5e3001cde955",
        ),
        after={**BEFORE, "typeset.txt": regular("ALPHA\n")},
    ),
    "delete": Case(
        lines=("*** Delete File: gone.txt",),
        changes={"WORK/gone.txt": "delete"},
        said=("D gone.txt",),
        diff="diff --git a/WORK/gone.txt b/WORK/gone.txt\ndeleted file mode 100644\n"
        f"index 587be6b4c3f93f93c489c0111bba5596147a26cb..{NO_BLOB}\n"
        "--- a/WORK/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        after=_all_but("gone.txt"),
    ),
    "move": Case(
        lines=("*** Update File: old.txt", "*** Move to: moved.txt", "@@", "-beta", "+BETA"),
        changes={
            "WORK/old.txt": updated(BETA_HUNK, move_path="WORK/moved.txt"),
        },
        said=("M moved.txt",),
        diff=diff_of("WORK/old.txt", BETA_BLOB, BETA_HUNK, new_path="WORK/moved.txt"),
        after={**_all_but("old.txt"), "moved.txt": regular("alpha\nBETA\ngamma\n")},
    ),
    "move-as-it-is": Case(
        lines=("*** Update File: run", "*** Move to: bin/run"),
        changes={"WORK/run": updated("", move_path="WORK/bin/run")},
        said=("M bin/run",),
        diff="diff --git a/WORK/run b/WORK/bin/run\nsimilarity index 100%\n"
        "rename from WORK/run\nrename to WORK/bin/run\n",
        after={**_all_but("run"), "bin": ("drwxr-xr-x", b""), "bin/run": BEFORE["run"]},
    ),
    "multi": Case(
        lines=(
            *("*** Delete File: gone.txt", "*** Add File: a.txt", "+a"),
            *("*** Update File: old.txt", "@@", "-alpha", "+ALPHA"),
        ),
        changes={
            "WORK/a.txt": added("a\n"),
            "WORK/gone.txt": "delete",
            "WORK/old.txt": updated("@@ -1,2 +1,2 @@\n-alpha\n+ALPHA\n beta\n"),
        },
        said=("A a.txt", "M old.txt", "D gone.txt"),
        diff="diff --git a/WORK/a.txt b/WORK/a.txt\nnew file mode 100644\n"
        f"index {NO_BLOB}..78981922613b2afb6025042ff6bd878ac1994e85\n"
        "--- /dev/null\n+++ b/WORK/a.txt\n@@ -0,0 +1 @@\n+a\n"
        "diff --git a/WORK/gone.txt b/WORK/gone.txt\ndeleted file mode 100644\n"
        f"index 587be6b4c3f93f93c489c0111bba5596147a26cb..{NO_BLOB}\n"
        "--- a/WORK/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/WORK/old.txt b/WORK/old.txt\n"
        f"index {OLD_BLOB}..3d4991afce663be0b9ba863757ac43e040c2a804\n"
        "--- a/WORK/old.txt\n+++ b/WORK/old.txt\n@@ -1,3 +1,3 @@\n-alpha\n+ALPHA\n beta\n gamma\n",
        after={**_all_but("gone.txt"), "a.txt": regular("a\n"), "old.txt": regular("ALPHA\nbeta\ngamma\n")},
    ),
}


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_patch_is_shown_while_it_is_applied_and_the_model_reads_what_it_changed(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        for number, (name, case) in enumerate(CASES.items(), start=1):
            work = wire.work / name
            plant_tree(work, BEFORE)
            text = patch(*at(work, case.lines))
            [call] = calls_for(text)
            parley_model.says(call)
            wire.codex(number, "go", cwd=str(work))
            messages = await wire.answer(number)

            output, session = success(*at(work, case.said)), wire.sessions[-1]
            events = pairs(number, str(number), *turn(api, *applied(case.changes, output, case.diff)))
            assert messages == [*configured(number, session), *at(work, events), answered(number, "Done")], name
            assert tree(work) == case.after, name
            heard = Output(CALL_ID, patch_output(output))
            assert untimed_requests(parley_model)[-2:] == [
                body(api, GO, cwd=work, session=session),
                body(api, GO, *sent(call), heard, cwd=work, session=session),
            ]


async def test_the_paths_of_a_patch_are_read_from_the_working_directory_of_its_call(
    parley_model: ScriptedModel,
) -> None:
    text = patch("*** Add File: a.txt", "+a", "*** Update File: ../old.txt", "-beta", "+BETA")
    parley_model.says(shell_call("apply_patch", text, workdir="sub"))
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, {"old.txt": regular(OLD)})
        (wire.work / "sub").mkdir()
        wire.codex(1, "go")
        begin, *_ = [one for one in events_in(await wire.answer(1)) if one["type"] == "patch_apply_begin"]

        work = wire.work
        assert begin == as_json(
            PatchApplyBegin(
                call_id=CallId(CALL_ID),
                auto_approved=True,
                changes={
                    f"{work}/sub/a.txt": added("a\n"),
                    f"{work}/old.txt": updated(BETA_HUNK),
                },
            )
        )
        assert tree(work) == {
            "old.txt": regular("alpha\nBETA\ngamma\n"),
            "sub": ("drwxr-xr-x", b""),
            "sub/a.txt": regular("a\n"),
        }
    assert outputs(parley_model) == [(CALL_ID, patch_output(success("A a.txt", "M ../old.txt")))]


async def test_an_absolute_path_means_the_same_file_wherever_the_call_is(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        work, elsewhere = wire.work / "work", wire.work / "elsewhere"
        for folder in (work / "sub", elsewhere / "sub", elsewhere / "inner"):
            plant_tree(folder, {"old.txt": regular(OLD)})
        (work / "link").symlink_to(elsewhere / "inner")
        text = patch(f"*** Update File: {work}/sub/old.txt", "-beta", "+BETA")
        parley_model.says(shell_call("apply_patch", text, workdir="link/../sub"))
        wire.codex(1, "go", cwd=str(work))
        await wire.answer(1)

        assert (work / "sub/old.txt").read_text() == "alpha\nBETA\ngamma\n"
        assert tree(elsewhere) == {
            **dict.fromkeys(("inner", "sub"), ("drwxr-xr-x", b"")),
            **{f"{name}/old.txt": regular(OLD) for name in ("inner", "sub")},
        }
    assert outputs(parley_model) == [(CALL_ID, patch_output(success(f"M {work}/sub/old.txt")))]


async def test_a_file_that_has_a_second_name_elsewhere_stays_as_it_was_there(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(*calls_for(patch("*** Update File: old.txt", "-beta", "+BETA")))
    async with speaking(parley_model) as wire:
        work, outside = wire.work / "work", wire.work / "outside"
        plant_tree(outside, {"old.txt": regular(OLD)})
        work.mkdir()
        (work / "old.txt").hardlink_to(outside / "old.txt")
        wire.codex(1, "go", cwd=str(work))
        await wire.answer(1)

        assert tree(work) == {"old.txt": regular("alpha\nBETA\ngamma\n")}
        assert tree(outside) == {"old.txt": regular(OLD)}
    assert outputs(parley_model) == [(CALL_ID, patch_output(success("M old.txt")))]


async def test_the_servers_own_files_are_left_alone(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        path = wire.raw.home / "config.toml"
        before = path.read_bytes()
        parley_model.says(*calls_for(patch(f"*** Delete File: {path}")))
        wire.codex(1, "go")
        await wire.answer(1)

        assert path.read_bytes() == before
    assert outputs(parley_model) == [
        (CALL_ID, f"error: {path} must not be changed: Parley's home is protected"),
    ]


async def test_a_conversation_may_work_in_a_directory_that_it_reaches_by_a_link(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as wire:
        real, link = wire.work / "real", wire.work / "link"
        plant_tree(real, {"old.txt": regular(OLD)})
        link.symlink_to(real)
        text = patch("*** Add File: a.txt", "+a", f"*** Update File: {link}/old.txt", "-beta", "+BETA")
        parley_model.says(*calls_for(text))
        wire.codex(1, "go", cwd=str(link))
        messages = await wire.answer(1)

        output = success("A a.txt", f"M {link}/old.txt")
        changes = {f"{real}/a.txt": added("a\n"), f"{real}/old.txt": updated(BETA_HUNK)}
        diff = diff_of_new_a(real) + diff_of(f"{real}/old.txt", BETA_BLOB, BETA_HUNK)
        assert messages == [
            *configured(1, wire.sessions[0]),
            *pairs(1, "1", *turn("chat", *applied(changes, output, diff))),
            answered(1, "Done"),
        ]
        assert tree(real) == {"a.txt": regular("a\n"), "old.txt": regular("alpha\nBETA\ngamma\n")}
    assert outputs(parley_model) == [(CALL_ID, patch_output(output))]


async def test_the_shell_that_some_models_were_taught_takes_patches_too(parley_model: ScriptedModel) -> None:
    item = {
        "type": "local_shell_call",
        "id": "lsc_1",
        "call_id": CALL_ID,
        "status": "completed",
        "action": {"type": "exec", "command": ["apply_patch", patch("*** Add File: a.txt", "+a")]},
    }
    parley_model.says(Data(json.dumps({"type": "response.output_item.done", "item": item})))
    async with speaking(parley_model, api="responses") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        work = wire.work

        session, output = wire.sessions[0], success("A a.txt")
        events = applied({f"{work}/a.txt": added("a\n")}, output, diff_of_new_a(work))
        assert messages == [
            *configured(1, session),
            *pairs(1, "1", *turn("responses", *events)),
            answered(1, "Done"),
        ]
        assert tree(work) == {"a.txt": regular("a\n")}
        expected = body("responses", GO, Output(CALL_ID, patch_output(output)), cwd=work, session=session)
        expected["input"].insert(2, item)
        assert untimed_requests(parley_model)[-1] == expected


async def test_every_other_spelling_is_a_command_like_any_other(parley_model: ScriptedModel) -> None:
    text = patch("*** Add File: a.txt", "+a")
    commands = (
        ("apply_patch",),
        ("apply_patch", text, "more"),
        ("bash", "-lc", "apply_patch"),
        ("bash", "-lc", f"true && apply_patch <<'EOF'\n{text}\nEOF"),
        ("bash", "-lc", f"apply_patch <<'EOF'\n{text}\nEOF\ntrue"),
        ("bash", "-c", f"apply_patch <<'EOF'\n{text}\nEOF"),
    )
    calls = [shell_call(*command, call_id=f"c{number}") for number, command in enumerate(commands)]
    parley_model.says(*calls)
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        seen = events_in(await wire.answer(1))

        assert [tuple(one["command"]) for one in seen if one["type"] == "exec_command_begin"] == [*commands]
        assert [one["type"] for one in seen if "patch" in one["type"] or one["type"] == "turn_diff"] == []
        assert tree(wire.work) == {}


# --- in the sandbox ------------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("decide.patches")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_patch_inside_the_project_is_written_in_the_sandbox(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    [call] = calls_for(patch("*** Add File: a.txt", "+a", "*** Update File: old.txt", "-beta", "+BETA"))
    output = success("A a.txt", "M old.txt")
    async with speaking(parley_model, config=f'[sandbox]\nmechanism = "{mechanism}"\n') as wire:
        for number, policy in enumerate(("never", "on-request", "on-failure"), start=1):
            work = wire.work / policy
            work.mkdir()
            plant_tree(work, BEFORE)
            parley_model.says(call)
            wire.codex(number, "go", sandbox="workspace-write", cwd=str(work), **{"approval-policy": policy})
            messages = await wire.answer(number)

            changes = {f"{work}/a.txt": added("a\n"), f"{work}/old.txt": updated(BETA_HUNK)}
            diff = diff_of_new_a(work) + diff_of(f"{work}/old.txt", BETA_BLOB, BETA_HUNK)
            assert messages == [
                *configured(number, wire.sessions[-1]),
                *pairs(number, str(number), *turn("chat", *applied(changes, output, diff))),
                answered(number, "Done"),
            ], policy
            assert outputs(parley_model) == [(CALL_ID, patch_output(output))]
            assert tree(work) == {**BEFORE, "a.txt": regular("a\n"), "old.txt": regular("alpha\nBETA\ngamma\n")}


@pytest.mark.promises("sandbox.replaced")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_nothing_is_done_in_a_directory_that_was_put_in_the_place_of_the_project(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    [written] = calls_for(patch("*** Add File: a.txt", "+a"))
    async with speaking(parley_model, config=f'[sandbox]\nmechanism = "{mechanism}"\n') as wire:
        work = wire.work / "project"
        work.mkdir()
        parley_model.says(HOLD, written, shell_call("touch", "b.txt", call_id="c2"))
        wire.codex(1, "go", sandbox="workspace-write", cwd=str(work))
        await parley_model.wait_until_held()
        work.rename(wire.work / "old")
        work.mkdir()
        parley_model.release()
        seen = events_in(await wire.answer(1))

        why = f"{work} is no longer writable: it was replaced by another directory"
        assert outputs(parley_model) == [(CALL_ID, f"execution error: {why}"), ("c2", f"execution error: {why}")]
        assert tree(wire.work) == {"old": ("drwxr-xr-x", b""), "project": ("drwxr-xr-x", b"")}
    [end] = [one for one in seen if one["type"] == "patch_apply_end"]
    assert end == {"type": "patch_apply_end", "call_id": CALL_ID, "stdout": "", "stderr": why, "success": False}


# --- large patches -------------------------------------------------------------------------------


@pytest.mark.parametrize("api", EITHER_API)
async def test_the_text_of_a_large_patch_is_complete_for_clients_and_truncated_for_the_model(
    parley_model: ScriptedModel, api: Api
) -> None:
    names = [f"a-rather-long-name-for-a-file-{number:03}" for number in range(300)]
    parley_model.says(*calls_for(patch(*(f"*** Add File: {name}" for name in names))))
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        seen = events_in(await wire.answer(1))

        assert tree(wire.work) == {name: regular("") for name in names}
    output = success(*(f"A {name}" for name in names))
    chunks = [one["chunk"] for one in seen if one["type"] == "exec_command_output_delta"]
    assert b"".join(map(bytes, chunks)) == output.encode()
    assert [len(chunk) for chunk in chunks] == [8192, len(output) - 8192]
    [end] = [one for one in seen if one["type"] == "patch_apply_end"]
    assert end == {"type": "patch_apply_end", "call_id": CALL_ID, "stdout": output, "stderr": "", "success": True}
    lines = output.splitlines(keepends=True)
    left_out = f"[... {301 - 256} lines, {sum(map(len, lines[128:-128]))} bytes truncated ...]\n"
    cut = "".join([*lines[:128], left_out, *lines[-128:]])
    assert outputs(parley_model) == [(CALL_ID, patch_output(cut))]


# --- other clients, and interrupts ---------------------------------------------------------------


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_late_client_sees_the_same_patch_events(parley_model: ScriptedModel, api: Api) -> None:
    texts = (
        patch("*** Add File: a.txt", "+a"),
        patch("*** Add File: /proc/a.txt", "+a"),
        patch("*** Delete File: a.txt"),
    )
    # Models use a call id more than once.
    parley_model.says(*(call for text in texts for call in calls_for(text)))
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go", **OUTSIDE_TOO)
        live = events_in(await wire.answer(1))
        wire.stream(2, wire.sessions[0])
        *_, snapshot = await wire.until(is_event("notifications/initial_state"))

    assert [one["type"] for one in live if "patch" in one["type"] or "output" in one["type"]] == [
        "patch_apply_begin",
        "exec_command_output_delta",
        "patch_apply_end",
    ] * 3
    remaining = [one for one in live if one["type"] not in ("session_configured", "agent_message_delta")]
    assert [one["msg"] for one in snapshot["params"]["initial_state"]["events"]] == remaining


NUMBERS = range(60)
MANY_BEFORE: Tree = {f"f{number}.txt": regular(f"old {number}\nx\n") for number in NUMBERS}
MANY_AFTER: Tree = {f"f{number}.txt": regular(f"new {number}\nx\n") for number in NUMBERS}
MANY = patch(*(f"*** Update File: f{number}.txt\n-old {number}\n+new {number}" for number in NUMBERS))


@pytest.mark.promises("patch.whole")
async def test_a_patch_that_has_begun_is_written_whole_though_the_turn_is_interrupted(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(*calls_for(MANY))
    parley_model.default = Says((HOLD,))  # the interrupt may come too late for the patch, but not for the turn
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, MANY_BEFORE)
        wire.codex(1, "go")
        await wire.until(is_event("patch_apply_begin"))
        wire.cancel(1)
        *_, last = await wire.answer(1)
        written = tree(wire.work)
        parley_model.default = Says(("Done",))
        wire.reply(2, "again")
        next_turn = await wire.answer(2)

    assert last == interrupted(1)
    assert written == MANY_AFTER
    assert turn_diffs(next_turn) == []
    [(call_id, heard)] = outputs(parley_model)
    assert call_id == CALL_ID
    assert heard == patch_output(success(*(f"M {name}" for name in MANY_AFTER)))


@pytest.mark.child_process
async def test_a_patch_that_has_begun_is_written_whole_though_the_server_is_stopped(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says(*calls_for(MANY))
    parley_model.default = Says((HOLD,))
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, MANY_BEFORE)
        wire.codex(1, "go")
        await wire.until(is_event("patch_apply_begin"))
        wire.raw.terminate()
        *_, last = await wire.answer(1)
        await wire.raw.exit_code()

        assert last == failed(1, "Turn interrupted: the server was stopped")
        assert tree(wire.work) == MANY_AFTER


LINES = 1_500_000
PROMPTLY_SECONDS = 4
"""The maximum time of an interrupt, in seconds.

It is shorter than the five seconds for which the server matches a patch of this size, and much longer than an
interrupt usually takes.
"""


def _holds(pid: int, folder: Path) -> bool:
    """Return whether a process has a directory open."""
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            if Path(os.readlink(one)) == folder:
                return True
    return False


async def _is_matching(wire: Wire) -> None:
    """Wait until the server is matching a patch. Meanwhile the server holds the directory of the file open."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not _holds(wire.raw.pid, wire.work):
            await wire.silence()


@pytest.mark.child_process
@pytest.mark.long  # a limit of wall-clock time decides
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors of others can be seen on Linux alone")
async def test_a_server_that_matches_a_very_large_patch_ends_at_once_when_its_input_ends(
    parley_model: ScriptedModel,
) -> None:
    # The quotes in the patch differ from those in the file, so the matcher tries every level.
    chunks = ("@@\n 'a'\n-'b'\n+x" for _ in range(LINES // 5))
    parley_model.says(*calls_for(patch("*** Update File: large.txt", *chunks)))
    parley_model.default = Says((HOLD,))
    async with speaking(parley_model) as wire:
        large = "‘a’\n‘b’\n".encode() * (LINES // 2)
        (wire.work / "large.txt").write_bytes(large)
        wire.codex(1, "go")
        await _is_matching(wire)
        async with asyncio.timeout(PROMPTLY_SECONDS):
            wire.raw.close_stdin()
            *_, last = await wire.answer(1)
            code = await wire.raw.exit_code()

        assert last == failed(1, "Turn interrupted: the server was stopped")
        assert code == 0
        assert (wire.work / "large.txt").read_bytes() == large
