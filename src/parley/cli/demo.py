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

from parley.client import Client, ClientError, Conversation, Event, Stream, connect, events
from parley.version import __version__

__all__ = ["run_demo"]

USAGE: Final = """\
usage: parley demo

Show a whole conversation on the terminal: create, stream, send, pause, send
while paused, resume; then one in which the agent changes a file and runs a
command. It starts a server with a home of its own, and the model is a script
that comes with Parley: no key, no network, and nothing is kept.
Takes about eight seconds; Ctrl-C ends it at any time.

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
            {"text": "A function, and two lines that try it."},
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
        ],
        [{"text": "It greets. The diff above is what the whole turn changed."}],
    ],
}
"""What the agent does in the last part."""

FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""Variables of the user that would change what the server does: the demonstration is the same for all."""


def run_demo(arguments: Sequence[str]) -> int:
    """Show it, and return the exit code: 0, 1 when it went wrong, 2 for a wrong command line, 130 after Ctrl-C."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if arguments:
        print(f"parley demo: cannot use {arguments[0]!r} here; try `parley demo --help`", file=sys.stderr)
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
        print(f"parley demo: {error}", file=sys.stderr)
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

    with tempfile.TemporaryDirectory(prefix="parley-demo-") as home:
        page.step("Start a server")
        page.says("parley mcp -c model_provider=scripted")
        page.says("initialize")
        started_at = time.perf_counter()
        async with connect(
            (sys.executable, "-m", "parley", "mcp", "-c", "model_provider=scripted"),
            env={**_without_foreign_variables(), "PARLEY_HOME": home},
            cwd=home,
            client_name="parley-demo",
            on_frame=take,
        ) as client:
            milliseconds = (time.perf_counter() - started_at) * 1000
            version = client.initialize_result.protocol_version
            page.told(f"MCP {version}; {milliseconds:.0f} ms since the process was started")
            kept = await _converse(page, client, home, notifications)
            if kept:
                await _work(page, client, home)
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


async def _work(page: _Page, client: Client, home: str) -> None:
    """Let the agent change a file and run a command, in a directory of its own."""
    folder = _prepare_work(home)
    page.step("Let the agent work, in a directory where it may do anything")
    page.says("conversationCreate, sandbox danger-full-access")
    conversation = await client.create(
        model="demonstration",
        cwd=folder,
        approval_policy="never",
        sandbox="danger-full-access",
        config={"model_providers.scripted": {"script": "work.json"}},
    )
    page.told(f"conversation_id {conversation.id}")
    page.says("conversationStream")
    async with conversation.stream() as stream:
        await _send(page, conversation, "Write a greeting in Python, and try it.")
        await _Telling(page).tell(stream, turn=1)


def _prepare_work(home: str) -> str:
    """The script for the agent, and an empty directory for it to work in, which is returned."""
    Path(home, "work.json").write_bytes(msgspec.json.encode(WORK))
    folder = Path(home, "project")
    folder.mkdir()
    return str(folder)


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

    def __init__(self, page: _Page) -> None:
        self._page = page
        self._heading = ""
        self._deltas = 0

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
                self._heading = ""
            case events.PatchApplyBegin(changes=changes):
                self._page.told(f"{_name(event)}: {', '.join(map(os.path.basename, changes))}")
            case events.TurnDiff(unified_diff=diff):
                self._page.told(f"{_name(event)}:")
                self._page.lines(diff[diff.index("@@") :])
            case events.ExecCommandBegin(command=command):
                self._page.told(f"{_name(event)}: {' '.join(command)}")
            case events.ExecCommandOutputDelta(stream=stream, chunk=chunk):
                self._page.told(f"{_name(event)}, {stream}:")
                self._page.lines(bytes(chunk).decode(errors="replace"))
            case events.ExecCommandEnd(exit_code=exit_code):
                self._page.told(f"{_name(event)}: exit code {exit_code}")
            case events.UnknownEvent(type=name):
                self._page.told(name)
            case _:
                self._page.told(_name(event))
        return ""

    def _write(self, event: events.EventBase, delta: str, *, live: bool) -> None:
        how = "one by one, as they are written" if live else "all so far in one piece"
        if (heading := f"{_name(event)}, {how}:") != self._heading:
            self._page.told(heading)
            self._heading = heading
        self._deltas += 1
        self._page.write(delta)


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
