"""The diff of a turn: one diff for all patches so far, in the format of Git."""

from __future__ import annotations

import pytest

from kit.builders.trees import patch, plant_tree, regular
from kit.clients.codex_calls import EITHER_API, answered, configured, events_in, pairs, speaking
from kit.clients.patch_turns import (
    BETA_BLOB,
    BETA_HUNK,
    BOTH_BLOB,
    BOTH_HUNK,
    OLD,
    applied,
    calls_for,
    diff_of,
    diff_of_new_a,
    shell_call,
    success,
    turn,
    turn_diffs,
    updated,
)
from kit.clients.traces import SPENT
from parley.testing import ScriptedModel
from parley.testing.render import Api


@pytest.mark.parametrize("api", EITHER_API)
async def test_the_diff_goes_over_all_patches_of_a_turn_and_starts_afresh_in_the_next(
    parley_model: ScriptedModel, api: Api
) -> None:
    texts = [
        patch("*** Update File: old.txt", "@@", " alpha", "-beta", "+BETA", " gamma"),
        patch("*** Update File: old.txt", "@@", "-gamma", "+GAMMA"),
        patch("*** Update File: old.txt", "@@", "-GAMMA", "+delta"),
    ]
    first, second, third = calls_for(*texts)
    for reply in ((first,), (second,), ("Done",), (third,), ("Done",)):
        parley_model.says(*reply)
    async with speaking(parley_model, api=api) as wire:
        plant_tree(wire.work, {"old.txt": regular(OLD)})
        wire.codex(1, "go")
        one = await wire.answer(1)
        wire.reply(2, "again")
        two = await wire.answer(2)

        output, path = success("M old.txt"), f"{wire.work}/old.txt"
        once = applied({path: updated(BETA_HUNK)}, output, diff_of(path, BETA_BLOB, BETA_HUNK))
        twice = applied(
            {path: updated("@@ -2,2 +2,2 @@\n BETA\n-gamma\n+GAMMA\n")},
            output,
            diff_of(path, BOTH_BLOB, BOTH_HUNK),
            call_id="c2",
        )
        anew = applied(
            {path: updated("@@ -2,2 +2,2 @@\n BETA\n-GAMMA\n+delta\n")},
            output,
            diff_of(
                path,
                "c71c683359a2d2fca6891cb260ecd8933a3d2636",
                "@@ -1,3 +1,3 @@\n alpha\n BETA\n-GAMMA\n+delta\n",
                before=BOTH_BLOB,
            ),
            call_id="c3",
        )
        assert one == [
            *configured(1, wire.sessions[0]),
            *pairs(1, "1", *turn(api, *once, SPENT, *twice)),
            answered(1, "Done"),
        ]
        assert two == [*pairs(2, "2", *turn(api, *anew)), answered(2, "Done")]


async def test_a_file_moved_from_place_to_place_is_shown_once_with_its_first_and_its_last_name(
    parley_model: ScriptedModel,
) -> None:
    calls = calls_for(
        patch("*** Update File: old.txt", "*** Move to: second.txt", "-beta", "+BETA"),
        patch("*** Update File: second.txt", "*** Move to: sub/third.txt"),
        patch("*** Update File: sub/third.txt", "-gamma", "+GAMMA"),
        patch("*** Update File: sub/third.txt", "*** Move to: old.txt"),
    )
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, {"old.txt": regular(OLD)})
        parley_model.says(*calls)
        wire.codex(1, "go")
        diffs = turn_diffs(await wire.answer(1))

        old, second, third = (f"{wire.work}/{name}" for name in ("old.txt", "second.txt", "sub/third.txt"))
        assert diffs == [
            diff_of(old, BETA_BLOB, BETA_HUNK, new_path=second),
            diff_of(old, BETA_BLOB, BETA_HUNK, new_path=third),
            diff_of(old, BOTH_BLOB, BOTH_HUNK, new_path=third),
            diff_of(old, BOTH_BLOB, BOTH_HUNK),
        ]


async def test_a_turn_that_takes_back_what_it_changed_has_no_diff_any_more(parley_model: ScriptedModel) -> None:
    calls = calls_for(
        patch("*** Add File: a.txt", "+a"),
        patch("*** Delete File: a.txt", "*** Update File: old.txt", "-beta", "+BETA"),
        patch("*** Update File: old.txt", "-BETA", "+beta"),
        patch("*** Add File: a.txt", "+a"),
    )
    parley_model.says(*calls)
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, {"old.txt": regular(OLD)})
        wire.codex(1, "go")
        messages = await wire.answer(1)

        changed = diff_of(f"{wire.work}/old.txt", BETA_BLOB, BETA_HUNK)
        assert turn_diffs(messages) == [diff_of_new_a(wire.work), changed, diff_of_new_a(wire.work)]
        ends = [one for one in events_in(messages) if one["type"] == "patch_apply_end"]
        assert [one["success"] for one in ends] == [True] * 4


async def test_a_command_between_two_patches_shows_in_the_diff_where_it_changed_their_files(
    parley_model: ScriptedModel,
) -> None:
    one, two = calls_for(patch("*** Add File: a.txt", "+x"), patch("*** Update File: old.txt", "-beta", "+BETA"))
    parley_model.says(one, shell_call("sh", "-c", "echo a > a.txt; echo b > b.txt", call_id="c9"), two)
    async with speaking(parley_model) as wire:
        plant_tree(wire.work, {"old.txt": regular(OLD)})
        wire.codex(1, "go")
        *_, last = turn_diffs(await wire.answer(1))

        assert last == diff_of_new_a(wire.work) + diff_of(f"{wire.work}/old.txt", BETA_BLOB, BETA_HUNK)
