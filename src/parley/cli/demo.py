"""`parley demo`: a whole conversation on the terminal, with a server of its own and the scripted model.

Prints what a client says (`->`) and what it is told (`<-`), as it happens. Nothing here is acted: the
server is a child process, and every word of it came over its stdout.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

import msgspec

from parley.cli.printing import print_error
from parley.client import Answer, Client, ClientError, Conversation, Event, Question, Stream, connect, events
from parley.version import __version__

__all__ = ["run_demo"]

USAGE: Final = """\
usage: parley demo

Show a whole conversation on the terminal: create, stream, send, pause, send
while paused, resume; then one in which the agent works in a sandbox, and asks
before it leaves it. It starts a server with a home of its own, and the model is
a script that comes with Parley: no key, no network, and nothing is kept.
Takes about ten seconds; Ctrl-C ends it at any time.

options:
  -h, --help   this text

Colours are used on a terminal, unless NO_COLOR is set.
"""

WIDTH: Final = 79
_PARTS: Final = re.compile(r"\n|[^\S\n]+|\S+")
INDENT: Final = "      "

MIDDLE_OF_A_SENTENCE: Final = 50
"""So many characters in, there is something to catch up with, and something left to watch."""

GLANCE_SECONDS: Final = 0.05
"""How often we look how far the agent is while we do not stream."""

WORK: Final = {
    "delta_delay_ms": 25,
    "replies": [
        [
            {"text": "A function, two lines that try it, and a copy for all."},
            {
                "call": {
                    "name": "apply_patch",
                    "arguments": {
                        "input": "*** Begin Patch\n*** Add File: greet.py\n+def greet(name: str) -> str:\n"
                        '+    return f"Hello, {name}!"\n+\n+\n'
                        '+if __name__ == "__main__":\n+    print(greet("world"))\n'
                        "*** End Patch"
                    },
                }
            },
            {"call": {"name": "shell", "arguments": {"command": ["python3", "greet.py"]}}},
            {"call": {"name": "shell", "arguments": {"command": ["cp", "greet.py", ".."]}}},
        ],
        [
            {"text": "It greets. But the copy would lie outside the sandbox: I ask."},
            {
                "call": {
                    "name": "shell",
                    "arguments": {
                        "command": ["cp", "greet.py", ".."],
                        "with_escalated_permissions": True,
                        "justification": "The copy is to lie beside the project.",
                    },
                }
            },
        ],
        [{"text": "Done: the greeting, and the copy that you allowed."}],
    ],
}
"""What the agent does in the last part."""

DELTAS: Final = (events.AgentReasoningDelta, events.AgentMessageDelta, events.ExecCommandOutputDelta)
"""What is told under one heading, as long as nothing else comes in between."""

FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""Variables of the user that would change what the server does: the demonstration is the same for all."""


