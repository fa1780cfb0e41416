"""The shell tool: the events of a command, and its output for the model."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import pytest

from kit.clients.approving import approving_client, last_output, types_of
from kit.clients.codex_calls import APIS, Output, User, Wire, history, speaking
from kit.clients.shell_turns import Turned, begun, ended, output, ran, sent, sh, shell, turn, unended, whole_turn
from kit.system.commands import PATH
from kit.system.needs import MECHANISMS, SANDBOX
from parley.testing import Call, Data, ScriptedModel
from parley.testing.steps import Step
from parley.tools.commands.environment import SAFE


async def over_both(wire: Wire, call: Call, **arguments: Any) -> dict[str, Turned]:
    """Run one turn with this call over each API."""
    return {api: await turn(wire, call, api=api, **arguments) for api in APIS}


def expected(call: Call, output: str, *events: Any) -> dict[str, Turned]:
    return {api: Turned.of_one(api, call, output, *events) for api in APIS}


# --- commands that run to their end --------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.promises("shell.model-output")
async def test_of_a_command_that_succeeds_the_model_reads_stdout(parley_model: ScriptedModel) -> None:
    call = shell("c1", "echo", "hello")
    async with speaking(parley_model) as wire:
        seen = await over_both(wire, call)

        assert seen == expected(
            call,
            ran("hello\n"),
            begun("c1", "echo", "hello", cwd=wire.work),
            output("c1", "hello\n"),
            ended("c1", "hello\n"),
        )


class Row(NamedTuple):
    """The output and end of a script, and the output for the model."""

    script: str
    stdout: bytes
    stderr: bytes
    exit_code: int
    output: str


ROWS: Final = (
    Row("printf out; printf err >&2", b"out", b"err", 0, "out"),
    Row("printf err >&2", b"", b"err", 0, ""),
    Row("printf out; printf err >&2; exit 3", b"out", b"err", 3, "out\nerr"),
    Row("echo out; echo err >&2; exit 3", b"out\n", b"err\n", 3, "out\nerr\n"),
    Row("printf err >&2; exit 127", b"", b"err", 127, "err"),
    Row("printf out; exit 1", b"out", b"", 1, "out"),
    Row("exit 255", b"", b"", 255, ""),
    Row(r"printf 'a\303\244\377\000\033z'", b"a\xc3\xa4\xff\0\x1bz", b"", 0, "aä�\0\x1bz"),
)


@pytest.mark.promises("shell.model-output")
async def test_a_command_ends_as_it_says_and_the_model_reads_both_streams_when_it_fails(
    parley_model: ScriptedModel,
) -> None:
    calls = [sh(f"c{place}", row.script) for place, row in enumerate(ROWS)]
    async with speaking(parley_model) as wire:
        seen = await turn(wire, *calls)

        events: list[Any] = []
        for place, row in enumerate(ROWS):
            call_id = f"c{place}"
            streams = ("stdout", row.stdout), ("stderr", row.stderr)
            end = ended(call_id, *(said.decode(errors="replace") for _, said in streams), exit_code=row.exit_code)
            events.append(begun(call_id, "sh", "-c", row.script, cwd=wire.work))
            events += [output(call_id, said, stream=stream) for stream, said in streams if said]
            events.append(end)
        assert seen.events == whole_turn("chat", *events)
        outputs = [Output(f"c{place}", ran(row.output, exit_code=row.exit_code)) for place, row in enumerate(ROWS)]
        assert seen.outputs == history("chat", *outputs)


# --- long output -------------------------------------------------------------------------------


def lines(first: int, last: int) -> str:
    return "".join(f"{number}\n" for number in range(first, last + 1))


X: Final = "x" * 5120
MANY_X: Final = "head -c {} /dev/zero | tr '\\0' x"


LONG: Final = {
    "seq 256": (lines(1, 256), lines(1, 256)),
    "seq 400": (lines(1, 128) + "[... 144 lines, 576 bytes truncated ...]\n" + lines(273, 400), lines(1, 256)),
    MANY_X.format(10240): (X + X, X),
    MANY_X.format(60000): (f"{X}\n[... 0 lines, 49760 bytes truncated ...]\n{X}", X),
}
"""For each script, the output that the model gets, and the output in the end event."""


@pytest.mark.promises("shell.model-output")
async def test_only_output_that_is_too_long_is_cut_in_the_middle_and_shorter_still_in_the_end_event(
    parley_model: ScriptedModel,
) -> None:
    calls = [sh(f"c{place}", script) for place, script in enumerate(LONG)]
    async with speaking(parley_model) as wire:
        seen = await turn(wire, *calls)

        ends = [event for event in seen.events if event["type"] == "exec_command_end"]
        assert ends == [ended(f"c{place}", shown) for place, (_, shown) in enumerate(LONG.values())]
        outputs = [Output(f"c{place}", ran(texts)) for place, (texts, _) in enumerate(LONG.values())]
        assert seen.outputs == history("chat", *outputs)


async def test_the_streams_of_a_failing_command_are_cut_to_fit_together(parley_model: ScriptedModel) -> None:
    call = sh("c1", "seq 300; seq 301 600 >&2; exit 1")
    async with speaking(parley_model) as wire:
        seen = await turn(wire, call)

        out = lines(1, 64) + "[... 172 lines, 653 bytes truncated ...]\n" + lines(237, 300)
        err = lines(301, 364) + "[... 172 lines, 688 bytes truncated ...]\n" + lines(537, 600)
        assert seen.events[-4] == ended("c1", lines(1, 256), lines(301, 556), exit_code=1)
        output = Output("c1", ran(out + err, exit_code=1))
        assert seen.asked == history("chat", User("go"), sent(call), output)


# --- timeouts and signals ----------------------------------------------------------------------

NOT_THERE: Final = "No such file or directory (os error 2)"

TIMED_OUT: Final = {
    "never": "failed in sandbox None with execution error: command timed out",
    "on-request": "failed in sandbox None with execution error: command timed out",
    "on-failure": "command timed out after 300 milliseconds",
}
"""For each policy, the output that the model gets for a command that took longer than 300 milliseconds."""


@pytest.mark.promises("shell.model-output")
async def test_a_program_that_is_not_there_has_a_beginning_and_an_end(parley_model: ScriptedModel) -> None:
    call = shell("c1", "no-such-program-here", "x")
    async with speaking(parley_model) as wire:
        seen = await over_both(wire, call)

        events = begun("c1", "no-such-program-here", "x", cwd=wire.work), unended("c1", NOT_THERE)
        assert seen == expected(call, f"execution error: {NOT_THERE}", *events)


async def test_an_empty_command_has_a_beginning_and_an_end(parley_model: ScriptedModel) -> None:
    call, why = shell("c1"), "command args are empty"
    async with speaking(parley_model) as wire:
        seen = await turn(wire, call)

        events = begun("c1", cwd=wire.work), unended("c1", why)
        assert seen == Turned.of_one("chat", call, f"execution error: {why}", *events)


@pytest.mark.waits
@pytest.mark.promises("shell.model-output")
async def test_a_command_that_takes_too_long_is_killed_and_the_policy_chooses_the_words(
    parley_model: ScriptedModel,
) -> None:
    call = shell("c1", "sleep", "1000", timeout=300)
    async with speaking(parley_model) as wire:
        seen = {policy: await over_both(wire, call, **{"approval-policy": policy}) for policy in TIMED_OUT}

        events = begun("c1", "sleep", "1000", cwd=wire.work), unended("c1", "sandbox error: command timed out")
        assert seen == {policy: expected(call, output, *events) for policy, output in TIMED_OUT.items()}


async def timed_out_after_output(wire: Wire) -> tuple[Call, Turned]:
    """Run a command that prints a line and exceeds its timeout.

    On a busy computer, the command gets more time for the line.
    """
    script = "echo begun; sleep 1000"
    for milliseconds in (400, 4_000):
        call = sh("c1", script, timeout=milliseconds)
        seen = await turn(wire, call)
        if output("c1", "begun\n") in seen.events:
            return call, seen
    call = sh("c1", script, timeout=90_000)
    return call, await turn(wire, call)


async def test_output_before_a_timeout_is_shown_to_clients_and_not_to_the_model(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as wire:
        call, seen = await timed_out_after_output(wire)

        assert seen.events[2:4] == [output("c1", "begun\n"), unended("c1", "sandbox error: command timed out")]
        text = Output("c1", TIMED_OUT["never"])
        assert seen.asked == history("chat", User("go"), sent(call), text)


@pytest.mark.promises("shell.model-output")
async def test_a_command_that_a_signal_kills_did_not_run_to_its_end(parley_model: ScriptedModel) -> None:
    call = shell("c1", "bash", "-c", "echo begun; kill -9 $$")
    why = "command was killed by a signal"
    async with speaking(parley_model) as wire:
        seen = await over_both(wire, call)

        events = (
            begun(
                *("c1", "bash", "-c", "echo begun; kill -9 $$"),
                cwd=wire.work,
                parsed=[{"Unknown": {"cmd": ["echo", "begun;", "kill", "-9", "$$"]}}],
            ),
            output("c1", "begun\n"),
            unended("c1", f"sandbox error: {why}"),
        )
        assert seen == expected(call, f"failed in sandbox None with execution error: {why}", *events)


# --- sandboxed commands ------------------------------------------------------------------------


def configured_for(mechanism: str) -> str:
    return f'[sandbox]\nmechanism = "{mechanism}"\n'


FAILED: Final = "failed in sandbox LinuxSeccomp with execution error: "
DENIED: Final = f"{FAILED}sandbox denied exec error, "


@pytest.mark.promises("shell.model-output")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_confined_command_that_fails_was_denied_by_the_sandbox_whatever_the_reason(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    written, failing = shell("c1", "touch", "proof"), sh("c1", "echo out; echo err >&2; exit 7")
    async with speaking(parley_model, config=configured_for(mechanism)) as wire:
        for policy in ("never", "on-request"):
            asking: dict[str, Any] = {"approval-policy": policy}
            seen = await turn(wire, written, sandbox="read-only", **asking)
            said = seen.events[3]["stderr"]
            assert "proof" in said
            assert seen == Turned.of_one(
                "chat",
                written,
                f"{DENIED}exit code: 1, stdout: , stderr: {said}",
                begun("c1", "touch", "proof", cwd=wire.work),
                output("c1", said, stream="stderr"),
                unended("c1", said),
            )

            seen = await turn(wire, failing, sandbox="workspace-write", **asking)
            assert seen == Turned.of_one(
                "chat",
                failing,
                f"{DENIED}exit code: 7, stdout: out\n, stderr: err\n",
                begun("c1", "sh", "-c", "echo out; echo err >&2; exit 7", cwd=wire.work),
                output("c1", "out\n"),
                output("c1", "err\n", stream="stderr"),
                unended("c1", "err\n"),
            )
        assert [*wire.work.iterdir()] == []


@pytest.mark.promises("shell.model-output")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_failures_without_relation_to_the_sandbox_are_reported_as_without_one(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    calls = (
        sh("c1", "echo x > proof; cat proof"),
        shell("c2", "grep", "nothing", "proof"),
        sh("c3", "echo err >&2; exit 127"),
        shell("c4", "no-such-program-here"),
        shell("c5", "sleep", "1000", timeout=300),
        sh("c6", "kill -9 $$"),
    )
    by_signal = "command was killed by a signal"
    killed = {
        "landlock": (f"{FAILED}{by_signal}", f"sandbox error: {by_signal}"),
        # Bubblewrap reports the signal as an exit code.
        "bubblewrap": (f"{DENIED}exit code: 137, stdout: , stderr: ", ""),
    }[mechanism]
    async with speaking(parley_model, config=configured_for(mechanism)) as wire:
        seen = await turn(wire, *calls, sandbox="workspace-write")

        texts = (
            ran("x\n"),
            ran("", exit_code=1),
            ran("err\n", exit_code=127),
            f"execution error: {NOT_THERE}",
            f"{FAILED}command timed out",
            killed[0],
        )
        outputs = [Output(f"c{number}", text) for number, text in enumerate(texts, start=1)]
        assert seen.outputs == history("chat", *outputs)
        ends = [event for event in seen.events if event["type"] == "exec_command_end"]
        assert ends == [
            ended("c1", "x\n"),
            ended("c2", exit_code=1),
            ended("c3", "", "err\n", exit_code=127),
            unended("c4", NOT_THERE),
            unended("c5", "sandbox error: command timed out"),
            unended("c6", killed[1]),
        ]


@pytest.mark.promises("shell.model-output")
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sandbox", ["workspace-write", "danger-full-access"])
async def test_a_missing_directory_or_interpreter_is_named(
    parley_model: ScriptedModel, mechanism: str, sandbox: str
) -> None:
    in_missing, script = shell("c1", "true", workdir="missing"), shell("c2", "./script")
    async with speaking(parley_model, config=configured_for(mechanism)) as wire:
        (wire.work / "script").write_text("#!/no/such/interpreter\n")
        (wire.work / "script").chmod(0o755)
        seen = [await turn(wire, call, sandbox=sandbox) for call in (in_missing, script)]

        directory = f"the working directory {wire.work}/missing cannot be used: {NOT_THERE}"
        interpreter = f"the interpreter of ./script cannot be run: {NOT_THERE}"
        assert seen == [
            Turned.of_one(
                "chat",
                in_missing,
                f"execution error: {directory}",
                begun("c1", "true", cwd=wire.work / "missing", parsed=()),
                unended("c1", directory),
            ),
            Turned.of_one(
                "chat",
                script,
                f"execution error: {interpreter}",
                begun("c2", "./script", cwd=wire.work),
                unended("c2", interpreter),
            ),
        ]


@pytest.mark.promises("sandbox.network")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_variable_of_a_confined_command_says_whether_it_has_the_network(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    call = sh("c1", "echo mark=$CODEX_SANDBOX_NETWORK_DISABLED")
    config = configured_for(mechanism)
    async with speaking(parley_model, config=config) as wire:
        seen = [await turn(wire, call, sandbox=sandbox) for sandbox in ("read-only", "danger-full-access")]

        outputs = [one.asked[-1]["content"] for one in seen]
        assert outputs == [ran("mark=1\n"), ran("mark=\n")]


# --- before it runs ------------------------------------------------------------------------


@pytest.mark.promises("decide.commands")
async def test_an_invalid_command_is_refused_without_an_approval_request(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        parley_model.says(shell("c1", "touch", "a\0b"), shell("c2", "touch", "a", workdir="a\0b"))
        parley_model.says("Done")
        messages = await client.until_answer(client.codex())

        assert "elicitation/create" not in types_of(messages)
        outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
        assert outputs == ["exec command rejected: it contains a NUL character"] * 2


async def test_a_working_directory_with_a_very_long_path_is_refused_and_does_not_block_the_server(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        parley_model.says(shell("c1", "touch", "a", workdir="x/" * 1_000_000))
        parley_model.says("Done")
        messages = await client.until_answer(client.codex())

        assert "elicitation/create" not in types_of(messages)
        why = "failed to parse function arguments: a path of more than 4096 bytes (workdir)"
        assert last_output(parley_model) == why


@SANDBOX
@pytest.mark.promises("decide.safe")
@pytest.mark.parametrize("mode", ["danger-full-access", "workspace-write"])
async def test_a_program_in_the_workspace_needs_an_approval_whatever_its_name(
    parley_model: ScriptedModel, mode: str
) -> None:
    async with approving_client(parley_model) as client:
        path = {"shell_environment_policy.set": {"PATH": f"{client.work}:{PATH}"}}
        parley_model.says(shell("known", "ls"), sh("writes", "cp /bin/true ls"), shell("written", "ls"))
        parley_model.says("Done")
        call = client.codex(sandbox=mode, config=path)
        asked = []
        for number, decision in enumerate(["approved", "denied"]):
            asked.append((await client.until_asked())[-1]["params"]["codex_call_id"])
            client.answer(number, {"decision": decision})
        await client.until_answer(call)

        assert asked == ["writes", "written"]


# --- commands that do not run --------------------------------------------------------------------


NAMES: Final = ("no_such_tool", "Shell", "")


@pytest.mark.promises("calls.unknown")
async def test_a_function_that_was_never_offered_is_answered_without_events(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        for name in NAMES:
            call = Call(name, {"command": ["touch", "proof"]}, "c1")
            seen = await over_both(wire, call)

            assert seen == expected(call, f"unsupported call: {name}")
        assert [*wire.work.iterdir()] == []


BAD_ARGUMENTS: Final = {
    "{not json": "arguments cannot be read: JSON is malformed: object keys must be strings (byte 1)",
    "": "arguments cannot be read: Input data was truncated",
    '{"command": "touch proof"}': 'invalid type: string "touch proof", expected a sequence (command)',
    "{}": "missing field `command`",
    '{"command": ["touch", "proof"], "timeout": -1}': (
        "invalid value: integer `-1`, expected a number, at least 0 (timeout)"
    ),
}
"""Invalid arguments, and the error of each."""


@pytest.mark.promises("shell.model-output")
async def test_arguments_that_do_not_fit_are_explained_to_the_model_without_events(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as wire:
        for arguments, detail in BAD_ARGUMENTS.items():
            call = Call("shell", arguments, "c1")
            seen = await over_both(wire, call)

            assert seen == expected(call, f"failed to parse function arguments: {detail}")
        assert [*wire.work.iterdir()] == []


# --- other spellings ---------------------------------------------------------------------------


async def test_the_other_name_of_the_function_and_unknown_arguments_do_as_well(
    parley_model: ScriptedModel,
) -> None:
    call = Call("container.exec", {"command": ["echo", "c"], "unknown": 1, "timeout": None}, "c1")
    async with speaking(parley_model) as wire:
        seen = await over_both(wire, call)

        events = begun("c1", "echo", "c", cwd=wire.work), output("c1", "c\n"), ended("c1", "c\n")
        assert seen == expected(call, ran("c\n"), *events)


def done(item: Any) -> Step:
    return Data(json.dumps({"type": "response.output_item.done", "item": item}))


async def test_local_shell_calls_run_where_they_say_and_go_back_as_they_came(parley_model: ScriptedModel) -> None:
    first = {
        "type": "local_shell_call",
        "id": "ls_1",
        "call_id": "c1",
        "status": "completed",
        "action": {
            "type": "exec",
            "command": ["sh", "-c", "pwd; echo $ADDED"],
            "timeout_ms": 9000,
            "working_directory": "/",
            "env": {"ADDED": "by the model"},
            "user": "root",
        },
    }
    second = {"type": "local_shell_call", "id": "ls_2", "action": {"type": "exec", "command": ["echo", "b"]}}
    async with speaking(parley_model) as wire:
        seen = await turn(wire, done(first), done(second), api="responses", model="codex-mini-latest")

        assert seen.events == whole_turn(
            "responses",
            begun("c1", "sh", "-c", "pwd; echo $ADDED", cwd="/"),
            output("c1", "/\n\n"),
            ended("c1", "/\n\n"),
            begun("ls_2", "echo", "b", cwd=wire.work),
            output("ls_2", "b\n"),
            ended("ls_2", "b\n"),
        )
        outputs = history("responses", Output("c1", ran("/\n\n")), Output("ls_2", ran("b\n")))
        assert seen.asked == [*history("responses", User("go")), first, outputs[0], second, outputs[1]]
        assert {"type": "local_shell"} in parley_model.requests[0].body["tools"]


# --- around a command --------------------------------------------------------------------------


async def test_a_working_directory_is_relative_to_the_conversation_absolute_or_missing(
    parley_model: ScriptedModel,
) -> None:
    calls = [
        shell(f"c{place}", "pwd", workdir=workdir) for place, workdir in enumerate(("sub", "/", "missing", ""))
    ]
    async with speaking(parley_model) as wire:
        work, sub = wire.work, wire.work / "sub"
        sub.mkdir()
        seen = await turn(wire, *calls)

        missing = f"the working directory {work}/missing cannot be used: {NOT_THERE}"
        assert seen.events == whole_turn(
            "chat",
            begun("c0", "pwd", cwd=sub),
            output("c0", f"{sub}\n"),
            ended("c0", f"{sub}\n"),
            begun("c1", "pwd", cwd="/"),
            output("c1", "/\n"),
            ended("c1", "/\n"),
            begun("c2", "pwd", cwd=work / "missing"),
            unended("c2", missing),
            begun("c3", "pwd", cwd=work),
            output("c3", f"{work}\n"),
            ended("c3", f"{work}\n"),
        )
        texts = ran(f"{sub}\n"), ran("/\n"), f"execution error: {missing}", ran(f"{work}\n")
        outputs = [Output(f"c{place}", text) for place, text in enumerate(texts)]
        assert seen.outputs == history("chat", *outputs)


async def test_a_conversation_in_a_directory_that_is_not_there_runs_commands_elsewhere_alone(
    parley_model: ScriptedModel,
) -> None:
    calls = shell("c1", "pwd"), shell("c2", "pwd", workdir="/")
    async with speaking(parley_model) as wire:
        seen = await turn(wire, *calls, cwd=str(wire.work / "missing"))

        missing = f"the working directory {wire.work}/missing cannot be used: {NOT_THERE}"
        outputs = Output("c1", f"execution error: {missing}"), Output("c2", ran("/\n"))
        assert seen.outputs == history("chat", *outputs)


async def test_a_command_finds_an_empty_stdin(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as wire:
        seen = await turn(wire, shell("c1", "wc", "-c"))

        assert seen.asked[-1:] == history("chat", Output("c1", ran("0\n")))


async def test_the_begin_event_has_a_summary_of_the_command(parley_model: ScriptedModel) -> None:
    commands: dict[str, list[Any]] = {
        "true && ls": [{"ListFiles": {"cmd": ["ls"], "path": None}}],
        "cat src/notes.txt": [{"Read": {"cmd": ["cat", "src/notes.txt"], "name": "notes.txt"}}],
        "grep -n word src | head -5": [
            {"Search": {"cmd": ["grep", "-n", "word", "src"], "query": "word", "path": "src"}}
        ],
    }
    async with speaking(parley_model) as wire:
        calls = [shell(f"c{place}", "bash", "-lc", script) for place, script in enumerate(commands)]
        seen = await turn(wire, *calls)

        begins = [event for event in seen.events if event["type"] == "exec_command_begin"]
        assert begins == [
            begun(f"c{place}", "bash", "-lc", script, cwd=wire.work, parsed=parsed)
            for place, (script, parsed) in enumerate(commands.items())
        ]


# --- the environment ---------------------------------------------------------------------------

SECRETS: Final = {
    "OPENAI_API_KEY": "secret-of-openai",
    "MODEL_ACCESS": "secret-of-the-model",
    "MODEL_TENANT": "secret-of-the-tenant",
    "GITHUB_TOKEN": "secret-token",
    "My_Secret_Word": "secret-word",
    "AWS_SECRET_ACCESS_KEY": "secret-key",
    "HTTPS_PROXY": "http://ada:secret-password@proxy.invalid:3128",
}
"""Variables of the server that no command may see, under any name."""

HARMLESS: Final = {"JAVA_HOME": "/opt/java", "TERM": "dumb", "MY_VARIABLE": "mine", "MY_OTHER": "other"}
SNEAKY: Final = {"BASH_ENV": "/nowhere", "GIT_SSH_COMMAND": "false", "PAGER": "false", "PYTHONSTARTUP": "/nowhere"}

KEYED_PROVIDER: Final = """
[model_providers.chat]
name = "Wants a key"
base_url = "{base_url}"
env_key = "MODEL_ACCESS"
env_http_headers = {{ "x-tenant" = "MODEL_TENANT" }}
request_max_retries = 0
stream_max_retries = 0
"""


async def environment(model: ScriptedModel, policy: str) -> dict[str, str]:
    """Return the environment of a command under this policy, for a server with all of the above variables."""
    config = f"[shell_environment_policy]\n{policy}\n{KEYED_PROVIDER.format(base_url=model.base_url)}"
    async with speaking(model, config=config, env={**SECRETS, **HARMLESS, **SNEAKY}) as wire:
        seen = await turn(wire, shell("c1", "env", "-0"))

    headers = model.requests[0].headers
    assert (headers["authorization"], headers["x-tenant"]) == ("Bearer secret-of-the-model", "secret-of-the-tenant")
    assert [secret for secret in SECRETS.values() if secret in model.requests[-1].raw.decode()] == []
    (said,) = [event for event in seen.events if event["type"] == "exec_command_output_delta"]
    variables = bytes(said["chunk"]).decode().removesuffix("\0").split("\0")
    return dict(variable.split("=", 1) for variable in variables)


@pytest.mark.child_process
@pytest.mark.promises("shell.environment")
async def test_commands_are_given_the_variables_of_a_list_and_no_other(parley_model: ScriptedModel) -> None:
    given = await environment(parley_model, "")

    assert given["JAVA_HOME"] == "/opt/java"
    assert given["TERM"] == "dumb"
    assert set(given) - {name for names in SAFE.values() for name in names} == set()
    assert set(given) & {*SECRETS, *SNEAKY, "MY_VARIABLE", "PARLEY_HOME"} == set()


@pytest.mark.child_process
@pytest.mark.promises("shell.environment")
@pytest.mark.parametrize("others_pass", [False, True])
async def test_also_when_commands_are_given_everything_the_keys_of_the_server_are_its_own(
    parley_model: ScriptedModel, others_pass: bool
) -> None:
    policy = 'inherit = "all"'
    if others_pass:  # variables other than the keys of the server must then be listed
        policy += "\nignore_default_excludes = true\nexclude = ['*_SECRET_*', 'GITHUB_T?KEN', 'HTTPS_PROXY']"
    given = await environment(parley_model, policy)

    assert {name: given.get(name) for name in HARMLESS} == HARMLESS
    assert set(given) & {*SECRETS, *SNEAKY} == set()


async def test_of_the_core_variables_there_are_few(parley_model: ScriptedModel) -> None:
    given = await environment(parley_model, 'inherit = "core"')

    core = {"HOME", "LOGNAME", "PATH", "SHELL", "USER", "USERNAME", "TMPDIR", "TEMP", "TMP"}
    assert set(given) - core == set()
    assert "PATH" in given


async def test_without_inheritance_the_environment_has_only_the_variables_of_the_user(
    parley_model: ScriptedModel,
) -> None:
    given = await environment(parley_model, 'inherit = "none"\nset = { API_TOKEN = "mine", PAGER = "cat" }')

    assert given == {"API_TOKEN": "mine", "PAGER": "cat"}


async def test_of_what_is_inherited_and_set_the_user_can_keep_a_part(parley_model: ScriptedModel) -> None:
    policy = """
        inherit = "all"
        exclude = ["MY_O*"]
        set = { ADDED = "1", LEFT = "2" }
        include_only = ["MY_*", "ADDED"]
    """
    given = await environment(parley_model, policy)

    assert given == {"MY_VARIABLE": "mine", "ADDED": "1"}
