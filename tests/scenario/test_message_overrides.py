"""Settings in a message: they apply from that message on, and invalid settings change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from kit.builders.tools import offered
from kit.clients.codex_calls import AskedFor, Assistant, CallSent, Output, User, body, history
from kit.clients.messages import APIS, EITHER_API, answered, failed, without_code
from kit.clients.wire_client import WireClient, speaking
from kit.models.raw_provider import settings
from kit.system.needs import SANDBOX
from parley.config.types import ApprovalPolicy, SandboxMode
from parley.testing import HOLD, Call, Data, ScriptedModel
from parley.testing.home import MODEL
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION

both_apis = pytest.mark.parametrize("api", APIS)

M1, M2, M3 = (str(UUID(int=number)) for number in range(1, 4))

PROFILES: Final = """
[profiles.fast]
model = "fast-model"

[profiles.asking]
approval_policy = "on-request"
"""


def bodies(model: ScriptedModel) -> list[Any]:
    return [request.body for request in model.requests]


def allowed(
    api: Api, request: Any, *, cwd: Path, policy: ApprovalPolicy = "never", mode: SandboxMode = "danger-full-access"
) -> Any:
    """Return the environment and the tools of a request under these settings."""
    network = "enabled" if mode == "danger-full-access" else "restricted"
    words = (
        f"<environment_context>\n\nCurrent working directory: {cwd}\nApproval policy: {policy}\n"
        f"Sandbox policy: {mode}\nNetwork access: {network}\n\n\n</environment_context>"
    )
    said = "messages" if api == "chat" else "input"
    place = 1 if api == "chat" else 0
    items = [*request[said][:place], *history(api, User(words)), *request[said][place + 1 :]]
    tools = offered(api, settings(approval_policy=policy, sandbox_mode=mode))
    return {**request, said: items, "tools": tools}


async def status(client: WireClient, conversation: str) -> tuple[str, str]:
    value = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
    return value["model"], value["cwd"]


# --- valid overrides ---------------------------------------------------------------------------


@both_apis
async def test_each_override_holds_from_its_message_on_and_stays(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api, config=PROFILES) as client:
        work = client.work
        other = work.parent / "other"

        cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
            ({"model": "other-model"}, {"model": "other-model"}, {}),
            ({"profile": "fast"}, {"model": "fast-model"}, {}),
            ({"config": {"model": "configured"}}, {"model": "configured"}, {}),
            ({"base_instructions": "Be brief."}, {"instructions": "Be brief."}, {}),
            ({"base_instructions": ""}, {"instructions": ""}, {}),
            ({"cwd": str(other)}, {}, {"cwd": other}),
            ({"approval_policy": "on-failure"}, {}, {"policy": "on-failure"}),
            ({"profile": "asking", "sandbox": "read-only"}, {}, {"policy": "on-request", "mode": "read-only"}),
            ({"sandbox": "workspace-write"}, {}, {"mode": "workspace-write"}),
            ({"config": {"sandbox_mode": "read-only"}}, {}, {"mode": "read-only"}),
        ]
        for overrides, changes, under in cases:
            parley_model.requests.clear()
            conversation = await client.create()
            await client.say(conversation, "one")
            await client.over(conversation)
            before = await status(client, conversation)
            await client.say(conversation, "two", **overrides)
            await client.over(conversation)
            await client.say(conversation, "three")
            await client.over(conversation)

            one = (User("one"), Assistant("Done"), User("two"))
            first = body(api, one[0], cwd=work, session=conversation)
            later = [
                allowed(api, body(api, *items, cwd=work, session=conversation, **changes), **{"cwd": work, **under})
                for items in (one, (*one, Assistant("Done"), User("three")))
            ]
            assert bodies(parley_model) == [first, *later], overrides
            assert before == (MODEL, str(work))
            now = changes.get("model", MODEL), str(under.get("cwd", work))
            assert await status(client, conversation) == now, overrides


async def test_the_last_message_that_says_something_of_a_setting_decides_it(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, config=PROFILES) as client:
        conversation = await client.create()
        said: list[dict[str, Any]] = [
            {"profile": "fast"},
            {"config": {"model": "configured"}},
            {"model": "named"},
            {"config": {"project_doc_max_bytes": 0}},
            {"config": {"model": "configured"}},
            {"profile": "fast", "model": "named"},
            {"profile": "fast"},
        ]
        for overrides in said:
            await client.say(conversation, "go", **overrides)
            await client.over(conversation)

        assert [request.body["model"] for request in parley_model.requests] == [
            "fast-model",
            "configured",
            "named",
            "named",
            "configured",
            "named",
            "fast-model",
        ]


@SANDBOX
async def test_commands_run_where_and_as_the_newest_message_says(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        other = client.work / "other"
        other.mkdir()
        conversation = await client.create()
        await client.open_stream(conversation)
        ran: list[str] = []
        outputs: list[str] = []
        for overrides in ({}, {"cwd": str(other)}, {"sandbox": "read-only"}, {"sandbox": "danger-full-access"}):
            parley_model.says(Call("shell", {"command": ["sh", "-c", "pwd; touch proof"]}, "c1"))
            await client.say(conversation, "where?", **overrides)
            events = await client.until_method("task_complete")
            ran += [one["params"]["msg"]["stdout"] for one in events if one["method"] == "exec_command_end"]
            outputs.append(parley_model.requests[-1].body["messages"][-1]["content"])

        assert ran == [f"{client.work}\n", f"{other}\n", "", f"{other}\n"]
        assert [json.loads(one)["output"] for one in (outputs[0], outputs[1], outputs[3])] == [
            ran[0],
            ran[1],
            ran[3],
        ]
        assert outputs[2].startswith(
            "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1, "
            f"stdout: {other}\n, stderr: touch: "
        )


@pytest.mark.parametrize("api", EITHER_API)
async def test_overrides_of_input_that_joins_hold_from_the_next_turn_on(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, api=api) as client:
        conversation = await client.create()
        parley_model.says("One.", HOLD)
        await client.say(conversation, "one")
        await parley_model.wait_until_held()
        await client.say(conversation, "two", model="other-model", cwd="/elsewhere", base_instructions="Be brief.")
        shown = await status(client, conversation)
        parley_model.release()
        await client.over(conversation)
        await client.say(conversation, "three")
        await client.over(conversation)

        items = (User("one"), Assistant("One."), User("two"))
        changed = {"model": "other-model", "instructions": "Be brief."}
        assert shown == ("other-model", "/elsewhere")
        assert bodies(parley_model) == [
            body(api, items[0], cwd=client.work, session=conversation),
            body(api, *items, cwd=client.work, session=conversation),
            body(
                api,
                *items,
                Assistant("Done"),
                User("three"),
                cwd=Path("/elsewhere"),
                session=conversation,
                **changed,
            ),
        ]


# --- invalid overrides -------------------------------------------------------------------------

POLICIES: Final = "expected one of `untrusted`, `on-failure`, `on-request`, `never`"
PARSING: Final = "Failed to parse arguments for conversationSendMessage: "

REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"model": 5}, f"{PARSING}invalid type: integer `5`, expected a string (model)"),
    ({"cwd": ["/"]}, f"{PARSING}invalid type: sequence, expected a string (cwd)"),
    ({"approval_policy": "ask"}, f"{PARSING}unknown variant `ask`, {POLICIES} (approval_policy)"),
    (
        {"sandbox": "none"},
        f"{PARSING}unknown variant `none`, expected one of "
        "`read-only`, `workspace-write`, `danger-full-access` (sandbox)",
    ),
    ({"config": "model=x"}, f'{PARSING}invalid type: string "model=x", expected a map (config)'),
    ({"profile": True}, f"{PARSING}invalid type: boolean `true`, expected a string (profile)"),
    ({"base_instructions": {}}, f"{PARSING}invalid type: map, expected a string (base_instructions)"),
    ({"profile": "none"}, "config profile `none` not found"),
    ({"config": {"model_provider": "none"}}, "Model provider `none` not found"),
    (
        {"config": {"approval_policy": "ask"}},
        f"config argument: `approval_policy`: unknown variant `ask`, {POLICIES}",
    ),
    ({"model": "nul\0"}, '`model`: invalid value: string "nul\\u0000", expected a string without NUL'),
    (
        {"config": {"model_context_window": 0}},
        "config argument: `model_context_window`: invalid value: integer `0`, "
        "expected an integer from 1 to 9223372036854775807",
    ),
    ({"model": "fine", "profile": "none"}, "config profile `none` not found"),
]


@pytest.mark.parametrize("runs", [False, True], ids=["idle", "running"])
async def test_values_that_do_not_fit_are_refused_and_change_nothing(
    parley_model: ScriptedModel, runs: bool
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        if runs:
            parley_model.says("One.", HOLD)
            await client.say(conversation, "one")
            await parley_model.wait_until_held()

        async def all_there_is() -> Any:
            return await client.value_of(client.call("conversationRead", conversation_id=conversation))

        before = await all_there_is()
        for overrides, expected in REFUSED:
            request = client.message(conversation, "two", message_id=M1, **overrides)
            assert without_code(await client.read()) == failed(request, expected), overrides
        assert await all_there_is() == before
        assert await status(client, conversation) == (MODEL, str(client.work))

        # The refused message has not used the id, so another message can use it.
        request = client.message(conversation, "something else", message_id=M1)
        assert await client.read() == answered(request, {"status": "ok", "message_id": M1})
        if runs:
            parley_model.release()
        await client.over(conversation)
        last = (User("one"), Assistant("One."), User("something else")) if runs else (User("something else"),)
        assert bodies(parley_model)[-1] == body("chat", *last, cwd=client.work, session=conversation)


async def test_a_message_that_was_taken_before_changes_no_settings(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.say(conversation, "one", message_id=M1, model="first")
        await client.over(conversation)
        request = client.message(conversation, "one", message_id=M1, model="second", cwd="/elsewhere")

        assert await client.read() == answered(request, {"status": "ok", "message_id": M1})
        assert await status(client, conversation) == ("first", str(client.work))
        assert len(parley_model.requests) == 1


# --- from one model API to the other ---------------------------------------------------


async def test_a_history_goes_from_one_api_to_the_other_and_back(parley_model: ScriptedModel) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ENC"}
    thinks = Data(json.dumps({"type": "response.output_item.done", "item": thought}))
    async with speaking(parley_model, api="responses") as client:
        conversation = await client.create()
        parley_model.says(thinks, "Looking.", Call("look", '{"at": 1}', "c1"), Call("look", '{"at": 2}', "c2"))
        parley_model.says("One.")
        parley_model.says("Again.", Call("look", '{"at": 3}', "c1"))
        parley_model.says("Two.")
        parley_model.says("Three.")
        for words, provider in (("one", "responses"), ("two", "chat"), ("three", "responses"), ("four", "chat")):
            await client.say(conversation, words, config={"model_provider": provider})
            await client.over(conversation)

        def sent(api: Api, *items: AskedFor) -> Any:
            return body(api, *items, cwd=client.work, session=conversation)

        no = "unsupported call: look"
        looked = (
            Assistant("Looking."),
            CallSent("c1", "look", '{"at": 1}', "fc_2"),
            Output("c1", no),
            CallSent("c2", "look", '{"at": 2}', "fc_3", same_response=True),
            Output("c2", no),
        )
        one = (User("one"), *looked)
        two = (*one, Assistant("One."), User("two"))
        again = (*two, Assistant("Again.", None), CallSent("c1", "look", '{"at": 3}'), Output("c1", no))
        three = (*again, Assistant("Two.", None), User("three"))
        four = (*three, Assistant("Three."), User("four"))
        answers = [
            sent("responses", User("one")),
            sent("responses", *one),
            sent("chat", *two),
            sent("chat", *again),
        ]
        answers += [sent("responses", *three), sent("chat", *four)]
        for back in (answers[1], answers[4]):
            back["input"].insert(2, thought)
        made_over_chat = next(item for item in answers[4]["input"] if item.get("arguments") == '{"at": 3}')
        made_over_chat["id"] = None  # a call over the chat API has no item id
        assert bodies(parley_model) == answers
