"""The tools `update_plan` and `view_image`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.builders.images import PNG, large_png
from kit.builders.records import call
from kit.builders.transcript import Appended, RecordingTranscript
from kit.models.raw_provider import settings
from parley.config.types import Sandbox
from parley.conversation.records import InputRead
from parley.errors import ToolError
from parley.ports.tools import Action, ToolContext, Verdict
from parley.tools.tool import Tool
from parley.tools.update_plan import UpdatePlan
from parley.tools.view_image import ViewImage
from parley.wire.events import PlanStep, PlanUpdate
from parley.wire.images import MAX_IMAGE_BYTES, data_url
from parley.wire.items import ImageItem


async def no_authorization(action: Action) -> Verdict:
    raise AssertionError(f"no need to ask for {action}")


def context(transcript: RecordingTranscript, **changes: Any) -> ToolContext:
    return ToolContext(settings=settings(**changes), transcript=transcript, authorize=no_authorization)


async def output_of(tool: Tool, arguments: str) -> str:
    """Return the output for the model, which is a result or an error."""
    async with asyncio.timeout(90):
        try:
            return await tool.run(call("c1", arguments, name=tool.names[0]))
        except ToolError as error:
            return str(error)


# --- update_plan -----------------------------------------------------------------------------


async def test_a_plan_is_shown_with_its_explanation() -> None:
    transcript = RecordingTranscript()

    answer = await output_of(
        UpdatePlan(context(transcript)),
        '{"explanation": "why", "plan": [{"step": "one", "status": "completed"},'
        ' {"step": "two", "status": "in_progress"}, {"step": "three", "status": "pending"}]}',
    )

    assert answer == "Plan updated"
    plan = (
        PlanStep(step="one", status="completed"),
        PlanStep(step="two", status="in_progress"),
        PlanStep(step="three", status="pending"),
    )
    assert transcript.did == [Appended((PlanUpdate(explanation="why", plan=plan),))]


@pytest.mark.parametrize("arguments", ['{"plan": []}', '{"plan": [], "explanation": null}'])
async def test_a_plan_needs_no_explanation_and_no_steps(arguments: str) -> None:
    transcript = RecordingTranscript()

    assert await output_of(UpdatePlan(context(transcript)), arguments) == "Plan updated"
    assert transcript.did == [Appended((PlanUpdate(explanation=None, plan=()),))]


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (
            '{"plan": [{"step": "x", "status": "later"}]}',
            "unknown variant `later`, expected one of `pending`, `in_progress`, `completed` (plan[0].status)",
        ),
        ('{"plan": [], "note": 1}', "unknown field `note`, expected `explanation` or `plan`"),
        (
            '{"plan": [{"step": "x", "status": "pending", "by": "me"}]}',
            "unknown field `by`, expected `step` or `status`",
        ),
        ('{"plan": [{"step": "x"}]}', "missing field `status` (plan[0])"),
        ('{"plan": ["x"]}', 'invalid type: string "x", expected a map (plan[0])'),
        ('{"plan": [[]]}', "invalid type: sequence, expected a map (plan[0])"),
        ("{}", "missing field `plan`"),
        ('{"plan": null}', "invalid type: null, expected a sequence (plan)"),
        ('{"plan": [], "explanation": 1}', "invalid type: integer `1`, expected a string (explanation)"),
        ("null", "invalid type: null, expected a map (arguments)"),
        ("", "arguments cannot be read: Input data was truncated"),
        ('{"plan": [], "' + "k" * 200 + '": 1}', f"unknown field `{'k' * 100}…`, expected `explanation` or `plan`"),
    ],
)
async def test_a_plan_that_does_not_fit_is_explained_and_not_shown(arguments: str, detail: str) -> None:
    transcript = RecordingTranscript()

    answer = await output_of(UpdatePlan(context(transcript)), arguments)

    assert answer == f"failed to parse function arguments: {detail}"
    assert transcript.did == []


async def test_half_a_surrogate_pair_in_a_step_is_shown_as_a_replacement_character() -> None:
    transcript = RecordingTranscript()

    await output_of(UpdatePlan(context(transcript)), '{"plan": [{"step": "\\udc00", "status": "pending"}]}')

    assert transcript.did == [
        Appended((PlanUpdate(explanation=None, plan=(PlanStep(step="�", status="pending"),)),))
    ]


def test_the_plan_is_offered_only_where_the_client_wants_it() -> None:
    assert UpdatePlan(context(RecordingTranscript())).spec() is None
    spec = UpdatePlan(context(RecordingTranscript(), include_plan_tool=True)).spec()

    assert spec is not None
    assert spec.name == "update_plan"
    assert spec.parameters["required"] == ["plan"]
    assert spec.parameters["additionalProperties"] is False
    steps = spec.parameters["properties"]["plan"]["items"]
    assert (steps["required"], steps["additionalProperties"]) == (["step", "status"], False)
    assert steps["properties"]["status"]["enum"] == ["pending", "in_progress", "completed"]


# --- view_image ------------------------------------------------------------------------------


def path_argument(path: str | Path) -> str:
    return msgspec.json.encode({"path": str(path)}).decode()


async def test_an_image_is_given_to_the_model_as_input(tmp_path: Path) -> None:
    (tmp_path / "shot.dat").write_bytes(PNG)
    transcript = RecordingTranscript()

    answer = await output_of(ViewImage(context(transcript, cwd=str(tmp_path))), path_argument("shot.dat"))

    assert answer == "The image shot.dat is attached."
    assert transcript.did == [Appended((InputRead(content=(ImageItem(image_url=data_url(PNG)),)),))]


async def test_an_image_may_lie_anywhere_and_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    (tmp_path / "link").symlink_to("shot.png")
    transcript = RecordingTranscript()

    await output_of(ViewImage(context(transcript, cwd="/nonexistent")), path_argument(tmp_path / "link"))

    assert transcript.did == [Appended((InputRead(content=(ImageItem(image_url=data_url(PNG)),)),))]


async def test_an_image_may_be_exactly_as_large_as_the_limit(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(large_png(MAX_IMAGE_BYTES))
    transcript = RecordingTranscript()

    assert (
        await output_of(ViewImage(context(transcript)), path_argument(large)) == f"The image {large} is attached."
    )
    os.truncate(large, MAX_IMAGE_BYTES + 1)
    assert await output_of(ViewImage(context(transcript)), path_argument(large)) == f"{large}: larger than 20 MiB"

    assert len(transcript.did) == 1


async def test_a_file_that_is_not_an_image_is_not_sent_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("words\n")
    (tmp_path / "empty.png").touch()
    (tmp_path / "half.png").write_bytes(PNG[: len(PNG) // 2])
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    transcript = RecordingTranscript()
    tool = ViewImage(context(transcript, cwd=str(tmp_path)))

    answers = {
        name: await output_of(tool, path_argument(name))
        for name in ("notes.png", "empty.png", "half.png", "folder.png", "pipe.png", "gone.png", "a\0b", "x" * 300)
    }

    assert answers == {
        "notes.png": "notes.png: not a PNG, JPEG, GIF or WebP image",
        "empty.png": "empty.png: not a PNG, JPEG, GIF or WebP image",
        "half.png": "half.png: not a PNG, JPEG, GIF or WebP image",
        "folder.png": "folder.png: Is a directory (os error 21)",
        "pipe.png": "pipe.png: not a regular file",
        "gone.png": "gone.png: No such file or directory (os error 2)",
        "a\0b": "a\0b: not a valid file path",
        "x" * 300: f"{'x' * 300}: File name too long (os error 36)",
    }
    assert transcript.did == []


async def test_images_where_secrets_lie_are_not_given_to_the_model(tmp_path: Path) -> None:
    person, home, work = tmp_path / "person", tmp_path / "parley", tmp_path / "work"
    hidden = [home / "sessions" / "shot.png", person / ".ssh" / "shot.png", person / ".netrc"]
    open_to_all = [person / ".netrc.png", person / ".sshot.png", work / "shot.png"]
    for path in (*hidden, *open_to_all):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG)
    (tmp_path / "keys").symlink_to(person / ".ssh")
    (work / "link.png").symlink_to(hidden[1])
    (work / "folder").symlink_to(home)
    by_detour = ["link.png", "folder/sessions/shot.png", "../parley/./sessions/shot.png"]
    sandbox = Sandbox(hidden_paths=(str(home), str(tmp_path / "keys"), str(person / ".netrc")))
    transcript = RecordingTranscript()
    tool = ViewImage(context(transcript, cwd=str(work), sandbox=sandbox))

    for name in (*map(str, hidden), *by_detour):
        assert await output_of(tool, path_argument(name)) == f"{name}: access is not allowed"
    assert transcript.did == []

    for path in open_to_all:
        assert await output_of(tool, path_argument(path)) == f"The image {path} is attached."


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{}", "missing field `path`"),
        ('{"path": 1}', "invalid type: integer `1`, expected a string (path)"),
        ("{", "arguments cannot be read: Input data was truncated"),
    ],
)
async def test_arguments_that_name_no_image_are_explained(arguments: str, detail: str) -> None:
    transcript = RecordingTranscript()

    answer = await output_of(ViewImage(context(transcript)), arguments)

    assert answer == f"failed to parse function arguments: {detail}"
    assert transcript.did == []


def test_seeing_images_is_offered_with_one_argument() -> None:
    spec = ViewImage(context(RecordingTranscript())).spec()

    assert spec.name == "view_image"
    assert list(spec.parameters["properties"]) == spec.parameters["required"] == ["path"]
    assert spec.parameters["additionalProperties"] is False
