"""Patches that do not match, are forbidden or cannot be written: the model gets the reason, and no file changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kit.builders.trees import Tree, patch, plant_tree, regular, tree
from kit.clients.codex_calls import APIS, EITHER_API, Output, User, answered, body, configured, pairs, speaking
from kit.clients.patch_turns import (
    BETA_HUNK,
    CALL_ID,
    OLD,
    OUTSIDE_TOO,
    added,
    at,
    calls_for,
    not_written,
    outputs,
    patch_output,
    sent,
    spellings,
    turn,
    updated,
)
from kit.clients.wire_client import speaking as raw_client
from parley.testing import Call, ScriptedModel
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION

GO = User("go")

BEFORE: Tree = {"gone.txt": regular("x\n"), "old.txt": regular(OLD)}


# --- patches that do not match -------------------------------------------------------------------

HEADERS = "'*** Add File: {path}', '*** Delete File: {path}', '*** Update File: {path}'"
NOT_FOUND = "No such file or directory (os error 2)"

MISFITS = {
    "": "error: invalid patch: The first line of the patch must be '*** Begin Patch'",
    "*** Update File: old.txt\n@@\n-alpha\n+b\n*** End Patch": (
        "error: invalid patch: The first line of the patch must be '*** Begin Patch'"
    ),
    "*** Begin Patch\n*** Add File: a.txt\n+a": (
        "error: invalid patch: The last line of the patch must be '*** End Patch'"
    ),
    patch("*** Rename File: old.txt"): (
        f"error: invalid hunk at line 2, '*** Rename File: old.txt' is not a valid hunk header. "
        f"Valid hunk headers: {HEADERS}"
    ),
    patch("*** Add File: a.txt", "+a", "b"): (
        f"error: invalid hunk at line 4, 'b' is not a valid hunk header. Valid hunk headers: {HEADERS}"
    ),
    patch(): "patch rejected: empty patch",
    patch("*** Update File: old.txt", "@@", "-nothing like this", "+x"): (
        'error: Failed to find expected lines ["nothing like this"] in WORK/old.txt'
    ),
    patch("*** Update File: old.txt", " beta", "-alpha", "+x"): (
        'error: Failed to find expected lines ["beta", "alpha"] in WORK/old.txt'
    ),
    patch("*** Update File: old.txt", "@@ no such context", "-alpha", "+b"): (
        "error: Failed to find context 'no such context' in WORK/old.txt"
    ),
    patch("*** Update File: missing.txt", "-a", "+b"): (
        f"error: Failed to read file to update WORK/missing.txt: {NOT_FOUND}"
    ),
    patch("*** Delete File: missing.txt"): f"error: Failed to delete file WORK/missing.txt: {NOT_FOUND}",
    # The parts of the patch that match are not applied either.
    patch("*** Add File: a.txt", "+a", "*** Delete File: gone.txt", "*** Update File: old.txt", "-x", "+y"): (
        'error: Failed to find expected lines ["x"] in WORK/old.txt'
    ),
    # Paths that a patch must not change.
    patch("*** Add File: old.txt", "+a"): "error: File already exists: WORK/old.txt",
    patch("*** Add File: folder", "+a"): "error: File already exists: WORK/folder",
    patch("*** Update File: gone.txt", "*** Move to: old.txt", "-x", "+y"): (
        "error: File already exists: WORK/old.txt"
    ),
    patch("*** Delete File: folder"): "error: WORK/folder is not a regular file",
    patch("*** Delete File: pipe"): "error: WORK/pipe is not a regular file",
    patch("*** Update File: locked.txt", "-x", "+y"): "error: WORK/locked.txt is read-only",
    patch("*** Add File: way/a.txt", "+a"): (
        "error: Failed to write file WORK/way/a.txt: WORK/way is a symbolic link"
    ),
    patch("*** Update File: way/there.txt", "-x", "+y"): (
        "error: Failed to read file to update WORK/way/there.txt: WORK/way is a symbolic link"
    ),
    patch("*** Delete File: way/there.txt"): (
        "error: Failed to delete file WORK/way/there.txt: WORK/way is a symbolic link"
    ),
    patch("*** Update File: gone.txt", "*** Move to: way/gone.txt", "-x", "+y"): (
        "error: Failed to write file WORK/way/gone.txt: WORK/way is a symbolic link"
    ),
    patch("*** Update File: link.txt", "-alpha", "+ALPHA"): (
        "error: Failed to read file to update WORK/link.txt: WORK/link.txt is a symbolic link"
    ),
    patch("*** Add File: nowhere.txt", "+a"): (
        "error: Failed to write file WORK/nowhere.txt: WORK/nowhere.txt is a symbolic link"
    ),
    **{
        patch(f"*** Add File: {path}", "+a"): f"error: WORK/{path} must not be changed: .git is protected"
        for path in (
            ".git/hooks/post-commit",
            "folder/.git/config",
            "folder/../.git/config",
            "./.git/config",
            ".GIT/config",
            ".Git",
            "GIT~1/config",
            "git~2/config",
            ".git./config",
            ".git /config",
            ".g\u200cit/config",
            ".git::$INDEX_ALLOCATION/config",
            "folder\\.git\\config",
        )
    },
    patch("*** Add File: WORK/.git/config", "+a"): "error: WORK/.git/config must not be changed: .git is protected",
    patch("*** Update File: gone.txt", "*** Move to: .git/hooks/post-commit", "-x", "+y"): (
        "error: WORK/.git/hooks/post-commit must not be changed: .git is protected"
    ),
    patch("*** Update File: .git/HEAD", "-ref", "+x"): (
        "error: WORK/.git/HEAD must not be changed: .git is protected"
    ),
    patch("*** Delete File: .git/HEAD"): "error: WORK/.git/HEAD must not be changed: .git is protected",
    **{
        patch(f"*** Add File: {path}", "+a"): f"error: WORK/{path} must not be changed: {name} is protected"
        for path, name in (
            (".parley/config.toml", ".parley"),
            ("folder/.parley", ".parley"),
            (".PARLEY./config.toml", ".parley"),
            (".codex/config.toml", ".codex"),
            ("codex~1/config.toml", ".codex"),
            (".claude/settings.json", ".claude"),
            (".cursor/mcp.json", ".cursor"),
        )
    },
    # After a link, `..` is the parent directory of the link's target.
    patch("*** Update File: way/../old.txt", "-beta", "+BETA"): (
        "error: invalid path 'way/../old.txt': WORK/way is a symbolic link"
    ),
    patch("*** Update File: missing/../old.txt", "-beta", "+BETA"): (
        f"error: invalid path 'missing/../old.txt': WORK/missing: {NOT_FOUND}"
    ),
}
"""The output that the model gets for each patch. `WORK` stands for the working directory."""


def _plant_obstacles(work: Path) -> None:
    plant_tree(work, BEFORE)
    (work / "folder").mkdir()
    os.mkfifo(work / "pipe")
    (work / "locked.txt").write_text("x\n")
    (work / "locked.txt").chmod(0o444)
    elsewhere = work.with_name("elsewhere")
    plant_tree(elsewhere, {"there.txt": regular("x\n")})
    (work / "way").symlink_to(elsewhere)
    (work / "link.txt").symlink_to("old.txt")
    (work / "nowhere.txt").symlink_to("not-there.txt")
    (work / ".git").mkdir()
    (work / ".git/HEAD").write_text("ref\n")


@pytest.mark.promises("patch.verified", "patch.protected")
@pytest.mark.parametrize("api", APIS)
async def test_the_model_reads_why_a_patch_is_refused_and_nothing_is_changed(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        work = wire.work / "work"
        _plant_obstacles(work)
        before = tree(wire.work)
        calls = calls_for(*(at(work, text) for text in MISFITS))
        parley_model.says(*calls)
        wire.codex(1, "go", cwd=str(work))
        messages = await wire.answer(1)

        session = wire.sessions[0]
        assert messages == [*configured(1, session), *pairs(1, "1", *turn(api)), answered(1, "Done")]
        assert tree(wire.work) == before
        whys = [Output(f"c{number}", why) for number, why in enumerate(at(work, [*MISFITS.values()]), start=1)]
        history = [item for pair in zip(sent(*calls), whys, strict=True) for item in pair]
        assert parley_model.requests[1].body == body(api, GO, *history, cwd=work, session=session)


async def test_a_patch_that_does_not_match_has_the_same_error_in_every_spelling(
    parley_model: ScriptedModel,
) -> None:
    calls = spellings(patch("*** Update File: missing.txt", "-a", "+b"))
    parley_model.says(*calls.values())
    async with speaking(parley_model) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

        assert messages == [
            *configured(1, wire.sessions[0]),
            *pairs(1, "1", *turn("chat")),
            answered(1, "Done"),
        ]
        why = f"error: Failed to read file to update {wire.work}/missing.txt: {NOT_FOUND}"
    assert outputs(parley_model) == [(CALL_ID, why)] * len(calls)


@pytest.mark.parametrize("api", APIS)
async def test_a_function_call_without_a_patch_is_explained(parley_model: ScriptedModel, api: Api) -> None:
    details = {
        "{}": "missing field `input`",
        '{"input": 7}': "invalid type: integer `7`, expected a string (input)",
        "[]": "invalid type: sequence, expected a map (arguments)",
    }
    calls = [Call("apply_patch", arguments, f"c{number}") for number, arguments in enumerate(details)]
    parley_model.says(*calls)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *turn(api)),
        answered(1, "Done"),
    ]
    assert outputs(parley_model) == [
        (f"c{number}", f"failed to parse function arguments: {detail}")
        for number, detail in enumerate(details.values())
    ]


@pytest.mark.promises("patch.verified")
async def test_clients_see_why_a_patch_is_refused(parley_model: ScriptedModel) -> None:
    texts = {
        patch(): "empty patch",
        patch("*** Update File: old.txt", "-nothing like this", "+x"): (
            'Failed to find expected lines ["nothing like this"] in WORK/old.txt'
        ),
        patch("*** Update File: old.txt", f"-{'z' * 2000}", "+x"): (
            f'Failed to find expected lines ["{"z" * 967}…'
        ),
        patch("*** Add File: ../a.txt", "+a"): "writing outside of the project; rejected by user approval settings",
    }
    parley_model.says(*calls_for(*texts), Call("apply_patch", "{}", f"c{len(texts) + 1}"))
    async with raw_client(parley_model, version=FULL_VERSION) as client:
        plant_tree(client.work, BEFORE)
        conversation = await client.create()
        await client.open_stream(conversation)
        client.message(conversation, "go")
        events = [one["params"]["msg"] for one in await client.until_method("task_complete") if "params" in one]

        refused = [one for one in events if one["type"].startswith("patch_")]
        whys = [*at(client.work, [*texts.values()]), "missing field `input`"]
        assert refused == [
            {"type": "patch_refused", "call_id": f"c{number}", "message": why}
            for number, why in enumerate(whys, start=1)
        ]
        assert tree(client.work) == BEFORE


# --- patches that are forbidden, or that cannot be written -----------------------------------------


OUTSIDE = "patch rejected: writing outside of the project; rejected by user approval settings"

REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"sandbox": "read-only"}, "a.txt"),
    ({"sandbox": "workspace-write"}, "../a.txt"),
    ({}, "../a.txt"),
)
"""For the policy `never`: the sandbox settings, and a file that the sandbox does not allow to write."""


@pytest.mark.promises("decide.patches")
@pytest.mark.parametrize("api", EITHER_API)
async def test_a_patch_outside_of_the_project_is_refused_without_approvals(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        for number, (arguments, name) in enumerate(REFUSED, start=1):
            calls = spellings(patch(f"*** Add File: {name}", "+a")).values()
            parley_model.says(*calls)
            wire.codex(number, "go", **arguments)
            messages = await wire.answer(number)

            assert messages == [
                *configured(number, wire.sessions[-1]),
                *pairs(number, str(number), *turn(api)),
                answered(number, "Done"),
            ], arguments
            assert outputs(parley_model) == [(CALL_ID, OUTSIDE)] * len(calls), arguments
        assert tree(wire.work) == {}
        assert not (wire.work.parent / "a.txt").exists()


def _why_not(path: str) -> str:
    """Return the error of the operating system for creating such a file."""
    with pytest.raises(OSError) as refused, open(path, "x"):
        pass
    return f"{refused.value.strerror} (os error {refused.value.errno})"


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_patch_that_cannot_be_written_reports_it_and_changes_nothing(
    parley_model: ScriptedModel, api: Api
) -> None:
    lines = ("*** Add File: sub/a.txt", "+a", "*** Update File: old.txt", "-beta", "+BETA")
    # No file can be created there, which is found only when the patch is written.
    [call] = calls_for(patch(*lines, "*** Add File: /proc/a.txt", "+a"))
    parley_model.says(call)
    async with speaking(parley_model, api=api) as wire:
        plant_tree(wire.work, BEFORE)
        wire.codex(1, "go", **OUTSIDE_TOO)
        messages = await wire.answer(1)

        work, session = wire.work, wire.sessions[0]
        changes = {
            f"{work}/sub/a.txt": added("a\n"),
            f"{work}/old.txt": updated(BETA_HUNK),
            "/proc/a.txt": added("a\n"),
        }
        why = f"Failed to write file /proc/a.txt: {_why_not('/proc/a.txt')}\n"
        assert messages == [
            *configured(1, session),
            *pairs(1, "1", *turn(api, *not_written(changes, why))),
            answered(1, "Done"),
        ]
        assert tree(work) == BEFORE
        assert outputs(parley_model) == [(CALL_ID, patch_output(why, exit_code=1))]
