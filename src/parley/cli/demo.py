"""`parley demo`: shows a whole conversation on the terminal, with its own resident server and a scripted model.

The demo prints in real time what the client sends (`->`) and receives (`<-`). The server, and the client that the
demo kills, are real processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from parley.app.signals import KILLED
from parley.cli.ids import SHORT
from parley.cli.runner import CommandFailed
from parley.cli.steps import StepPrinter
from parley.cli.trace_renderer import TraceRenderer
from parley.client import Approval, Client, ClientError, Conversation, ResidentSocket, connect, events
from parley.version import __version__
from parley.wire.events import decode_event

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Show a whole conversation on the terminal: start a resident server, create a
conversation and stream it; kill a client in the middle of a sentence and return to
the same turn; then let the agent work in a sandbox and ask before it leaves the
sandbox. The server has a home of its own, and the model is a script that comes with
Parley: the demo needs no key and no network, and stores nothing. The demo takes
about ten seconds; Ctrl-C ends it at any time.

Colours are used on a terminal, unless NO_COLOR is set.

exit code: 0 on success, 1 if the demo failed, 2 for a usage error, 130 after Ctrl-C."""

MIDDLE_OF_A_SENTENCE: Final = 50
"""The number of characters of the agent's message after which the demo kills the client that shows the message."""

UNSEEN_CHARACTERS: Final = 30
"""The number of characters that the agent writes while no client shows its message: after the demo has killed one
client, and before another client begins to stream. The complete message is longer.
"""

SETTINGS: Final = """\
model_provider = "scripted"

[serve]
drain_seconds = 0
idle_exit_minutes = 1
"""
"""The config.toml of the demo. If the demo is killed and cannot stop its server, the server exits after one idle
minute.
"""

WRITTEN_POLL_SECONDS: Final = 0.05
"""The interval, in seconds, between two checks of how many characters the agent has written. The checks begin when
the demo has killed a client.
"""

WORK: Final = {
    "delta_delay_ms": 25,
    "replies": [
        [
            {"text": "I write a function, run it, and copy the file to the directory above."},
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
            {"text": "The program works. The copy is outside the sandbox, so I ask for approval."},
            {
                "call": {
                    "name": "shell",
                    "arguments": {
                        "command": ["cp", "greet.py", ".."],
                        "with_escalated_permissions": True,
                        "justification": "The copy belongs in the directory above the project.",
                    },
                }
            },
        ],
        [{"text": "Done: the program works, and the copy is in place."}],
    ],
}
"""The script of the model for the last part of the demo, in which the agent changes a file and requests an
approval.
"""

PARLEY: Final = (sys.executable, "-P", "-m", "parley")

FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""The prefixes of the environment variables that the demo removes from the environment of the server. These
variables would change the behaviour of the server.
"""


def configure(_: argparse.ArgumentParser) -> None:
    """Do nothing, because `parley demo` has no options."""


def run(_: argparse.Namespace) -> int:
    printer = StepPrinter()
    try:
        return asyncio.run(_demonstrate(printer))
    except KeyboardInterrupt:
        printer.end_line()
        raise CommandFailed("interrupted", code=KILLED + signal.SIGINT) from None
    except BrokenPipeError:
        raise
    except (OSError, ClientError) as error:
        printer.end_line()
        raise CommandFailed(str(error)) from None


# --- the story -------------------------------------------------------------------------


async def _demonstrate(printer: StepPrinter) -> int:
    printer.paragraph(
        f"Parley {__version__}: what a client sends (->) and receives (<-). "
        "The model is a script, so this needs no key and no network."
    )
    approver = _Approver(printer)
    with tempfile.TemporaryDirectory(prefix="parley-demo-") as place:
        home, project = _prepare(place)
        env = {**_without_foreign_variables(), "PARLEY_HOME": home}
        async with _resident(printer, env, cwd=home) as socket:
            printer.sent("connect to its socket, initialize")
            transport = ResidentSocket(socket, env=env, cwd=home)
            async with connect(
                transport, client_name="parley-demo", on_approval=approver.answer, reconnect_seconds=0
            ) as client:
                printer.received(f"MCP {client.initialize_result.protocol_version}")
                kept = await _converse(printer, client, home, env)
                if kept:
                    await _work(printer, client, project, approver)
    if kept:
        printer.paragraph(
            "\nThe demo is over, and its conversations are deleted. "
            "`parley config init` chooses a provider and a model, and `parley chat` starts a conversation."
        )
    return 0 if kept else 1


@asynccontextmanager
async def _resident(printer: StepPrinter, env: Mapping[str, str], *, cwd: str) -> AsyncIterator[str]:
    """Start a resident server, yield the path of its socket, and stop the server at the end of the `async with`
    block.
    """
    printer.step("Start a resident server")
    printer.sent("parley serve --json --exit-when-idle --no-http")
    started_at = time.perf_counter()
    server = await asyncio.create_subprocess_exec(
        *(*PARLEY, "serve", "--json", "--exit-when-idle", "--no-http"),
        # Hides the warning that is logged if the demo is interrupted during a turn.
        env={**env, "PARLEY_LOG": "error"},
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes only to the demo, which then stops the server
    )
    try:
        assert server.stdout is not None
        line = await server.stdout.readline()
        if not line:
            raise CommandFailed("the resident server could not be started")
        milliseconds = (time.perf_counter() - started_at) * 1000
        description = msgspec.json.decode(line)
        printer.received(
            f"serves {os.path.basename(description['socket'])} in its home, {milliseconds:.0f} ms later"
        )
        yield description["socket"]
    finally:
        if server.returncode is None:
            server.terminate()
            await server.wait()


async def _converse(printer: StepPrinter, client: Client, cwd: str, env: Mapping[str, str]) -> bool:
    """Show that no text is lost when a client process is killed. Return whether `client` has received exactly the
    messages that the server has stored.
    """
    printer.step("Create a conversation and stream it")
    printer.sent("conversationCreate")
    conversation = await client.create(model="demonstration", cwd=cwd)
    printer.received(f"conversation_id {conversation.id}")
    printer.sent("conversationStream")
    async with conversation.stream() as stream:
        printer.received(f"initial_state: {len(stream.snapshot)} events; what follows is live")

        printer.step("Send a message, and read the answer while it is written")
        await _send(printer, conversation, "Hello! Who is there?")
        first = await TraceRenderer(printer).render_turn(stream, turn=1)

    printer.step("Send a message with another client, and kill it in the middle of a sentence")
    seen = await _kill_in_mid_sentence(printer, conversation, cwd, env)
    await _until_written(conversation, seen + UNSEEN_CHARACTERS)

    printer.step("Return to the same turn, which goes on without that client")
    printer.sent("conversationStream")
    async with conversation.stream() as stream:
        printer.received(f"initial_state: {len(stream.snapshot)} events, both turns from the beginning")
        second = await TraceRenderer(printer).render_turn(stream, turn=2)

    printer.step("Count")
    printer.sent("conversationRead")
    found = (await conversation.read()).events
    kept = [event.message for _, event, *_ in found if isinstance(event, events.AgentMessage)]
    printer.received(f"{len(found)} events, with {len(kept)} messages of {sum(map(len, kept))} characters")
    if [first, second] != kept:
        printer.paragraph(
            "\nSomething is wrong: this client has received other messages than the server has stored."
        )
        return False
    printer.paragraph("\nThis client was sent every one of these characters, once. Nothing was lost.")
    return True


async def _kill_in_mid_sentence(
    printer: StepPrinter, conversation: Conversation, cwd: str, env: Mapping[str, str]
) -> int:
    """Start a client process that sends a message, and kill the process while it shows the message of the agent.
    Return the number of characters that the process has shown.

    Raises:
        CommandFailed: the process exited before it had shown `MIDDLE_OF_A_SENTENCE` characters.
    """
    text, beginning = "And what if I leave?", conversation.id[:SHORT]
    printer.sent(f'parley send {beginning} "{text}" --follow --json')
    process = await asyncio.create_subprocess_exec(
        *(*PARLEY, "send", conversation.id, text, "--follow", "--json"),
        cwd=cwd,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    renderer, seen = TraceRenderer(printer), 0
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            if "msg" in found:
                seen += len(renderer.render(decode_event(bytes(found["msg"])), live=True))
            if seen >= MIDDLE_OF_A_SENTENCE:
                break
        else:
            raise CommandFailed(f"`parley send` ended too early, with exit code {await process.wait()}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    printer.sent("SIGKILL")
    printer.received(f"that client has ended, after {seen} characters")
    return seen


async def _work(printer: StepPrinter, client: Client, project: str, approver: _Approver) -> None:
    """Send a message that makes the agent change a file, run commands, and request an approval."""
    printer.step("Let the agent work in a sandbox, and answer when it wants to leave it")
    printer.sent("conversationCreate, sandbox workspace-write, approval_policy on-request")
    conversation = await client.create(
        model="demonstration",
        cwd=project,
        approval_policy="on-request",
        sandbox="workspace-write",
        config={
            "model_providers.scripted": {"script": "work.json"},
            # The project is in a temporary directory, whose parent must not be writable for commands.
            "sandbox_workspace_write": {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True},
        },
    )
    printer.received(f"conversation_id {conversation.id}")
    printer.sent("conversationStream")
    async with conversation.stream() as stream:
        await _send(printer, conversation, "Write a greeting, run it, and copy it outside.")
        renderer = TraceRenderer(printer, on_approval=approver.shown.set)
        await renderer.render_turn(stream, turn=1)
    if not renderer.has_patched:
        printer.paragraph(
            "\nThis computer cannot confine commands, so Parley refused the actions that were not approved. "
            "`parley doctor` says what is missing."
        )


def _prepare(place: str) -> tuple[str, str]:
    """Create a home that contains the model's script, and a project directory, both in the directory `place`.
    Return their paths.

    The project is not in the home, because commands cannot read the home.
    """
    home, project = Path(place, "home"), Path(place, "project")
    home.mkdir()
    project.mkdir()
    (home / "config.toml").write_text(SETTINGS)
    (home / "work.json").write_bytes(msgspec.json.encode(WORK))
    return str(home), str(project)


class _Approver:
    """Answers the approval request of the demo after the event of the request has been printed."""

    def __init__(self, printer: StepPrinter) -> None:
        self._printer = printer
        self.shown = asyncio.Event()

    async def answer(self, approval: Approval) -> None:
        await self.shown.wait()
        self._printer.received("elicitation/create:")
        self._printer.write(approval.message)
        self._printer.sent("decision approved")
        await approval.approve()


async def _send(printer: StepPrinter, conversation: Conversation, text: str) -> None:
    printer.sent(f'conversationSendMessage "{text}"')
    await conversation.send(text)
    printer.received("status ok")


async def _until_written(conversation: Conversation, characters: int) -> None:
    """Wait until the agent has written the given number of characters of its message, or has finished the
    message.
    """
    while True:
        found = await conversation.read(after=(await conversation.status()).seq)
        written = sum(
            len(text.text) for text in found.open if text.type == events.event_type(events.AgentMessageDelta)
        )
        if written >= characters or found.state == "idle":
            return
        await asyncio.sleep(WRITTEN_POLL_SECONDS)


def _without_foreign_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
