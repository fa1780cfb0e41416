"""Several calls in one response: they run in order after its end, and each gets exactly one output."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.codex_calls import (
    APIS,
    EITHER_API,
    AskedFor,
    Assistant,
    Output,
    User,
    events_in,
    history,
    interrupted,
    is_event,
    speaking,
)
from kit.clients.messages import TASK_STARTED, TOKEN_COUNT, agent_message, answered, delta, error, task_complete
from kit.clients.shell_turns import (
    Gate,
    asked,
    begun,
    ended,
    gathered,
    output,
    ran,
    sent,
    sh,
    shell,
    turn,
    unended,
    whole_turn,
)
from kit.clients.wire_client import speaking as talking
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.render import Api

both_apis = pytest.mark.parametrize("api", APIS)
either_api = pytest.mark.parametrize("api", EITHER_API)

INTERRUPTED: Final = error(" Turn interrupted")


def done(api: Api) -> list[Any]:
    """Return the events at the end of a completed turn."""
    return whole_turn(api)[-3 - (api == "responses") :]


# --- order -------------------------------------------------------------------------------------


@pytest.mark.promises("calls.in-order")
@either_api
async def test_calls_run_one_after_another_when_the_response_has_ended_and_not_before(
    parley_model: ScriptedModel, api: Api
) -> None:
    first, second = sh("c1", "echo one > proof; echo first"), shell("c2", "cat", "proof")
    parley_model.says("Now ", first, "this.", HOLD, second)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        # The call precedes this text, so the server has received the call.
        before = await wire.until(lambda one: is_event("agent_message_delta")(one) and "this." in str(one))
        before += await wire.silence()
        at_the_hold = [*wire.work.iterdir()]
        parley_model.release()
        after = await wire.answer(1)

        calls = [
            begun("c1", "sh", "-c", "echo one > proof; echo first", cwd=wire.work),
            output("c1", "first\n"),
            ended("c1", "first\n"),
            begun(
                "c2", "cat", "proof", cwd=wire.work, parsed=[{"Read": {"cmd": ["cat", "proof"], "name": "proof"}}]
            ),
            output("c2", "one\n"),
            ended("c2", "one\n"),
        ]
        outputs = (
            sent(first, item=2),
            Output("c1", ran("first\n")),
            sent(second, item=4),
            Output("c2", ran("one\n")),
        )
        assert at_the_hold == []
        assert (events_in(before)[1:], gathered(events_in(after))) == (
            (
                [TASK_STARTED, delta("Now "), delta("this.")],
                [agent_message("Now this."), *calls, *done("chat")],
            )
            if api == "chat"
            else (
                [TASK_STARTED, delta("Now "), agent_message("Now "), delta("this.")],
                [agent_message("this."), *calls, TOKEN_COUNT, *done("responses")],
            )
        )
        texts = [Assistant("Now this.")] if api == "chat" else [Assistant("Now "), Assistant("this.", "msg_3")]
        said: list[AskedFor] = [User("go"), texts[0], *outputs[:2], *texts[1:], *outputs[2:]]
        assert asked(parley_model.requests[1]) == history(api, *said)


@pytest.mark.promises("calls.answered-once")
@both_apis
async def test_good_and_bad_calls_of_one_response_are_each_answered_in_their_place(
    parley_model: ScriptedModel, api: Api
) -> None:
    calls = (
        shell("c1", "echo", "one"),
        Call("shell", '{"command": ["touch", "proof"', "c2"),
        shell("c3", "sleep", "1000", timeout=200),
        Call("no_such_tool", "{}", "c4"),
        shell("c5", "no-such-program-here"),
        shell("c6", "sh", "-c", "kill -9 $$"),
        shell("c7", "echo", "seven"),
    )
    async with speaking(parley_model) as wire:
        seen = await turn(wire, *calls, api=api)

        not_there = "No such file or directory (os error 2)"
        assert seen.events == whole_turn(
            api,
            begun("c1", "echo", "one", cwd=wire.work),
            output("c1", "one\n"),
            ended("c1", "one\n"),
            begun("c3", "sleep", "1000", cwd=wire.work),
            unended("c3", "sandbox error: command timed out"),
            begun("c5", "no-such-program-here", cwd=wire.work),
            unended("c5", not_there),
            begun("c6", "sh", "-c", "kill -9 $$", cwd=wire.work),
            unended("c6", "sandbox error: command was killed by a signal"),
            begun("c7", "echo", "seven", cwd=wire.work),
            output("c7", "seven\n"),
            ended("c7", "seven\n"),
        )
        texts = (
            ran("one\n"),
            "failed to parse function arguments: arguments cannot be read: Input data was truncated",
            "failed in sandbox None with execution error: command timed out",
            "unsupported call: no_such_tool",
            f"execution error: {not_there}",
            "failed in sandbox None with execution error: command was killed by a signal",
            ran("seven\n"),
        )
        answers = [
            one
            for place, (call, text) in enumerate(zip(calls, texts, strict=True), 1)
            for one in (sent(call, item=place), Output(f"c{place}", text))
        ]
        assert seen.asked == history(api, User("go"), *answers)


@pytest.mark.promises("calls.answered-once")
@both_apis
async def test_calls_that_share_an_id_have_their_output_directly_after_each(
    parley_model: ScriptedModel, api: Api
) -> None:
    calls = [shell("same", "echo", word) for word in ("one", "two", "three")]
    async with speaking(parley_model) as wire:
        seen = await turn(wire, *calls, api=api)

        events = [
            event
            for word in ("one", "two", "three")
            for event in (
                begun("same", "echo", word, cwd=wire.work),
                output("same", f"{word}\n"),
                ended("same", f"{word}\n"),
            )
        ]
        assert seen.events == whole_turn(api, *events)
        answers = [
            one
            for place, (call, word) in enumerate(zip(calls, ("one", "two", "three"), strict=True), 1)
            for one in (sent(call, item=place), Output("same", ran(f"{word}\n")))
        ]
        assert seen.asked == history(api, User("go"), *answers)


async def test_calls_of_many_responses_each_stand_before_the_next_response(parley_model: ScriptedModel) -> None:
    calls = [sh(f"c{number}", f"echo {number} >> log; cat log") for number in (1, 2, 3)]
    for call in calls[:-1]:
        parley_model.says(call)
    async with speaking(parley_model) as wire:
        seen = await turn(wire, calls[-1])

        texts = "1\n", "1\n2\n", "1\n2\n3\n"
        events = [
            event
            for number, text in enumerate(texts, 1)
            for event in (
                begun(f"c{number}", "sh", "-c", f"echo {number} >> log; cat log", cwd=wire.work),
                output(f"c{number}", text),
                ended(f"c{number}", text),
            )
        ]
        assert seen.events == whole_turn("chat", *events)
        answers = [(sent(calls[place]), Output(f"c{place + 1}", ran(text))) for place, text in enumerate(texts)]
        assert [asked(request) for request in parley_model.requests] == [
            history("chat", User("go"), *(one for pair in answers[:number] for one in pair)) for number in range(4)
        ]


# --- interrupts --------------------------------------------------------------------------------


@pytest.mark.promises("calls.answered-once", "calls.in-order")
@either_api
async def test_an_interrupt_ends_the_call_that_runs_and_those_after_it_never_begin(
    parley_model: ScriptedModel, api: Api
) -> None:
    calls = shell("c1", "echo", "one"), sh("c2", "echo two; sleep 1000"), shell("c3", "touch", "proof")
    parley_model.says(*calls)
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        first = await wire.until(lambda one: is_event("exec_command_output_delta")(one) and "c2" in str(one))
        wire.cancel(1)
        *rest, answer = await wire.answer(1)
        wire.reply(2, "and now?")
        second = await wire.answer(2)

        assert gathered(events_in([*first, *rest]))[1:] == [
            TASK_STARTED,
            begun("c1", "echo", "one", cwd=wire.work),
            output("c1", "one\n"),
            ended("c1", "one\n"),
            begun("c2", "sh", "-c", "echo two; sleep 1000", cwd=wire.work),
            output("c2", "two\n"),
            *([TOKEN_COUNT] if api == "responses" else []),
            INTERRUPTED,
        ]
        assert answer == interrupted(1)
        assert events_in(second) == [TASK_STARTED, *done(api)]
        outputs = ran("one\n"), "aborted", "aborted"
        answers = [
            one
            for place, (call, text) in enumerate(zip(calls, outputs, strict=True), 1)
            for one in (sent(call, item=place), Output(f"c{place}", text))
        ]
        assert asked(parley_model.requests[1]) == history(api, User("go"), *answers, User("and now?"))
        assert [*wire.work.iterdir()] == []


async def test_an_interrupt_of_one_of_two_calls_with_one_id_aborts_both(parley_model: ScriptedModel) -> None:
    calls = sh("same", "echo begun; sleep 1000"), shell("same", "touch", "proof")
    parley_model.says(*calls)
    async with talking(parley_model) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        begin = await client.until_method("exec_command_output_delta")
        interrupt = client.call("conversationInterrupt", conversation_id=conversation)
        rest = await client.until_method("error")
        await client.say(conversation, "and now?")
        await client.until_method("task_complete")

        assert answered(interrupt, {"status": "ok"}) in rest
        events = [one["params"]["msg"] for one in (*begin, *rest) if "method" in one]
        assert gathered(events) == [
            TASK_STARTED,
            begun("same", "sh", "-c", "echo begun; sleep 1000", cwd=client.work),
            output("same", "begun\n"),
            INTERRUPTED,
        ]
        answers = [one for call in calls for one in (sent(call), Output("same", "aborted"))]
        assert asked(parley_model.requests[1]) == history("chat", User("go"), *answers, User("and now?"))
        assert [*client.work.iterdir()] == []


async def test_input_that_joins_while_a_command_runs_comes_after_all_outputs(
    parley_model: ScriptedModel,
) -> None:
    calls = sh("c1", "echo waiting; read _ < gate"), shell("c2", "echo", "two")
    parley_model.says(*calls)
    async with speaking(parley_model) as wire, Gate(wire.work / "gate") as gate:
        wire.codex(1, "go")
        await wire.until(is_event("exec_command_output_delta"))
        wire.reply(2, "one more thing")
        await wire.until(is_event("exec_command_output_delta"))  # the second call also gets the output before it
        gate.open()
        await wire.answer(1, 2)

        outputs = (
            sent(calls[0]),
            Output("c1", ran("waiting\n")),
            sent(calls[1], item=2),
            Output("c2", ran("two\n")),
        )
        assert asked(parley_model.requests[1]) == history("chat", User("go"), *outputs, User("one more thing"))


# --- responses that break ----------------------------------------------------------------------


@pytest.mark.promises("calls.broken")
@both_apis
async def test_a_response_that_breaks_runs_nothing_and_the_calls_of_its_repetition_run_once(
    parley_model: ScriptedModel, api: Api
) -> None:
    call = sh("c1", "echo ran >> proof")
    parley_model.cuts("Well.", call)
    async with speaking(parley_model, api=api, stream_max_retries=1) as wire:
        seen = await turn(wire, call, api=api)

        assert (wire.work / "proof").read_text() == "ran\n"
        kinds = [event["type"] for event in seen.events]
        begin = kinds.index("exec_command_begin")
        assert kinds.index("background_event") < begin
        assert seen.events[begin:] == [
            begun("c1", "sh", "-c", "echo ran >> proof", cwd=wire.work),
            ended("c1"),
            *([TOKEN_COUNT] if api == "responses" else []),
            *done(api),
        ]
        assert [asked(request) for request in parley_model.requests] == [
            history(api, User("go")),
            history(api, User("go")),
            history(api, User("go"), sent(call), Output("c1", ran(""))),
        ]


@pytest.mark.promises("calls.broken")
@either_api
async def test_calls_of_a_response_that_broke_for_good_neither_run_nor_stay(
    parley_model: ScriptedModel, api: Api
) -> None:
    parley_model.cuts(shell("c1", "touch", "proof"))
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        first = events_in(await wire.answer(1))
        wire.reply(2, "and now?")
        second = events_in(await wire.answer(2))

        failure = first[2]["message"]
        assert failure.startswith("stream disconnected before completion: ")
        assert first[1:] == [TASK_STARTED, error(failure), task_complete(None)]
        assert second == [TASK_STARTED, *done(api)]
        assert asked(parley_model.requests[1]) == history(api, User("go"), User("and now?"))
        assert [*wire.work.iterdir()] == []
