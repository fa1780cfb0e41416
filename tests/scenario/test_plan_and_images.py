"""The tools `update_plan` and `view_image`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kit.builders.images import GIF, JPEG, PNG, WEBP, as_data_url, large_png
from kit.builders.tools import offered
from kit.clients.codex_calls import (
    APIS,
    EITHER_API,
    AskedFor,
    Assistant,
    Output,
    User,
    answered,
    body,
    configured,
    history,
    pairs,
    speaking,
)
from kit.clients.patch_turns import outputs, sent, turn
from kit.clients.traces import SPENT
from kit.models.raw_provider import settings
from parley.testing import Call, ScriptedModel
from parley.testing.render import Api
from parley.wire.events import PlanStep, PlanUpdate
from parley.wire.images import MAX_IMAGE_BYTES

GO = User("go")


# --- the plan ------------------------------------------------------------------------------

STEPS = (
    PlanStep(step="one", status="completed"),
    PlanStep(step="two", status="in_progress"),
    PlanStep(step="three", status="pending"),
)
STEPS_SENT = [{"step": one.step, "status": one.status} for one in STEPS]


def _plan_calls(*arguments: Any) -> list[Call]:
    return [
        Call("update_plan", one if isinstance(one, str) else json.dumps(one), f"c{number}")
        for number, one in enumerate(arguments, start=1)
    ]


@pytest.mark.parametrize("api", APIS)
async def test_the_plan_tool_is_offered_if_enabled_and_each_change_is_shown(
    parley_model: ScriptedModel, api: Api
) -> None:
    first, second = _plan_calls({"explanation": "why", "plan": STEPS_SENT}, {"plan": STEPS_SENT[:1]})
    parley_model.says(first)
    parley_model.says(second)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go", **{"include-plan-tool": True})
        messages = await wire.answer(1)

    session = wire.sessions[0]
    with_plan = offered(
        api, settings(approval_policy="never", sandbox_mode="danger-full-access", include_plan_tool=True)
    )
    updates = (
        PlanUpdate(explanation="why", plan=STEPS),
        SPENT,
        PlanUpdate(explanation=None, plan=STEPS[:1]),
    )
    assert messages == [
        *configured(1, session),
        *pairs(1, "1", *turn(api, *updates)),
        answered(1, "Done"),
    ]
    said: list[AskedFor] = [
        GO,
        *sent(first),
        Output("c1", "Plan updated"),
        *sent(second),
        Output("c2", "Plan updated"),
    ]
    assert [request.body for request in parley_model.requests] == [
        body(api, *said[:count], cwd=wire.work, session=session, tools=with_plan) for count in (1, 3, 5)
    ]
    names = [tool.get("function", tool)["name"] for tool in with_plan]
    assert names == ["shell", "apply_patch", "update_plan", "view_image"]


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_plan_is_taken_though_it_was_not_offered(parley_model: ScriptedModel, api: Api) -> None:
    [call] = _plan_calls({"plan": []})
    parley_model.says(call)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    session = wire.sessions[0]
    assert messages == [
        *configured(1, session),
        *pairs(1, "1", *turn(api, PlanUpdate(explanation=None, plan=()))),
        answered(1, "Done"),
    ]
    assert [request.body for request in parley_model.requests] == [
        body(api, GO, cwd=wire.work, session=session),
        body(api, GO, *sent(call), Output("c1", "Plan updated"), cwd=wire.work, session=session),
    ]
    names = [tool.get("function", tool)["name"] for tool in offered(api)]
    assert names == ["shell", "apply_patch", "view_image"]


BAD_PLANS = {
    "{}": "missing field `plan`",
    '{"plan": 7}': "invalid type: integer `7`, expected a sequence (plan)",
    '{"plan": [{"step": "x"}]}': "missing field `status` (plan[0])",
    '{"plan": [{"step": "x", "status": "later"}]}': (
        "unknown variant `later`, expected one of `pending`, `in_progress`, `completed` (plan[0].status)"
    ),
    '{"plan": [], "note": 1}': "unknown field `note`, expected `explanation` or `plan`",
    '{"plan": [{"step": "x", "status": "pending", "note": 1}]}': (
        "unknown field `note`, expected `step` or `status`"
    ),
    '{"plan": [], "explanation": 7}': "invalid type: integer `7`, expected a string (explanation)",
    "[]": "invalid type: sequence, expected a map (arguments)",
}


@pytest.mark.parametrize("api", EITHER_API)
async def test_a_plan_that_does_not_fit_is_explained_and_not_shown(parley_model: ScriptedModel, api: Api) -> None:
    calls = _plan_calls(*BAD_PLANS, "not JSON")
    parley_model.says(*calls)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go", **{"include-plan-tool": True})
        messages = await wire.answer(1)

    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *turn(api)), answered(1, "Done")]
    *explained, (_, unread) = outputs(parley_model)
    assert explained == [
        (f"c{number}", f"failed to parse function arguments: {detail}")
        for number, detail in enumerate(BAD_PLANS.values(), start=1)
    ]
    assert unread.startswith("failed to parse function arguments: arguments cannot be read: ")


# --- images --------------------------------------------------------------------------------

IMAGES = {
    "dot.png": ("image/png", PNG),
    "photo": ("image/jpeg", JPEG),
    "moving.gif": ("image/gif", GIF),
    "web.txt": ("image/webp", WEBP),
}
"""Images with their types. The type depends on the content, not on the name."""


def _plant_images(work: Path) -> None:
    for name, (_, content) in IMAGES.items():
        (work / name).write_bytes(content)


def _views(*paths: str) -> list[Call]:
    return [
        Call("view_image", json.dumps({"path": path}), f"c{number}") for number, path in enumerate(paths, start=1)
    ]


def _seen(api: Api, name: str) -> Any:
    """Return an image in the form that the model gets."""
    url = as_data_url(*IMAGES[name])
    if api == "chat":
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    image = {"type": "input_image", "image_url": url}
    return {"type": "message", "id": None, "role": "user", "content": [image]}


def _said(request: Any, api: Api) -> list[Any]:
    """Return the input of a request, beginning with the first message of the user."""
    return list(request["messages"][2:] if api == "chat" else request["input"][1:])


@pytest.mark.promises("image.view")
@pytest.mark.parametrize("api", APIS)
async def test_an_image_is_added_to_the_input_after_the_outputs_of_its_calls(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as wire:
        _plant_images(wire.work)
        seen = ("dot.png", str(wire.work / "photo"), "./moving.gif", "web.txt")
        calls = [*_views(*seen), Call("look", "{}", "c5")]
        parley_model.says(*calls)
        wire.codex(1, "go")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    assert first == [*configured(1, wire.sessions[0]), *pairs(1, "1", *turn(api)), answered(1, "Done")]
    assert second[-1] == answered(2, "Done")
    outputs = [*(f"The image {path} is attached." for path in seen), "unsupported call: look"]
    outcomes = [Output(f"c{number}", text) for number, text in enumerate(outputs, start=1)]
    paired = [item for pair in zip(sent(*calls), outcomes, strict=True) for item in pair]
    images = [_seen(api, name) for name in IMAGES]
    asked = [_said(request.body, api) for request in parley_model.requests]
    looked = [*history(api, GO, *paired), *images]
    assert asked == [
        history(api, GO),
        looked,
        [*looked, *history(api, Assistant("Done"), User("again"))],
    ]


@pytest.mark.parametrize("api", APIS)
async def test_the_model_reads_why_it_cannot_see_an_image(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as wire:
        work, home = wire.work, wire.raw.home
        (work / "notes.png").write_text("just words")
        (work / "folder").mkdir()
        os.mkfifo(work / "pipe.png")
        (work / "half.png").write_bytes(PNG[:-20])
        (work / "large.png").write_bytes(large_png(MAX_IMAGE_BYTES + 1))
        (home / "secret.png").write_bytes(PNG)
        (work / "way.png").symlink_to(home / "secret.png")
        whys = {
            "missing.png": "No such file or directory (os error 2)",
            "notes.png": "not a PNG, JPEG, GIF or WebP image",
            "half.png": "not a PNG, JPEG, GIF or WebP image",
            "folder": "Is a directory (os error 21)",
            "pipe.png": "not a regular file",
            "large.png": "larger than 20 MiB",
            str(home / "secret.png"): "access is not allowed",
            "way.png": "access is not allowed",
            "a\0.png": "not a valid file path",
        }
        calls = [*_views(*whys), Call("view_image", "{}", "c90"), Call("view_image", '{"path": 7}', "c91")]
        parley_model.says(*calls)
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages == [*configured(1, wire.sessions[0]), *pairs(1, "1", *turn(api)), answered(1, "Done")]
    assert outputs(parley_model) == [
        *((f"c{number}", f"{path}: {why}") for number, (path, why) in enumerate(whys.items(), start=1)),
        ("c90", "failed to parse function arguments: missing field `path`"),
        ("c91", "failed to parse function arguments: invalid type: integer `7`, expected a string (path)"),
    ]
    last = parley_model.requests[-1].body
    made = 1 if api == "chat" else len(calls)
    assert len(_said(last, api)) == 1 + made + len(calls)  # nothing follows the outputs


@pytest.mark.long
@pytest.mark.promises("send.room")
async def test_of_the_largest_images_the_newest_is_seen_and_words_stand_for_the_others(
    parley_model: ScriptedModel,
) -> None:
    image = large_png(MAX_IMAGE_BYTES)
    parley_model.says(*_views(*["large.png"] * 3))
    async with speaking(parley_model) as wire:
        (wire.work / "large.png").write_bytes(image)
        wire.codex(1, "go")
        await wire.answer(1)

    *left_out, newest = _said(parley_model.requests[-1].body, "chat")[-3:]
    words = "[Left out: an image, because newer images and files fill the request]"
    assert left_out == [{"role": "user", "content": words}] * 2
    assert newest["content"] == [{"type": "image_url", "image_url": {"url": as_data_url("image/png", image)}}]


async def test_looking_at_an_image_and_planning_need_no_approval(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        _plant_images(wire.work)
        for number, setting in enumerate(({"sandbox": "read-only"}, {"approval-policy": "untrusted"}), start=1):
            parley_model.says(*_views("dot.png"), Call("update_plan", '{"plan": []}', "c2"))
            wire.codex(number, "go", **setting)
            messages = await wire.answer(number)

            assert messages == [
                *configured(number, wire.sessions[-1]),
                *pairs(number, str(number), *turn("chat", PlanUpdate(explanation=None, plan=()))),
                answered(number, "Done"),
            ]
            assert outputs(parley_model) == [("c1", "The image dot.png is attached."), ("c2", "Plan updated")]
            assert _said(parley_model.requests[-1].body, "chat")[-1] == _seen("chat", "dot.png")