def run_demo(arguments: Sequence[str]) -> int:
    """Show it, and return the exit code: 0, 1 when it went wrong, 2 for a wrong command line, 130 after Ctrl-C."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if arguments:
        what = "unknown option" if arguments[0].startswith("-") else "unexpected argument"
        print_error("demo", f"{what} {arguments[0]!r}; see `parley demo --help`")
        return 2
    page = _Page()
    try:
        return asyncio.run(_demonstrate(page))
    except KeyboardInterrupt:
        page.end_line()
        print("parley demo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `parley demo | head`: whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ClientError) as error:
        page.end_line()
        print_error("demo", error)
        return 1


# --- the story -------------------------------------------------------------------------


async def _demonstrate(page: _Page) -> int:
    page.paragraph(
        f"Parley {__version__}: what a client says (->) and what it is told (<-). "
        "The model is a script, so this needs no key and no network."
    )
    notifications: list[bytes] = []

    def take(frame: bytes) -> None:
        if b'"method":' in frame[:40]:  # an answer has an id there
            notifications.append(frame)

    doorbell = _Doorbell(page)
    with tempfile.TemporaryDirectory(prefix="parley-demo-") as place:
        home, project = _prepare(place)
        page.step("Start a server")
        page.says("parley mcp -c model_provider=scripted")
        page.says("initialize")
        started_at = time.perf_counter()
        async with connect(
            (sys.executable, "-P", "-m", "parley", "mcp", "-c", "model_provider=scripted"),
            env={**_without_foreign_variables(), "PARLEY_HOME": home},
            cwd=home,
            client_name="parley-demo",
            on_question=doorbell.answer,
            on_frame=take,
        ) as client:
            milliseconds = (time.perf_counter() - started_at) * 1000
            version = client.initialize_result.protocol_version
            page.told(f"MCP {version}; {milliseconds:.0f} ms since the process was started")
            kept = await _converse(page, client, home, notifications)
            if kept:
                await _work(page, client, project, doorbell)
            return 0 if kept else 1


async def _converse(page: _Page, client: Client, cwd: str, notifications: list[bytes]) -> bool:
    """Show that nothing is lost; whether that was so."""
    page.step("Create a conversation and stream it")
    page.says("conversationCreate")
    conversation = await client.create(model="demonstration", cwd=cwd)
    page.told(f"conversation_id {conversation.id}")
    page.says("conversationStream")
    async with conversation.stream() as stream:
        page.told(f"initial_state: {len(stream.snapshot)} events; what follows is live")

        page.step("Send a message, and read the answer while it is written")
        await _send(page, conversation, "Hello! Who is there?")
        first = await _Telling(page).tell(stream, turn=1)

    page.step("Pause, and send a message while nobody watches")
    page.says("notifications/cancelled, with the id of the stream's request")
    await client.ping()  # what was on its way has arrived now
    notifications.clear()
    await _send(page, conversation, "And what if I leave?")
    await _middle_of_a_sentence(conversation)
    page.told(f"{len(notifications)} notifications; the agent talks all the same")

    page.step("Come back while it talks")
    page.says("conversationStream")
    async with conversation.stream() as stream:
        page.told(f"initial_state: {len(stream.snapshot)} events, both turns from the beginning")
        second = await _Telling(page).tell(stream, turn=2)

    page.step("Count")
    page.says("conversationRead")
    found = (await conversation.read()).events
    kept = [event.message for _, event, *_ in found if isinstance(event, events.AgentMessage)]
    page.told(f"{len(found)} events, with {len(kept)} messages of {sum(map(len, kept))} characters")
    if [first, second] != kept:
        page.paragraph("\nSomething is wrong: that is not what was shown above.")
        return False
    page.paragraph("\nEvery one of these characters was shown above, once. Nothing was lost.")
    return True


async def _work(page: _Page, client: Client, project: str, doorbell: _Doorbell) -> None:
    """Let the agent change a file, run commands, and ask for more than it may."""
    page.step("Let the agent work in a sandbox, and answer when it wants to leave it")
    page.says("conversationCreate, sandbox workspace-write, approval_policy on-request")
    conversation = await client.create(
        model="demonstration",
        cwd=project,
        approval_policy="on-request",
        sandbox="workspace-write",
        config={
            "model_providers.scripted": {"script": "work.json"},
            # The project lies in a temporary directory: what is beside it is to be outside.
            "sandbox_workspace_write": {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True},
        },
    )
    page.told(f"conversation_id {conversation.id}")
    page.says("conversationStream")
    async with conversation.stream() as stream:
        await _send(page, conversation, "Write a greeting, try it, and copy it outside.")
        telling = _Telling(page, doorbell)
        await telling.tell(stream, turn=1)
    if not telling.saw_a_patch:
        page.paragraph(
            "\nThis computer cannot confine commands, so all that nobody had allowed was refused. "
            "`parley doctor` says what it lacks."
        )


def _prepare(place: str) -> tuple[str, str]:
    """A home with the script for the agent, and an empty directory for it to work in.

    Beside each other: the home is hidden from commands.
    """
    home, project = Path(place, "home"), Path(place, "project")
    home.mkdir()
    project.mkdir()
    (home / "work.json").write_bytes(msgspec.json.encode(WORK))
    return str(home), str(project)


class _Doorbell:
    """Answers the one question of the demonstration, once its event has been told."""

    def __init__(self, page: _Page) -> None:
        self._page = page
        self.told = asyncio.Event()

    async def answer(self, question: Question) -> Answer:
        await self.told.wait()
        self._page.told(f"{question.METHOD}:")
        self._page.write(question.message)
        self._page.says("decision approved")
        return "approved"


async def _send(page: _Page, conversation: Conversation, text: str) -> None:
    page.says(f'conversationSendMessage "{text}"')
    await conversation.send(text)
    page.told("status ok")


async def _middle_of_a_sentence(conversation: Conversation) -> None:
    """Return when the agent is in the middle of its message, or past it."""
    while True:
        found = await conversation.read(after=(await conversation.status()).seq)
        written = sum(len(text.text) for text in found.open if text.type == _name(events.AgentMessageDelta))
        if written >= MIDDLE_OF_A_SENTENCE or found.state == "idle":
            return
        await asyncio.sleep(GLANCE_SECONDS)


class _Telling:
    """Tells what a stream shows, while it shows it."""

    def __init__(self, page: _Page, doorbell: _Doorbell | None = None) -> None:
        self._page, self._doorbell = page, doorbell
        self.saw_a_patch = False
        self._heading = ""
        self._deltas = 0
        self._line = ""
        """Of what a command says, the line that has not ended yet."""

    async def tell(self, stream: Stream, *, turn: int) -> str:
        """Read to the end of the turn of this number; return the text that was shown of it."""
        shown, completed = "", 0
        async for seen in stream.detailed():
            ends = isinstance(seen.msg, events.TaskComplete)
            if completed == turn - 1:  # earlier turns were shown before
                shown += self._show(seen.msg, live=seen.live)
            completed += ends
            if completed == turn:
                break
        return shown

    def _show(self, event: Event, *, live: bool) -> str:
        if not isinstance(event, DELTAS):
            self._page.lines(self._line)
            self._line = self._heading = ""
        match event:
            case events.AgentReasoningDelta(delta=delta):
                self._write(event, delta, live=live)
            case events.AgentMessageDelta(delta=delta):
                self._write(event, delta, live=live)
                return delta
            case events.AgentMessage(message=message) if not self._deltas and not live:
                self._page.told("agent_message:")
                self._page.write(message)
                return message
            case events.AgentMessage(message=message):
                self._page.told(f"agent_message: the same {len(message)} characters, whole")
            case events.PatchApplyBegin(changes=changes):
                self.saw_a_patch = True
                self._page.told(f"{_name(event)}: {', '.join(map(os.path.basename, changes))}")
            case events.TurnDiff(unified_diff=diff):
                self._page.told(f"{_name(event)}:")
                self._page.lines(diff[diff.index("@@") :])
            case events.ExecCommandBegin(command=command):
                self._page.told(f"{_name(event)}: {' '.join(command)}")
            case events.ExecCommandOutputDelta():
                self._pass_on(event)
            case events.ExecCommandEnd(exit_code=exit_code):
                self._page.told(f"{_name(event)}: exit code {exit_code}")
            case events.ExecApprovalRequest(command=command):
                self._page.told(f"{_name(event)}: {' '.join(command)}")
                if self._doorbell is not None:
                    self._doorbell.told.set()
            case events.ApprovalSettled(decision=decision, by=by):
                self._page.told(f"{_name(event)}: {decision}, by {by}")
            case events.UnknownEvent(type=name):
                self._page.told(name)
            case _:
                self._page.told(_name(event))
        return ""

    def _pass_on(self, output: events.ExecCommandOutputDelta) -> None:
        """Whole lines, however they came in pieces."""
        self._say_once(f"{_name(output)}, {output.stream}:")
        *lines, self._line = (self._line + bytes(output.chunk).decode(errors="replace")).split("\n")
        for line in lines:
            self._page.lines(line)

    def _write(self, event: events.EventBase, delta: str, *, live: bool) -> None:
        how = "one by one, as they are written" if live else "all so far in one piece"
        self._say_once(f"{_name(event)}, {how}:")
        self._deltas += 1
        self._page.write(delta)

    def _say_once(self, heading: str) -> None:
        """Until something else is told."""
        if heading != self._heading:
            self._page.told(heading)
            self._heading = heading


def _name(event: events.EventBase | type[events.EventBase]) -> str:
    return events.event_type(event)


def _without_foreign_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


# --- the page --------------------------------------------------------------------------


class _Page:
    """The terminal, or whatever stdout is: 80 columns, written as it happens."""

    def __init__(self) -> None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._bold, self._dim, self._plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
        self._column = 0
        self._space = ""
        self._steps = 0

    def paragraph(self, text: str) -> None:
        self.end_line()
        self._print(f"{fill(text, WIDTH, replace_whitespace=False)}\n")

    def step(self, title: str) -> None:
        self.end_line()
        self._steps += 1
        self._print(f"\n{self._bold}{self._steps}. {title}{self._plain}\n")

    def says(self, what: str) -> None:
        self.end_line()
        self._print(f"   -> {what}\n")

    def told(self, what: str) -> None:
        self.end_line()
        self._print(f"   {self._dim}<- {what}{self._plain}\n")

    def write(self, text: str) -> None:
        """A piece of running text, wrapped between words."""
        for part in _PARTS.findall(text):
            if part == "\n":
                self._print("\n")
                self._column = 0
            elif part.isspace():
                self._space = part if self._column else ""
            else:
                self._word(part)

    def lines(self, text: str) -> None:
        """Text as it is, line by line."""
        for line in text.splitlines():
            self._print(f"{INDENT}{line}"[:WIDTH].rstrip() + "\n")

    def _word(self, word: str) -> None:
        lead, self._space = self._space, ""
        if self._column and self._column + len(lead) + len(word) > WIDTH:
            self.end_line()
        if not self._column:
            lead = INDENT
        self._print(f"{lead}{word}")
        self._column += len(lead) + len(word)

    def end_line(self) -> None:
        """Go to the beginning of a line, if we are not there."""
        if self._column:
            self._print("\n")
        self._column, self._space = 0, ""

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
