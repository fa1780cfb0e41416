"""Limits as clients see them: approval requests, the effect of each answer, and older clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.approving import approving_client, events_of, settlements, types_of
from kit.clients.codex_calls import failed as call_failed
from kit.clients.messages import TOKEN_COUNT, error, task_complete
from kit.clients.shell_turns import sh
from kit.system.frozen_time import frozen_time
from parley.testing import HOLD, Call, ScriptedModel, Usage
from parley.wire.elicitation import FULL_SCHEMA
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

PLAN: Final = {"plan": [{"step": "look", "status": "pending"}]}


def plan(call_id: str) -> Call:
    """Return a call that needs no process."""
    return Call("update_plan", PLAN, call_id)


def limits(**sizes: float) -> str:
    return "\n".join(["[limits]", *(f"{name} = {size}" for name, size in sizes.items())])


def reached(limit: str, used: int, allowed: int) -> Any:
    return {"type": "limit_reached", "limit": limit, "used": used, "allowed": allowed}


def of_limits(messages: list[Any]) -> list[Any]:
    return [event for event in events_of(messages) if event["type"] == "limit_reached"]


def has_answer(request_id: int) -> Any:
    """Return whether a waiting call has its answer."""
    return lambda message: message.get("id") == request_id and "method" not in message


# --- asking ----------------------------------------------------------------------------------


@pytest.mark.promises("limits.asked", "limits.raised", "approvals.list")
async def test_a_newer_client_gets_an_approval_request_before_a_call_beyond_the_limit(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, config=limits(turn_calls=2)) as client:
        parley_model.says(plan("c1"), plan("c2"), plan("c3"))
        call = client.codex()
        messages = await client.until_asked()
        conversation = events_of(messages)[0]["session_id"]
        ((listed,),) = (await client.value_of(client.call("approvalsList", conversation_id=conversation))).values()
        client.answer(0, {"decision": "approved"})
        messages += await client.until(has_answer(call))

        fields = {
            "codex_elicitation": "limit",
            "codex_mcp_tool_call_id": str(call),
            "codex_event_id": str(call),
            "codex_call_id": "",
            "parley_approval_id": listed["approval_id"],
            "parley_conversation_id": conversation,
        }
        (asked,) = (one["params"] for one in messages if one.get("method") == "elicitation/create")
        text = "turn_calls reached (2 of 2). Go on?"
        assert asked == {"message": text, "requestedSchema": FULL_SCHEMA, **fields, "_meta": fields}
        assert {**listed, "asked_at": ""} == {
            "approval_id": listed["approval_id"],
            "conversation_id": conversation,
            "call_id": "",
            "kind": "limit",
            "message": text,
            "asked_at": "",
        }
        planned = ["plan_update", "plan_update", "limit_reached", "elicitation/create", "approval_settled"]
        assert types_of(messages)[3:9] == [*planned, "plan_update"]
        assert of_limits(messages) == [reached("turn_calls", 2, 2)]
        assert settlements(messages) == [{"decision": "approved", "by": "client"}]
        assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]

        # A turn begins without usage, and each approval allows the same number of calls again.
        parley_model.says(*(plan(f"d{number}") for number in range(5)))
        call = client.codex()
        messages = await client.until_asked()
        client.answer(1, {"decision": "approved_for_session"})
        messages += await client.until_asked()
        client.answer(2, {"decision": "approved"})
        messages += await client.until(has_answer(call))

        assert of_limits(messages) == [reached("turn_calls", 2, 2), reached("turn_calls", 4, 4)]
        assert types_of(messages).count("plan_update") == 5


@pytest.mark.promises("limits.counted")
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_tokens_are_counted_by_the_provider_or_else_estimated(parley_model: ScriptedModel, api: Any) -> None:
    async with approving_client(
        parley_model, version=FULL_VERSION, api=api, config=limits(turn_tokens=15)
    ) as client:
        parley_model.says(plan("c1"), Usage(input_tokens=30, output_tokens=5))
        call = client.codex()
        messages = await client.until_asked()
        assert len(parley_model.requests) == 1
        client.answer(0, {"decision": "denied"})
        *messages, answer = messages + await client.until(has_answer(call))

        (limit,) = of_limits(messages)
        assert (limit["limit"], limit["allowed"]) == ("turn_tokens", 15)
        assert limit["used"] == 35 if api == "responses" else limit["used"] > 35
        assert answer["result"]["error"] == "Limit reached: turn_tokens"


PRICES: Final = '[prices."scripted-model"]\ninput = 2\ncached_input = 0.5\ncache_write = 2.5\noutput = 10\n'


@pytest.mark.promises("limits.cost", "limits.asked", "limits.raised")
async def test_the_cost_is_shown_and_limited(parley_model: ScriptedModel) -> None:
    config = f"{PRICES}{limits(turn_cost=0.5)}"
    async with approving_client(parley_model, version=FULL_VERSION, api="anthropic", config=config) as client:
        usage = Usage(
            input_tokens=200_000, cached_input_tokens=100_000, cache_write_tokens=40_000, output_tokens=30_000
        )
        parley_model.says(plan("c1"), usage)
        parley_model.says("Done", Usage(input_tokens=1, output_tokens=0))
        call = client.codex()
        messages = await client.until_asked()
        (asked,) = (one["params"] for one in messages if one.get("method") == "elicitation/create")
        assert asked["message"] == "turn_cost reached (0.57 of 0.50). Go on?"
        client.answer(0, {"decision": "approved"})
        messages += await client.until(has_answer(call))
        conversation = events_of(messages)[0]["session_id"]
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

    assert of_limits(messages) == [reached("turn_cost", 570_000, 500_000)]
    counts = [event for event in events_of(messages) if event["type"] == "token_count"]
    assert [count["cost_micros"] for count in counts] == [570_000, 2]
    assert status["tokens"]["cost_micros"] == 570_002


@pytest.mark.promises("limits.cost")
@pytest.mark.parametrize(("version", "config"), [(PLAIN_VERSION, PRICES), (FULL_VERSION, "")])
async def test_no_cost_is_shown_to_older_clients_or_without_a_price(
    parley_model: ScriptedModel, version: str, config: str
) -> None:
    async with approving_client(parley_model, version=version, api="anthropic", config=config) as client:
        call = client.codex()
        messages = await client.until(has_answer(call))
        conversation = next(
            event["session_id"] for event in events_of(messages) if event["type"] == "session_configured"
        )
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

    (count,) = (event for event in events_of(messages) if event["type"] == "token_count")
    assert count == TOKEN_COUNT
    assert status["tokens"] == {name: value for name, value in TOKEN_COUNT.items() if name != "type"}


@pytest.mark.promises("limits.cost")
@pytest.mark.parametrize("limit", ["turn_cost", "conversation_cost"])
async def test_a_limit_on_the_cost_of_a_model_without_a_price_is_reported(
    parley_model: ScriptedModel, limit: str
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, config=limits(**{limit: 0.5})) as client:
        messages = await client.until(has_answer(client.codex()))

    (notice,) = (event for event in events_of(messages) if event["type"] == "background_event")
    assert notice["message"] == (
        "The price of the model scripted-model is unknown, so limits.turn_cost and limits.conversation_cost have "
        "no effect. Set prices.scripted-model.input and prices.scripted-model.output."
    )


@pytest.mark.promises("limits.counted")
@pytest.mark.parametrize("how", ["interrupted", "broken off"])
async def test_a_response_that_did_not_end_is_counted_too(parley_model: ScriptedModel, how: str) -> None:
    config = limits(conversation_tokens=50)
    async with approving_client(parley_model, version=FULL_VERSION, config=config) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        if how == "interrupted":
            parley_model.says("One", HOLD)
        else:
            parley_model.cuts("One")
        await client.say(conversation, "long " * 100)
        await client.until_method("agent_message_delta")
        if how == "interrupted":
            await client.interrupt(conversation)
        else:
            await client.until_method("task_complete")

        await client.say(conversation, "more")
        (limit,) = of_limits(await client.until_asked())
        assert (limit["limit"], limit["allowed"], len(parley_model.requests)) == ("conversation_tokens", 50, 1)
        assert limit["used"] > 100


@pytest.mark.promises("limits.counted")
async def test_time_is_looked_at_between_steps(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, config=limits(turn_seconds=1)) as client:
        parley_model.says(sh("c1", "sleep 1"), plan("c2"))
        with frozen_time():
            call = client.codex(**{"approval-policy": "never"})
            messages = await client.until_method("exec_command_begin")
        messages += await client.until_asked()
        client.answer(0, {"decision": "approved"})
        messages += await client.until(has_answer(call))

        assert [(one["limit"], one["allowed"]) for one in of_limits(messages)] == [("turn_seconds", 1)]
        kinds = types_of(messages)
        assert kinds.index("exec_command_end") < kinds.index("limit_reached") < kinds.index("plan_update")
        assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.promises("limits.answers")
async def test_a_no_ends_the_turn_and_an_abort_interrupts_it(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, config=limits(turn_calls=1)) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        endings: list[Any] = [
            ({"decision": "denied", "reason": "too dear"}, "Limit reached: turn_calls", ["error", "task_complete"]),
            ({"action": "decline"}, "Limit reached: turn_calls", ["error", "task_complete"]),
            ({"decision": "abort"}, " Turn interrupted", ["error"]),
        ]
        for number, (answer, message, ends) in enumerate(endings):
            parley_model.says(plan(f"a{number}"), plan(f"b{number}"))
            await client.say(conversation, "go")
            await client.until_asked()
            client.answer(number, answer)
            messages = [*await client.until_method("error"), *await client.meanwhile()]

            (error,) = [one for one in events_of(messages) if one["type"] == "error"]
            assert (error["message"], error["reason"]) == (
                message,
                "interrupted" if ends == ["error"] else "failed",
            )
            assert types_of(messages) == ["approval_settled", *ends]
            assert len(parley_model.requests) == number + 1

        await client.say(conversation, "and now?")
        await client.until_method("task_complete")
        error = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
        assert error == ["Plan updated", "aborted"] * 3


# --- older clients ---------------------------------------------------------------------------


@pytest.mark.promises("limits.plain")
async def test_an_older_client_sees_the_turn_end_instead(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=PLAIN_VERSION, config=limits(turn_calls=1)) as client:
        parley_model.says(plan("c1"), plan("c2"))
        call = client.codex()
        messages = await client.until(has_answer(call))

        assert types_of(messages)[2:] == ["plan_update", "error", "task_complete", "answer"]
        assert events_of(messages)[3:] == [error("Limit reached: turn_calls"), task_complete(None)]
        assert messages[-1] == call_failed(call, "Limit reached: turn_calls")

        conversation = await client.create()
        await client.open_stream(conversation)
        parley_model.says(plan("c3"), plan("c4"))
        await client.say(conversation, "go")
        messages = await client.until_method("task_complete")

        assert types_of(messages) == ["task_started", "plan_update", "error", "task_complete"]

        unread = await client.create()
        parley_model.says(plan("c5"), plan("c6"))
        await client.say(unread, "go")
        client.stream(unread)
        messages = await client.until_method("notifications/initial_state")
        shown = [one["msg"]["type"] for one in messages[-1]["params"]["initial_state"]["events"]]
        while "task_complete" not in shown:
            shown.append((await client.read())["method"])

        assert shown == ["task_started", "plan_update", "error", "task_complete"]


@pytest.mark.promises("limits.plain")
async def test_clients_of_another_process_count_as_those_of_the_one_that_runs_the_turn(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home, config = tmp_path / "home", limits(turn_calls=1)
    async with (
        approving_client(parley_model, version=PLAIN_VERSION, home=home, config=config) as older,
        approving_client(parley_model, version=FULL_VERSION, home=home, config=config) as newer,
    ):
        conversation = await older.create()
        await older.open_stream(conversation)
        stream, _ = await newer.open_stream(conversation)
        parley_model.says(HOLD, plan("c1"), plan("c2"))
        await older.say(conversation, "go")
        await parley_model.wait_until_held()
        joins = newer.message(conversation, "and this")
        await newer.until_answer(joins)  # from now on, the other process knows the readers of this process
        parley_model.release()
        *_, asked = await newer.until_asked()
        newer.answer(asked["id"], {"decision": "approved"})

        assert "error" not in types_of(await older.until_method("task_complete"))

        await newer.until_method("task_complete")
        newer.cancel(stream)
        parley_model.says(plan("c3"), plan("c4"))
        await newer.say(conversation, "again")

        assert error("Limit reached: turn_calls") in events_of(await older.until_method("task_complete"))


# --- crashes -------------------------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("limits.survive")
async def test_an_approval_outlives_its_server_and_what_was_agreed_holds_for_the_conversation(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    config = limits(turn_calls=1, conversation_tokens=30)
    async with approving_client(
        parley_model, version=FULL_VERSION, api="responses", config=config, home=home
    ) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        parley_model.says(plan("c1"), plan("c2"), Usage(input_tokens=0, output_tokens=0))
        await client.say(conversation, "go")
        (asked,) = (one for one in await client.until_asked() if one.get("method") == "elicitation/create")
        client.raw.kill()
        await client.raw.exit_code()

    async with approving_client(
        parley_model, version=FULL_VERSION, api="responses", config=config, home=home
    ) as client:
        parley_model.says("Done", Usage(input_tokens=25, output_tokens=5))
        client.stream(conversation)
        *_, again = await client.until_asked()
        assert again["params"]["parley_approval_id"] == asked["params"]["parley_approval_id"]
        client.answer(again["id"], {"decision": "approved"})
        messages = await client.until_method("task_complete")
        assert events_of(messages)[-1] == task_complete("Done")
        assert types_of(messages).count("plan_update") == 1

        await client.say(conversation, "more")
        messages = await client.until_asked()
        assert of_limits(messages) == [reached("conversation_tokens", 30, 30)]
        client.answer(messages[-1]["id"], {"decision": "approved"})
        await client.until_method("task_complete")

    async with approving_client(
        parley_model, version=FULL_VERSION, api="responses", config=config, home=home
    ) as client:
        await client.open_stream(conversation)
        parley_model.says("Done", Usage(input_tokens=10, output_tokens=5))
        await client.say(conversation, "and more")
        assert events_of(await client.until_method("task_complete"))[-1] == task_complete("Done")

        await client.say(conversation, "still more")
        assert of_limits(await client.until_asked()) == [reached("conversation_tokens", 60, 60)]
