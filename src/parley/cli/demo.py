"""`parley demo`: a whole conversation on the terminal, with a server of its own and the scripted model.

Prints what the client sends (`->`) and receives (`<-`), as it happens. The server is a real child process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from parley.app.signals import KILLED
from parley.cli.event_renderer import EventRenderer
from parley.cli.page import Page
from parley.cli.runner import CommandFailed
from parley.client import Approval, Client, ClientError, Conversation, ServerProcess, connect, events
from parley.version import __version__

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Show a whole conversation on the terminal: create, stream, send, pause, send
while paused, resume; then a turn in which the agent works in a sandbox and asks
before it leaves it. The demo starts a server with a home of its own, and the model
is a script that comes with Parley: no key, no network, and nothing is kept. It
takes about ten seconds; Ctrl-C ends it at any time.

Colours are used on a terminal, unless NO_COLOR is set.

exit code: 0, 1 if the demo failed, 2 for a usage error, 130 after Ctrl-C."""

MIDDLE_OF_A_SENTENCE: Final = 50
"""Characters of the answer after which the client comes back: some were missed, and some are still to come."""

GLANCE_SECONDS: Final = 0.05
"""How often the client checks the progress while it does not stream."""

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
"""The script of the agent for the last part."""

FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""Prefixes of the user's variables that would change the server's behaviour."""


def configure(_: argparse.ArgumentParser) -> None:
    """The demo has no options."""


def run(_: argparse.Namespace) -> int:
    page = Page()
    try:
        return asyncio.run(_demonstrate(page))
    except KeyboardInterrupt:
        page.end_line()
        raise CommandFailed("interrupted", code=KILLED + signal.SIGINT) from None
    except BrokenPipeError:
        raise
    except (OSError, ClientError) as error:
        page.end_line()
        raise CommandFailed(str(error)) from None


# --- the story -------------------------------------------------------------------------


async def _demonstrate(page: Page) -> int:
    page.paragraph(
        f"Parley {__version__}: what a client sends (->) and receives (<-). "
        "The model is a script, so this needs no key and no network."
    )
    notifications: list[bytes] = []

    def take(frame: bytes) -> None:
        if b'"method":' in frame[:40]:  # a response has an id there
            notifications.append(frame)

    doorbell = _Approver(page)
    with tempfile.TemporaryDirectory(prefix="parley-demo-") as place:
        home, project = _prepare(place)
        page.step("Start a server")
        page.sent("parley mcp -c model_provider=scripted")
        page.sent("initialize")
        started_at = time.perf_counter()
        server = ServerProcess(
            (sys.executable, "-P", "-m", "parley", "mcp", "-c", "model_provider=scripted"),
            env={**_without_foreign_variables(), "PARLEY_HOME": home},
            cwd=home,
        )
        async with connect(
            server,
            client_name="parley-demo",
            on_question=doorbell.answer,
            on_frame=take,
        ) as client:
            milliseconds = (time.perf_counter() - started_at) * 1000
            version = client.initialize_result.protocol_version
            page.received(f"MCP {version}; {milliseconds:.0f} ms since the process was started")
            kept = await _converse(page, client, home, notifications)
            if kept:
                await _work(page, client, project, doorbell)
            return 0 if kept else 1


async def _converse(page: Page, client: Client, cwd: str, notifications: list[bytes]) -> bool:
    """Show that nothing is lost; return whether that is true."""
    page.step("Create a conversation and stream it")
    page.sent("conversationCreate")
    conversation = await client.create(model="demonstration", cwd=cwd)
    page.received(f"conversation_id {conversation.id}")
    page.sent("conversationStream")
    async with conversation.stream() as stream:
        page.received(f"initial_state: {len(stream.snapshot)} events; what follows is live")

        page.step("Send a message, and read the answer while it is written")
        await _send(page, conversation, "Hello! Who is there?")
        first = await EventRenderer(page).render_turn(stream, turn=1)

    page.step("Pause, and send a message while no client reads")
    page.sent("notifications/cancelled, with the id of the stream's request")
    await client.ping()  # everything that was sent before has arrived now
    notifications.clear()
    await _send(page, conversation, "And what if I leave?")
    await _middle_of_a_sentence(conversation)
    page.received(f"{len(notifications)} notifications; the agent talks all the same")

    page.step("Come back while it talks")
    page.sent("conversationStream")
    async with conversation.stream() as stream:
        page.received(f"initial_state: {len(stream.snapshot)} events, both turns from the beginning")
        second = await EventRenderer(page).render_turn(stream, turn=2)

    page.step("Count")
    page.sent("conversationRead")
    found = (await conversation.read()).events
    kept = [event.message for _, event, *_ in found if isinstance(event, events.AgentMessage)]
    page.received(f"{len(found)} events, with {len(kept)} messages of {sum(map(len, kept))} characters")
    if [first, second] != kept:
        page.paragraph("\nSomething is wrong: that is not what was shown above.")
        return False
    page.paragraph("\nEvery one of these characters was shown above, once. Nothing was lost.")
    return True


async def _work(page: Page, client: Client, project: str, doorbell: _Approver) -> None:
    """Let the agent change a file, run commands, and ask for an approval."""
    page.step("Let the agent work in a sandbox, and answer when it wants to leave it")
    page.sent("conversationCreate, sandbox workspace-write, approval_policy on-request")
    conversation = await client.create(
        model="demonstration",
        cwd=project,
        approval_policy="on-request",
        sandbox="workspace-write",
        config={
            "model_providers.scripted": {"script": "work.json"},
            # The project is in a temporary directory, and the directory beside it must not be writable.
            "sandbox_workspace_write": {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True},
        },
    )
    page.received(f"conversation_id {conversation.id}")
    page.sent("conversationStream")
    async with conversation.stream() as stream:
        await _send(page, conversation, "Write a greeting, run it, and copy it outside.")
        renderer = EventRenderer(page, on_question=doorbell.told.set)
        await renderer.render_turn(stream, turn=1)
    if not renderer.has_patched:
        page.paragraph(
            "\nThis computer cannot confine commands, so Parley refused the actions that were not approved. "
            "`parley doctor` says what is missing."
        )


def _prepare(place: str) -> tuple[str, str]:
    """Create a home with the script for the agent, and beside it a project: the home is hidden from commands."""
    home, project = Path(place, "home"), Path(place, "project")
    home.mkdir()
    project.mkdir()
    (home / "work.json").write_bytes(msgspec.json.encode(WORK))
    return str(home), str(project)


class _Approver:
    """Answers the approval request of the demo, after its event was printed."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.told = asyncio.Event()

    async def answer(self, approval: Approval) -> None:
        await self.told.wait()
        self._page.received("elicitation/create:")
        self._page.write(approval.message)
        self._page.sent("decision approved")
        await approval.approve()


async def _send(page: Page, conversation: Conversation, text: str) -> None:
    page.sent(f'conversationSendMessage "{text}"')
    await conversation.send(text)
    page.received("status ok")


async def _middle_of_a_sentence(conversation: Conversation) -> None:
    """Wait until the agent is in the middle of its message, or has finished it."""
    while True:
        found = await conversation.read(after=(await conversation.status()).seq)
        written = sum(
            len(text.text) for text in found.open if text.type == events.event_type(events.AgentMessageDelta)
        )
        if written >= MIDDLE_OF_A_SENTENCE or found.state == "idle":
            return
        await asyncio.sleep(GLANCE_SECONDS)


def _without_foreign_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
