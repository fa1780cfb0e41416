"""Every combination of approval policy, sandbox mode and answer, for commands and patches, in calls and in streams.

A combination is called a cell. One server runs all cells of a test, each in its own directory. The expected results
come from the tables of the protocol and do not use code of the server. Each answer to each row is given once,
alternately in calls and in streams. The long test runs every combination.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import pytest

from kit.builders.json import as_json
from kit.clients.codex_calls import events_in
from kit.clients.messages import TASK_STARTED, agent_message, delta, error, task_complete
from kit.clients.patch_turns import added, applied, outputs, patch_output, success
from kit.clients.shell_turns import begun, ended, gathered, output, unended
from kit.clients.wire_client import WireClient
from kit.system.needs import MECHANISMS, SANDBOX, no_landlock
from parley.config.types import ApprovalPolicy, SandboxMode
from parley.testing import Call, RawParley, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION

Way = Literal["codex", "stream"]
Decision = Literal["approved", "approved_for_session", "denied", "abort"]

ONLY_LONG: Final = {("on-failure", "stream"), ("on-request", "codex"), ("never", "codex")}
"""The policies and ways that only `make test-long` plays. `make test` plays every policy in at least one way."""

# --- who decides -------------------------------------------------------------------------

COMMANDS: Final = """
                                | modest | bold   | escalated | safe
untrusted  | read-only          | asks   | asks   | asks      | reads
untrusted  | workspace-write    | asks   | asks   | asks      | reads
untrusted  | danger-full-access | asks   | asks   | asks      | reads
on-failure | read-only          | retry  | retry  | retry     | reads
on-failure | workspace-write    | runs   | retry  | retry     | reads
on-failure | danger-full-access | free   | free   | free      | free
on-request | read-only          | fails  | fails  | asks      | reads
on-request | workspace-write    | runs   | fails  | asks      | reads
on-request | danger-full-access | free   | free   | free      | free
never      | read-only          | fails  | fails  | fails     | reads
never      | workspace-write    | runs   | fails  | fails     | reads
never      | danger-full-access | free   | free   | free      | free
"""
"""The expected results for commands.

`modest` writes to the working directory. `bold` also writes outside of it. `escalated` does the same as `bold` and
asks to leave the sandbox. `safe` reads a file that is hidden in a sandbox. In a sandbox, a command can `run` or
`fail`; `free` means that it runs without a sandbox.
"""

PATCHES: Final = """
                                | inside  | in a root | outside
