"""Parley as a tool server of the coding agents that people use, each run for real without a person."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from hosts.conftest import RUN_SECONDS, HostBench
from hosts.host_apis import CallTool, Decision, Say, View
from kit.servers.resident_process import ResidentProcess
from parley.testing.steps import HOLD, Call, Delay
from parley.wire.events import AgentMessage, TaskComplete

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def steps(*decisions: Decision | Callable[[View], Decision]) -> Callable[[View], Decision]:
    """Return a `decide` function that takes these steps in order and then answers `finished`."""
    remaining: Iterator[Decision | Callable[[View], Decision]] = iter(decisions)

    def decide(view: View) -> Decision:
        step = next(remaining, Say("finished"))
        return step(view) if callable(step) else step

    return decide


def conversation_id(view: View) -> str:
    """Return the first id that the host's model saw in a result."""
    found = UUID.search("\n".join(view.results))
    assert found is not None, view.results
    return found.group()


@pytest.mark.check("1. tools are listed with schemas")
async def test_the_model_of_the_host_sees_the_tools_with_their_schemas(bench: HostBench) -> None:
    run = await bench.run(steps())

    definitions = {
        name: json.dumps(one) for name, one in zip(run.views[0].tools, run.views[0].definitions, strict=True)
    }
    for tool, argument in (("codex", "prompt"), ("codex-reply", "prompt"), ("conversationRead", "wait_seconds")):
        definition = definitions[CallTool(tool, {}).name(definitions)]
        assert argument in definition
        assert "conversation" in definition  # the definition includes the description
    assert not any(name.endswith("approvalAnswer") for name in definitions)


@pytest.mark.check("2. `codex` returns a result")
async def test_codex_answers(bench: HostBench) -> None:
    bench.model.says("There are ", "four lights.")

    run = await bench.run(steps(CallTool("codex", {"prompt": "count the lights"})))

    (result,) = run.results
    assert "There are four lights." in result
    assert UUID.search(result)


@pytest.mark.check("3. `codex-reply` with the id that the model saw")
async def test_a_reply_continues_the_conversation_that_the_model_saw(bench: HostBench) -> None:
    bench.model.says("My name is Ada.")
    bench.model.says("Ada, as I said.")

    def reply(view: View) -> Decision:
        return CallTool("codex-reply", {"prompt": "your name?", "threadId": conversation_id(view)})

    run = await bench.run(steps(CallTool("codex", {"prompt": "who are you?"}), reply))

    assert "Ada, as I said." in run.results[1]
    sent = json.dumps(bench.model.requests[1].body)
    assert "who are you?" in sent
    assert "My name is Ada." in sent


@pytest.mark.check("4. create, send, and read a turn of 20 s")
async def test_a_long_turn_keeps_running_while_the_model_reads(bench: HostBench) -> None:
    bench.model.says("Working ", Delay(20), "and done.")

    def send(view: View) -> Decision:
        content = [{"type": "text", "text": "work"}]
        return CallTool("conversationSendMessage", {"conversation_id": conversation_id(view), "content": content})

    def read(view: View) -> Decision:
        if "and done." in view.results[-1]:
            return Say("finished")
        seq = re.search(r'"seq":(\d+),"state":', view.results[-1])
        arguments = {
            "conversation_id": conversation_id(view),
            "wait_seconds": 10,
            "after": int(seq[1]) if seq else 0,
        }
        return CallTool("conversationRead", arguments)

    create = CallTool("conversationCreate", {"prompt": "", "model": "m", "cwd": str(bench.home.work)})
    run = await bench.run(steps(create, send, *([read] * 12)))

    assert "Working and done." in run.results[-1]
    assert "interrupted" not in run.results[-1]


@pytest.mark.check("5. a result of 200 kB")
async def test_a_large_answer_arrives(bench: HostBench) -> None:
    bench.model.deltas(25_000, "eight ch")

    run = await bench.run(steps(CallTool("codex", {"prompt": "write a lot"})))

    assert run.exit_code == 0
    assert "eight ch" in run.results[0] or "truncated" in run.results[0]  # opencode shows a note instead
    async with bench.other_client() as parley:
        (listed,) = (await parley.client.list()).conversations
        page = await parley.client.conversation(listed.conversation_id).read()
        (message,) = [event.msg for event in page.events if isinstance(event.msg, AgentMessage)]
        assert len(message.message) == 200_000


ASKS = 'approval_policy = "untrusted"\nsandbox_mode = "read-only"\n'


def ask(bench: HostBench) -> None:
    """Make Parley's agent request a command that needs an approval, and then end its turn."""
    bench.model.says("I try.", Call("shell", {"command": ["touch", "made-by-the-agent"]}))
    bench.model.says("I was not allowed to.")


@pytest.mark.check('6. an approval with `when_nobody = "deny"`')
async def test_an_approval_is_denied_and_the_result_reports_it(bench: HostBench) -> None:
    bench.config = ASKS
    ask(bench)

    run = await bench.run(steps(CallTool("codex", {"prompt": "make a file"})))

    (result,) = run.results
    assert "I was not allowed to." in result
    assert "touch made-by-the-agent" in result  # the result names the command that was not run
    assert not (bench.home.work / "made-by-the-agent").exists()


