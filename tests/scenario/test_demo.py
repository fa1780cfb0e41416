"""`parley demo` without settings and without a terminal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.kernels import Lack, on_kernel
from kit.system.needs import SANDBOX
from parley.models.demonstration import DEMONSTRATION
from parley.version import __version__

STORY = """\
Parley {version}: what a client sends (->) and receives (<-). The model is a
script, so this needs no key and no network.

1. Start a resident server
   -> parley serve --json --exit-when-idle --no-http
   <- serves serve.sock in its home, N ms later
   -> connect to its socket, initialize
   <- MCP 2025-11-25

2. Create a conversation and stream it
   -> conversationCreate
   <- conversation_id UUID
   -> conversationStream
   <- initial_state: 0 events; what follows is live

3. Send a message, and read the answer while it is written
   -> conversationSendMessage "Hello! Who is there?"
   <- status ok
   <- task_started
   <- user_message:
      FIRST QUESTION
   <- agent_reasoning_delta, one by one, as they are written:
      FIRST THOUGHT
   <- agent_reasoning
   <- agent_message_delta, one by one, as they are written:
      FIRST TEXT
   <- agent_message: the same 289 characters, whole
   <- task_complete

4. Send a message with another client, and kill it in the middle of a sentence
   -> parley send ID "And what if I leave?" --follow --json
   <- task_started
   <- user_message:
      SECOND QUESTION
   <- agent_reasoning
   <- agent_message_delta, one by one, as they are written:
      SECOND TEXT UNTIL THE KILL
   -> SIGKILL
   <- that client has ended, after N characters

5. Return to the same turn, which goes on without that client
   -> conversationStream
   <- initial_state: 9 events, both turns from the beginning
   <- task_started
   <- user_message:
      SECOND QUESTION AGAIN
   <- agent_reasoning
   <- agent_message_delta, all so far in one piece:
      SECOND TEXT SO FAR
   <- agent_message_delta, one by one, as they are written:
      THE REST OF IT
   <- agent_message: the same 260 characters, whole
   <- task_complete

6. Count
   -> conversationRead
   <- 10 events, with 2 messages of 549 characters

This client was sent every one of these characters, once. Nothing was lost.

7. Let the agent work in a sandbox, and answer when it wants to leave it
   -> conversationCreate, sandbox workspace-write, approval_policy on-request
   <- conversation_id UUID
   -> conversationStream
   -> conversationSendMessage "Write a greeting, run it, and copy it outside."
   <- status ok
   <- task_started
   <- user_message:
      THE ORDER
   <- agent_message_delta, one by one, as they are written:
      WHAT IT WILL DO
   <- agent_message: the same 69 characters, whole
   <- patch_apply_begin: greet.py
   <- exec_command_output_delta, stdout:
      WHAT THE PATCH SAID
   <- patch_apply_end
   <- turn_diff:
      THE DIFF
   <- exec_command_begin: python3 greet.py
   <- exec_command_output_delta, stdout:
      WHAT THE COMMAND SAID
   <- exec_command_end: exit code 0
   <- exec_command_begin: cp greet.py ..
   <- exec_command_output_delta, stderr:
      WHAT THE SANDBOX FORBADE
   <- exec_command_end: exit code -1
   <- agent_message_delta, one by one, as they are written:
      WHY IT ASKS
   <- agent_message: the same 74 characters, whole
   <- exec_approval_request: cp greet.py ..
   <- elicitation/create:
      THE QUESTION
   -> decision approved
   <- approval_settled: approved, by client
   <- exec_command_begin: cp greet.py ..
   <- exec_command_end: exit code 0
   <- agent_message_delta, one by one, as they are written:
      WHAT IT DID
   <- agent_message: the same 50 characters, whole
   <- task_complete

The demo is over, and its conversations are deleted. `parley config init`
chooses a provider and a model, and `parley chat` starts a conversation.
"""

RUNNING_TEXT = (
    "FIRST QUESTION",
    "FIRST THOUGHT",
    "FIRST TEXT",
    "SECOND QUESTION",
    "SECOND TEXT UNTIL THE KILL",
    "SECOND QUESTION AGAIN",
    "SECOND TEXT SO FAR",
    "THE REST OF IT",
    "THE ORDER",
    "WHAT IT WILL DO",
    "WHAT THE PATCH SAID",
    "THE DIFF",
    "WHAT THE COMMAND SAID",
    "WHAT THE SANDBOX FORBADE",
    "WHY IT ASKS",
    "THE QUESTION",
    "WHAT IT DID",
)
"""The placeholders for the texts of the model in the story, in order."""


async def start(tmp_path: Path, *arguments: str, without: Iterable[Lack] = ()) -> Process:
    """Start the demo with `PATH` as its only variable: no key, no proxy, no home.

    The demo can be interrupted even if the tests run in the background and ignore SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return await asyncio.create_subprocess_exec(
        *on_kernel(without, (sys.executable, "-m", "parley", "demo", *arguments)),
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )


async def outcome(process: Process) -> tuple[str, str, int | None]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()
    return out.decode(), err.decode(), process.returncode


def scripted(reply: int, kind: str) -> str:
    """Return the text of a reply of the script, with single spaces."""
    steps = (getattr(step, kind) for step in DEMONSTRATION.replies[reply])
    return words("".join(text for text in steps if isinstance(text, str)))