untrusted  | read-only          | asks    | asks      | asks
untrusted  | workspace-write    | asks    | asks      | asks
untrusted  | danger-full-access | asks    | asks      | asks
on-failure | read-only          | asks    | asks      | asks
on-failure | workspace-write    | applied | applied   | asks
on-failure | danger-full-access | applied | applied   | applied
on-request | read-only          | asks    | asks      | asks
on-request | workspace-write    | applied | asks      | asks
on-request | danger-full-access | applied | asks      | asks
never      | read-only          | refused | refused   | refused
never      | workspace-write    | applied | refused   | refused
never      | danger-full-access | applied | refused   | refused
"""
"""The columns: a file in the working directory, a file in another writable root, and a file in neither."""


class Answer(NamedTuple):
    """An answer of a client, and the decision that it means."""

    said: dict[str, Any]
    decision: Decision
    reason: str | None = None


def result(means: Decision, because: str | None = None, /, **said: Any) -> Answer:
    return Answer({"result": said}, means, because)


DECISIONS: Final = (
    result("approved", decision="approved"),
    result("approved_for_session", decision="approved_for_session"),
    result("denied", decision="denied"),
    result("abort", decision="abort"),
)

OTHER_FORMS: Final = (
    result("denied", "not today", decision="denied", reason="not today"),
    result("approved", action="accept"),
    result("approved", action="accept", content={}),
    result("approved", action="accept", content={"decision": "approved"}),
    result("approved_for_session", action="accept", content={"decision": "approved_for_session"}),
    result("denied", action="accept", content={"decision": "denied"}),
    result("denied", "no", action="accept", content={"decision": "denied", "reason": "no"}),
    result("abort", action="accept", content={"decision": "abort"}),
    result("approved", action="accept", content={"decision": "perhaps"}),
    result("denied", action="decline"),
    result("denied", "no", action="decline", content={"reason": "no"}),
    result("abort", action="cancel"),
    result("denied", action="accept", decision="denied"),
    result("approved", action="decline", decision="approved"),
    result("denied", decision="maybe"),
    result("denied", decision=["approved"]),
    result("denied", action="maybe"),
    result("denied"),
    Answer({"result": None}, "denied"),
    Answer({"result": "approved"}, "denied"),
    Answer({"error": {"code": -32601, "message": "Method not found"}}, "denied"),
)


class Cell(NamedTuple):
    policy: str
    mode: str
    what: str
    word: str
    answer: Answer | None
    way: Way

    @property
    def is_patch(self) -> bool:
        return self.what in ("inside", "in a root", "outside")


def rows(table: str) -> Iterator[tuple[str, str, str, str]]:
    """Return policy, mode, action and the name of the expected result."""
    head, *lines = table.strip("\n").splitlines()
    columns = [column.strip() for column in head.split("|")[1:]]
    for line in lines:
        policy, mode, *words = (word.strip() for word in line.split("|"))
        yield from ((policy, mode, what, word) for what, word in zip(columns, words, strict=True))


def cells(way: Way, answers: Iterable[Answer] = DECISIONS) -> Iterator[Cell]:
    """Return all cells. Cells without an approval request occur only once."""
    for row in (*rows(COMMANDS), *rows(PATCHES)):
        asks = row[3] in ("asks", "retry")
        yield from (Cell(*row, answer, way) for answer in (answers if asks else (None,)))


def cells_by_turns(way: Way) -> Iterator[Cell]:
    """Return half of the cells, with every row and every answer. The other way of calling runs the other half."""
    for place, row in enumerate((*rows(COMMANDS), *rows(PATCHES))):
        answers = DECISIONS if row[3] in ("asks", "retry") else (None,)
        first = (place + get_args(Way).index(way)) % 2
        yield from (Cell(*row, answer, way) for answer in answers[first::2])


def some_that_ask(answers: Iterable[Answer]) -> Iterator[Cell]:
    """Return one cell for each answer, alternating the kinds of request and the ways of calling."""
    for place, answer in enumerate(answers):
        policy, mode, what, word = (
            ("untrusted", "workspace-write", "bold", "asks"),
            ("on-failure", "read-only", "modest", "retry"),
            ("untrusted", "workspace-write", "inside", "asks"),
        )[place % 3]
        yield Cell(policy, mode, what, word, answer, get_args(Way)[place % 2])


# --- running a cell --------------------------------------------------------------------------


class Places(NamedTuple):
    """The directories of one cell."""

    top: Path
    """The top directory of the repository that contains the other directories."""
    cwd: Path
    inside: Path
    in_a_root: Path
    outside: Path
    secret: Path

    def written(self) -> set[Path]:
        return {path for path in (self.inside, self.in_a_root, self.outside) if path.exists()}


class Outcome(NamedTuple):
    """All observable effects of one turn."""

    events: list[Any]
    approvals: list[Any]
    outputs: list[tuple[str, str]]
    """The output of each call that the model gets; empty if no further request is sent to the model."""
    written: set[Path]


SAID: Final = "said\n"
CONTENT: Final = "x\n"
BLOB: Final = "587be6b4c3f93f93c489c0111bba5596147a26cb"
"""Git's object name of a file with this content."""
SECRET: Final = "not for models\n"
WHY: Final = "it has to be"

HIDDEN: Final = ("No such file or directory", "Permission denied")
"""The error messages for a hidden file, one for each sandbox mechanism."""