@pytest.mark.check('7. an approval with `when_nobody = "return"`')
async def test_an_approval_is_returned(bench: HostBench) -> None:
    bench.config = ASKS + '[approvals]\nwhen_nobody = "return"\n'
    ask(bench)

    run = await bench.run(steps(CallTool("codex", {"prompt": "make a file"})))

    (result,) = run.results
    assert "touch made-by-the-agent" in result
    if bench.host.name in ("Claude Code", "Codex"):
        assert "I was not allowed to." in result  # these hosts support elicitation and dismiss the request
    else:
        assert len(set(UUID.findall(result))) == 2  # the ids of the conversation and of the approval
        assert "I was not allowed to." not in result


@pytest.mark.check('8. an approval with `when_nobody = "wait"`')
async def test_an_approval_waits_for_its_timeout(bench: HostBench) -> None:
    bench.config = ASKS + '[approvals]\nwhen_nobody = "wait"\ntimeout_seconds = 3\n'
    ask(bench)

    run = await bench.run(steps(CallTool("codex", {"prompt": "make a file"})))

    (result,) = run.results
    assert "I was not allowed to." in result
    assert "touch made-by-the-agent" in result


@pytest.mark.check("9. a timeout of the host leaves the turn running")
async def test_a_timeout_ends_the_waiting_and_not_the_turn(bench: HostBench) -> None:
    bench.timeout_seconds = 4
    bench.model.says("Slow ", HOLD, "but complete.")
    bench.model.says("Next.")

    def after_the_timeout(view: View) -> Decision:
        bench.release()
        return CallTool("conversationsList", {})

    def reply(view: View) -> Decision:
        return CallTool("codex-reply", {"prompt": "and?", "threadId": conversation_id(view)})

    run = await bench.run(steps(CallTool("codex", {"prompt": "take your time"}), after_the_timeout, reply))

    assert "Slow but complete." not in run.results[0]
    assert "Slow but complete." in run.results[-1]
    async with bench.other_client() as parley:
        (listed,) = (await parley.client.list()).conversations
        page = await parley.client.conversation(listed.conversation_id).read()
        assert not any("interrupted" in str(event.msg) for event in page.events)


@pytest.mark.check("12. a key in the environment of the host reaches Parley's model")
async def test_a_key_in_the_environment_of_the_host_reaches_the_model(bench: HostBench) -> None:
    bench.env["OPENAI_API_KEY"] = "sk-of-the-user"
    provider = {"name": "Keyed", "base_url": bench.model.base_url, "env_key": "OPENAI_API_KEY", "wire_api": "chat"}
    lines = ["[model_providers.keyed]", *(f"{name} = {json.dumps(value)}" for name, value in provider.items())]
    bench.config = "\n".join(['model_provider = "keyed"', *lines])
    bench.model.says("The key fits.")

    run = await bench.run(steps(CallTool("codex", {"prompt": "go"})))

    assert "The key fits." in run.results[0]
    assert bench.model.requests[0].headers["authorization"] == "Bearer sk-of-the-user"


async def test_progress_keeps_a_host_waiting_that_counts_it(bench: HostBench) -> None:
    if bench.host.name != "opencode":
        pytest.skip("only opencode waits longer while it gets progress")
    bench.timeout_seconds = 12
    bench.model.says("Slow ", Delay(30), "but complete.")

    run = await bench.run(steps(CallTool("codex", {"prompt": "take your time"})))

    assert "Slow but complete." in run.results[0]


async def test_a_hook_of_claude_code_answers_approvals(bench: HostBench) -> None:
    if bench.host.name != "Claude Code":
        pytest.skip("only Claude Code has such hooks")
    bench.config = ASKS
    bench.hook_answers = True
    bench.model.says("I try.", Call("shell", {"command": ["touch", str(bench.home.work / "made")]}))

    run = await bench.run(steps(CallTool("codex", {"prompt": "make a file", "cwd": str(bench.home.work)})))

    assert "Done" in run.results[0]
    assert (bench.home.work / "made").exists()


@pytest.mark.check("10. if the host ends during a turn, the log contains the end of the turn")
async def test_a_host_that_ends_in_mid_turn_leaves_the_end_in_the_log(bench: HostBench) -> None:
    bench.model.says("Half of ", HOLD, "it.")

    async with bench.start(steps(CallTool("codex", {"prompt": "go"}))) as (process, _):
        await bench.model.wait_until_held()
        process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):  # Gemini CLI waits for the call; the block then kills it and its servers
            await asyncio.wait_for(process.wait(), 10)

    async with bench.other_client() as parley:
        (listed,) = (await parley.client.list()).conversations
        events = (await parley.client.conversation(listed.conversation_id).read()).events
        assert "Turn interrupted: the server" in str(events[-1].msg)


@pytest.mark.check("11. with a resident server, a turn continues when its host is killed")
async def test_a_turn_goes_on_in_the_resident_when_its_host_is_killed(bench: HostBench) -> None:
    bench.model.says("Half of ", HOLD, "it.")

    async with (
        ResidentProcess(bench.model, bench.home.path, config=bench.config),
        bench.other_client() as watcher,
        bench.start(steps(CallTool("codex", {"prompt": "go"}))) as (process, _),
    ):
        await bench.model.wait_until_held()
        (listed,) = (await watcher.client.list()).conversations
        async with watcher.client.conversation(listed.conversation_id).stream() as stream:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            bench.model.release()
            async with asyncio.timeout(RUN_SECONDS):
                async for event in stream:
                    if isinstance(event, TaskComplete):
                        break

    assert event == TaskComplete(last_agent_message="Half of it.")