def words(text: str) -> str:
    return " ".join(text.split())


def normal(output: str, names: Sequence[str] = RUNNING_TEXT) -> tuple[str, list[str]]:
    """Return the output with placeholders for everything that differs between runs, and the texts of the model."""
    output = re.sub(r"\d+ ms later", "N ms later", output)
    output = re.sub(r"after \d+ characters", "after N characters", output)
    output = re.sub(r"parley send [0-9a-f]{8} ", "parley send ID ", output)
    # The killed client may have missed the reasoning.
    output = re.sub(r"   <- agent_reasoning_delta, .*\n      (A second message|.*leaves\.).*\n", "", output)
    output = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", output)
    texts: list[str] = []

    def cover(found: re.Match[str]) -> str:
        texts.append(words(found[0]))
        return f"      {names[len(texts) - 1]}\n"

    return re.sub(r"(?:^ {6}\S.*\n(?:\n(?= {6}))?)+", cover, output, flags=re.MULTILINE), texts


@SANDBOX
@pytest.mark.waits
async def test_the_demonstration_shows_every_character_once(tmp_path: Path) -> None:
    output, errors, exit_code = await outcome(await start(tmp_path))
    story, (asked, thought, first, asked_again, killed, asked_still, so_far, rest, order, *work) = normal(output)

    assert (story, errors, exit_code) == (STORY.format(version=__version__), "", 0)
    assert [asked, asked_again, asked_still] == ["Hello! Who is there?", *["And what if I leave?"] * 2]
    assert so_far.startswith(killed)
    assert len(killed) >= 49  # without the space at the end
    assert order == "Write a greeting, run it, and copy it outside."
    assert thought == scripted(0, "reasoning")
    assert first == scripted(0, "text")
    assert f"{so_far} {rest}" == scripted(1, "text")
    forbidden, approval = work.pop(4), work.pop(5)
    assert re.fullmatch(r"cp: cannot create regular file '\.\./greet\.py': \w.*", forbidden)
    assert re.fullmatch(
        r'The model says: "The copy belongs in the directory above the project\." '
        r"Allow Codex to run `cp greet\.py \.\.` in `/\S+/project`, outside the sandbox\?",
        approval,
    )
    assert work == [
        "I write a function, run it, and copy the file to the directory above.",
        "Success. Updated the following files: A greet.py",
        '@@ -0,0 +1,6 @@ +def greet(name: str) -> str: + return f"Hello, {name}!" + + +if __name__ == "__main__": '
        '+ print(greet("world"))',
        "Hello, world!",
        "The program works. The copy is outside the sandbox, so I ask for approval.",
        "Done: the program works, and the copy is in place.",
    ]
    assert [line for line in output.splitlines() if len(line) >= 80 and str(tmp_path) not in line] == []


async def test_the_demonstration_prints_words_as_they_come_and_can_be_ended_by_an_interrupt(tmp_path: Path) -> None:
    process = await start(tmp_path)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        before = await process.stdout.readuntil(b"      Hello!")
    process.send_signal(signal.SIGINT)
    after, errors, exit_code = await outcome(process)

    assert before.count(b"task_complete") == after.count("task_complete") == 0
    # this line appears only on some computers
    said = [line for line in errors.splitlines() if "its disk is slow" not in line]
    assert (said, exit_code) == (["parley demo: interrupted"], 130)
    assert os.listdir(tmp_path) == []  # the home of the server has been removed


@pytest.mark.long
async def test_where_nothing_confines_the_demonstration_reports_it(tmp_path: Path) -> None:
    lacks = (Lack.USER_NAMESPACES, Lack.LANDLOCK)
    output, errors, exit_code = await outcome(await start(tmp_path, without=lacks))

    said = "This computer cannot confine commands, so Parley refused the actions that were not approved."
    advice = "`parley doctor` says what is missing."
    end = output[output.index("This computer") : output.index("\nThe demo is over")]
    assert (words(end), errors, exit_code) == (f"{said} {advice}", "", 0)
    assert output.count("exec_command_begin") == 1  # the approved command has run


def test_the_readme_shows_what_the_demonstration_prints() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(4\. .*?)^```$", readme, re.MULTILINE | re.DOTALL)
    names = RUNNING_TEXT[RUNNING_TEXT.index("SECOND QUESTION") : RUNNING_TEXT.index("THE ORDER")]
    story, (_, killed, _, so_far, rest) = normal("".join(shown), names)

    assert story == STORY[STORY.index("4. ") : STORY.index("\n7. ")]
    assert f"{so_far} {rest}" == scripted(1, "text")
    assert so_far.startswith(killed)


async def test_the_demonstration_explains_itself(tmp_path: Path) -> None:
    output, errors, exit_code = await outcome(await start(tmp_path, "--help"))

    assert (output.splitlines()[0], errors, exit_code) == ("usage: parley demo [-h]", "", 0)


async def test_the_demonstration_takes_no_arguments(tmp_path: Path) -> None:
    said = "parley demo: unknown option '--fast'; see `parley demo --help`\n"

    assert await outcome(await start(tmp_path, "--fast")) == ("", said, 2)