class Stage:
    """A server whose client can be asked, and the directories of its cells."""

    def __init__(self, speaker: WireClient, folder: Path, mechanism: str) -> None:
        self._speaker, self._folder, self._mechanism = speaker, folder, mechanism
        self._played, self._asked = 0, 0

    async def play(self, cell: Cell) -> tuple[Outcome, Outcome]:
        """Run a cell. Return the observed and the expected outcome."""
        self._played += 1
        places = self._places(self._played)
        self._speaker.model.says(*calls_of(cell, places))
        asked_before = len(self._speaker.model.requests)
        talk = self._codex if cell.way == "codex" else self._stream
        request_id, messages = await talk(cell, places)
        events = events_in(messages)[1:] if cell.way == "codex" else live_events(messages)
        approvals = [one["params"] for one in messages if one.get("method") == "elicitation/create"]
        is_over = len(self._speaker.model.requests) == asked_before + 1
        seen = Outcome(
            events=gathered(map(without_hidden, events)),
            approvals=[without_event_id(approval) for approval in approvals],
            outputs=[] if is_over else [(call_id, plain(text)) for call_id, text in outputs(self._speaker.model)],
            written=places.written(),
        )
        return seen, expected(cell, places, str(request_id))

    def _places(self, number: int) -> Places:
        top, cwd, name = self._folder, self._speaker.work / str(number), f"{number}.txt"
        cwd.mkdir()
        return Places(
            top=top,
            cwd=cwd,
            inside=cwd / name,
            in_a_root=top / "scratch" / name,
            outside=top / "outside" / name,
            secret=self._speaker.raw.home / "secret.txt",
        )

    def _config(self) -> dict[str, Any]:
        return {"sandbox.mechanism": self._mechanism}

    async def _codex(self, cell: Cell, places: Places) -> tuple[int, list[Any]]:
        arguments = {"approval-policy": cell.policy, "sandbox": cell.mode, "config": self._config()}
        request_id = self._speaker.call("codex", prompt="go", cwd=str(places.cwd), **arguments)
        return request_id, await self._until_over(cell, lambda one: one.get("id") == request_id)

    async def _stream(self, cell: Cell, places: Places) -> tuple[int, list[Any]]:
        arguments = {"approval_policy": cell.policy, "sandbox": cell.mode, "config": self._config()}
        created = self._speaker.call("conversationCreate", prompt="", model=MODEL, cwd=str(places.cwd), **arguments)
        conversation = (await self._speaker.value_of(created))["conversation_id"]
        stream, _ = await self._speaker.open_stream(conversation)
        await self._speaker.say(conversation, "go")
        messages = await self._until_over(cell, lambda one: one.get("method") in ("task_complete", "error"))
        self._speaker.cancel(stream)
        return created, messages

    async def _until_over(self, cell: Cell, is_last: Any) -> list[Any]:
        messages: list[Any] = []
        while not messages or not is_last(messages[-1]) or messages[-1].get("method") == "elicitation/create":
            messages.append(await self._speaker.read())
            if messages[-1].get("method") == "elicitation/create":
                assert messages[-1]["id"] == self._asked
                assert cell.answer is not None, f"{cell} was asked about"
                self._speaker.write(encode({"jsonrpc": "2.0", "id": self._asked, **cell.answer.said}) + b"\n")
                self._asked += 1
        return messages + await self._speaker.meanwhile()


@asynccontextmanager
async def stage(model: ScriptedModel, folder: Path, mechanism: str = "auto") -> AsyncIterator[Stage]:
    for name in ("scratch", "outside", ".git"):
        (folder / name).mkdir()
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    config = f"""
        [sandbox_workspace_write]
        writable_roots = ["{folder}/scratch"]
        exclude_slash_tmp = true
        exclude_tmpdir_env_var = true
        """
    async with RawParley(model, home=folder / "home", config=config) as raw:
        (raw.home / "secret.txt").write_text(SECRET)
        speaker = WireClient(raw)
        info = {"name": "matrix", "version": "1"}
        params = {"protocolVersion": PLAIN_VERSION, "capabilities": {"elicitation": {}}, "clientInfo": info}
        await speaker.result_of(speaker.request("initialize", params))
        yield Stage(speaker, folder, mechanism)


def live_events(messages: list[Any]) -> list[Any]:
    return [
        one["params"]["msg"]
        for one in messages
        if "method" in one and "id" not in one and not one["method"].startswith("notifications/")
    ]


def plain(text: str) -> str:
    for words in HIDDEN:
        text = text.replace(words, "<hidden>")
    return text


def without_hidden(event: Any) -> Any:
    """Return the event without the text that depends on the sandbox mechanism."""
    match event:
        case {"type": "exec_command_output_delta", "chunk": chunk}:
            return {**event, "chunk": list(plain(bytes(chunk).decode()).encode())}
        case {"type": "exec_command_end", "stderr": stderr}:
            return {**event, "stderr": plain(stderr)}
        case _:
            return event


def without_event_id(approval: Any) -> Any:
    """Return the approval request without the id of its event, which depends on the conversation."""
    assert approval["codex_event_id"]
    return {key: value for key, value in approval.items() if key != "codex_event_id"}


# --- the calls of the model --------------------------------------------------------------------


def number_of_calls(cell: Cell) -> int:
    """Return the number of calls: two if the approval is for the session."""
    answer = cell.answer
    return 2 if answer and answer.decision == "approved_for_session" and not cell.is_patch else 1


def script(*paths: Path) -> str:
    """Return a script that prints a line and tries to write all files, silently if that fails."""
    files = shlex.join(map(str, paths))
    return f"echo said; for file in {files}; do (echo x >$file) 2>/dev/null || bad=1; done; exit $bad"


def argv_of(cell: Cell, places: Places) -> tuple[str, ...]:
    match cell.what:
        case "modest":
            return ("sh", "-c", script(places.inside))
        case "safe":
            return ("cat", str(places.secret))
        case _:
            return ("sh", "-c", script(places.inside, places.outside))


def target_of(cell: Cell, places: Places) -> Path:
    return {"inside": places.inside, "in a root": places.in_a_root, "outside": places.outside}[cell.what]


def calls_of(cell: Cell, places: Places) -> Iterator[Call]:
    for number in range(1, number_of_calls(cell) + 1):
        if cell.is_patch:
            text = f"*** Begin Patch\n*** Add File: {target_of(cell, places)}\n+x\n*** End Patch"
            yield Call("apply_patch", {"input": text}, f"c{number}")
        else:
            more = {"with_escalated_permissions": True, "justification": WHY} if cell.what == "escalated" else {}
            yield Call("shell", {"command": argv_of(cell, places), **more}, f"c{number}")


# --- the expected outcomes -----------------------------------------------------------------------


def expected(cell: Cell, places: Places, request_id: str) -> Outcome:
    return (expected_of_patch if cell.is_patch else expected_of_command)(cell, places, request_id)


def turn(events: list[Any], *, aborted: bool = False) -> list[Any]:
    if aborted:
        return [TASK_STARTED, *events, error(" Turn interrupted")]
    return [TASK_STARTED, *events, delta("Done"), agent_message("Done"), task_complete("Done")]


def rejected(what: str, answer: Answer) -> str:
    return f"{what} rejected by user" + ("" if answer.reason is None else f": {answer.reason}")


def asked_params(message: str, request_id: str, kind: str, **more: Any) -> Any:
    return {
        "message": message,
        "requestedSchema": {"type": "object", "properties": {}},
        "codex_elicitation": kind,
        "codex_mcp_tool_call_id": request_id,
        "codex_call_id": "c1",
        **more,
    }


class Run(NamedTuple):
    """The output and the effects of a command that is not restricted."""

    argv: tuple[str, ...]
    cwd: Path
    said: str
    written: set[Path]
    parsed: list[Any] | None = None

    def begin(self, call_id: str) -> Any:
        return begun(call_id, *self.argv, cwd=self.cwd, parsed=self.parsed)

    def events(self, call_id: str = "c1") -> list[Any]:
        return [self.begin(call_id), output(call_id, self.said), ended(call_id, self.said)]


def run_of(cell: Cell, places: Places) -> Run:
    argv = argv_of(cell, places)
    match cell.what:
        case "safe":
            parsed = [{"Read": {"cmd": list(argv), "name": "secret.txt"}}]
            return Run(argv, places.cwd, SECRET, set(), parsed)
        case "modest":
            return Run(argv, places.cwd, SAID, {places.inside})
        case _:
            return Run(argv, places.cwd, SAID, {places.inside, places.outside})


RETRY: Final = "command failed; retry without sandbox?"
DENIED: Final = f"sandbox denied exec error, exit code: 1, stdout: {SAID}, stderr: "


def expected_of_command(cell: Cell, places: Places, request_id: str) -> Outcome:
    run = run_of(cell, places)
    reached = {places.inside} if cell.mode == "workspace-write" else set[Path]()
    failing = [run.begin("c1"), output("c1", SAID), unended("c1", "")]
    match cell.word:
        case "free" | "runs":
            return Outcome(turn(run.events()), [], [("c1", patch_output(run.said))], run.written)
        case "reads":
            complaint = f"cat: {places.secret}: <hidden>\n"
            end = ended("c1", "", complaint, exit_code=1)
            payloads = [run.begin("c1"), output("c1", complaint, stream="stderr"), end]
            return Outcome(turn(payloads), [], [("c1", patch_output(complaint, exit_code=1))], set())
        case "fails":
            text = f"failed in sandbox LinuxSeccomp with execution error: {DENIED}"
            return Outcome(turn(failing), [], [("c1", text)], reached)
        case "retry":
            before = [*failing, background(f"Execution failed: {DENIED}")]
            after = [background("retrying command without sandbox")]
            return expected_of_approval(cell, run, request_id, RETRY, before, after, reached)
        case _:
            why = WHY if cell.what == "escalated" else None
            return expected_of_approval(cell, run, request_id, why, [], [], set())


def expected_of_approval(
    cell: Cell,
    run: Run,
    request_id: str,
    reason: str | None,
    before: list[Any],
    after: list[Any],
    written: set[Path],
) -> Outcome:
    """Return the expected events and files before the request and after an approval."""
    assert cell.answer is not None
    command, cwd = list(run.argv), str(run.cwd)
    request = {"type": "exec_approval_request", "call_id": "c1", "command": command, "cwd": cwd}
    payloads = [*before, request if reason is None else {**request, "reason": reason}]
    message = f"Allow Codex to run `{shlex.join(command)}` in `{cwd}`?"
    approval = asked_params(message, request_id, "exec-approval", codex_command=command, codex_cwd=cwd)
    match cell.answer.decision:
        case "abort":
            return Outcome(turn(payloads, aborted=True), [approval], [], written)
        case "denied":
            text = rejected("exec command", cell.answer)
            return Outcome(turn(payloads), [approval], [("c1", text)], written)
        case "approved":
            done = [*after, *run.events()]
            return Outcome(turn(payloads + done), [approval], [("c1", patch_output(SAID))], run.written)
        case "approved_for_session":
            done = [*after, *run.events("c1"), *run.events("c2")]
            texts = [("c1", patch_output(SAID)), ("c2", patch_output(SAID))]
            return Outcome(turn(payloads + done), [approval], texts, run.written)


def background(message: str) -> Any:
    return {"type": "background_event", "message": message}


def expected_of_patch(cell: Cell, places: Places, request_id: str) -> Outcome:
    path = str(target_of(cell, places))
    changes = {path: added(CONTENT)}
    name = target_of(cell, places).relative_to(places.top)
    diff = (
        f"diff --git a/{name} b/{name}\nnew file mode 100644\nindex {'0' * 40}..{BLOB}\n"
        f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"
    )
    begin, *rest = map(as_json, applied(changes, success(f"A {path}"), diff))
    done = [{**begin, "auto_approved": cell.word == "applied"}, *rest]
    texts = [("c1", patch_output(success(f"A {path}")))]
    if cell.word == "applied":
        return Outcome(turn(done), [], texts, {Path(path)})
    if cell.word == "refused":
        text = "patch rejected: writing outside of the project; rejected by user approval settings"
        return Outcome(turn([]), [], [("c1", text)], set())
    assert cell.answer is not None
    shown = {path: as_json(added(CONTENT))}
    request = {"type": "apply_patch_approval_request", "call_id": "c1", "changes": shown}
    message = "Allow Codex to apply proposed code changes?"
    approval = asked_params(message, request_id, "patch-approval", codex_changes=shown)
    match cell.answer.decision:
        case "abort":
            return Outcome(turn([request], aborted=True), [approval], [], set())
        case "denied":
            text = rejected("patch", cell.answer)
            return Outcome(turn([request]), [approval], [("c1", text)], set())
        case "approved" | "approved_for_session":
            return Outcome(turn([request, *done]), [approval], texts, {Path(path)})


# --- all cells -------------------------------------------------------------------------------


def test_the_tables_have_every_policy_and_mode() -> None:
    everything = [(policy, mode) for policy in get_args(ApprovalPolicy) for mode in get_args(SandboxMode)]

    for table in (COMMANDS, PATCHES):
        assert list(dict.fromkeys((policy, mode) for policy, mode, _, _ in rows(table))) == everything


async def play_all(model: ScriptedModel, folder: Path, played: Iterable[Cell], mechanism: str = "auto") -> None:
    async with stage(model, folder, mechanism) as playing:
        for cell in played:
            seen, wanted = await playing.play(cell)

            assert seen == wanted, cell


@pytest.mark.promises(
    "decide.commands", "decide.safe", "decide.retry", "decide.patches", "approvals.denied", "approvals.session"
)
@SANDBOX
@pytest.mark.parametrize(
    ("policy", "way"),
    [
        pytest.param(policy, way, marks=pytest.mark.long if (policy, way) in ONLY_LONG else ())
        for policy in get_args(ApprovalPolicy)
        for way in get_args(Way)
    ],
)
async def test_every_cell_comes_out_as_the_tables_say(
    parley_model: ScriptedModel, tmp_path: Path, policy: str, way: Way
) -> None:
    # If there are two mechanisms, streams use a different one than calls.
    mechanism = "landlock" if way == "stream" and not no_landlock() else "auto"
    played = [cell for cell in cells_by_turns(way) if cell.policy == policy]

    await play_all(parley_model, tmp_path, played, mechanism)


@pytest.mark.promises("approvals.answers", "approvals.plain")
@SANDBOX
async def test_an_answer_means_the_same_in_every_form(parley_model: ScriptedModel, tmp_path: Path) -> None:
    await play_all(parley_model, tmp_path, some_that_ask(OTHER_FORMS))


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("way", get_args(Way))
async def test_every_cell_comes_out_with_every_form_of_answer(
    parley_model: ScriptedModel, tmp_path: Path, way: Way, mechanism: str
) -> None:
    await play_all(parley_model, tmp_path, cells(way, (*DECISIONS, *OTHER_FORMS)), mechanism)
