"""The user's own commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kit.clients.chat_context import RecordingChat
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.interrupted import IGNORES_INTERRUPTS, WAITS
from kit.system.waiting import until
from parley.cli.chat.local_command import MAX_SENT, LocalCommands
from parley.wire.items import TextItem


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")


def attached(chat: RecordingChat) -> str:
    (item,) = chat.attachments
    assert isinstance(item, TextItem)
    return item.text


async def test_the_output_is_shown_and_is_a_part_of_the_next_message(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=str(tmp_path))

    assert await LocalCommands().handle(chat, "! echo one; echo two >&2; exit 3")

    assert chat.text == "! echo one; echo two >&2; exit 3\n  one\n  two"
    assert attached(chat) == (
        f"\n\nI ran this command in {tmp_path}:\n\n$ echo one; echo two >&2; exit 3\none\ntwo\n[exit code 3]\n"
    )
    assert chat.notes == ["exit code 3; the next message includes this output"]


async def test_a_remote_chat_says_that_the_command_runs_on_this_computer(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=str(tmp_path), is_remote=True)
    await LocalCommands().handle(chat, "!true")

    assert chat.printed == [f"! true  (on this computer, in {tmp_path}, not on the server)"]


async def test_without_a_local_directory_nothing_runs(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=None)
    await LocalCommands().handle(chat, "!true")

    assert (chat.printed, chat.attachments, chat.input) == ([], [], "!true")
    assert chat.notes == ["! is off, because the working directory does not exist on this computer"]


async def test_a_stopped_command_ends_with_its_children(tmp_path: Path) -> None:
    chat, commands = RecordingChat(local_cwd=str(tmp_path)), LocalCommands()
    running = asyncio.create_task(commands.handle(chat, f"!{WAITS}; true"))
    await until(lambda: "  begun" in chat.text)
    await commands.handle(chat, "!echo second")
    commands.stop()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await running

    assert chat.notes == [
        "a command is still running; Ctrl-C stops it",
        "ended by SIGINT; the next message includes this output",
    ]
    assert not commands.is_running


async def test_a_command_that_ignores_the_interrupt_is_killed_the_second_time(tmp_path: Path) -> None:
    chat, commands = RecordingChat(local_cwd=str(tmp_path)), LocalCommands()
    line = f"!exec {IGNORES_INTERRUPTS}"
    running = asyncio.create_task(commands.handle(chat, line))
    await until(lambda: "  begun" in chat.text)
    commands.stop()
    await until(lambda: "\n  ignored" in chat.text)
    commands.stop()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await running

    assert attached(chat).endswith("[ended by SIGKILL]\n")


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=str(tmp_path))
    await LocalCommands().handle(chat, "!seq 100000")

    text = attached(chat)
    assert "\n1\n2\n" in text
    assert "... 99800 more lines" in text
    assert text.endswith("99999\n100000\n[exit code 0]\n")
    assert "  ... 99480 more lines" in chat.text
    assert chat.text.endswith("  99999\n  100000")


async def test_long_lines_are_bounded_in_the_message(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=str(tmp_path))
    await LocalCommands().handle(chat, "!head -c 300000 /dev/zero | tr '\\0' x")

    assert len(attached(chat)) < MAX_SENT + 500


async def test_a_background_process_does_not_keep_the_command_open(tmp_path: Path) -> None:
    chat = RecordingChat(local_cwd=str(tmp_path))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await LocalCommands().handle(chat, "!sleep 300 & echo $! > pid; echo done")

    assert "  done" in chat.text
    process = await asyncio.create_subprocess_exec("kill", (tmp_path / "pid").read_text().strip())
    assert await process.wait() == 0


async def test_a_mark_alone_removes_the_outputs_from_the_next_message(tmp_path: Path) -> None:
    chat, commands = RecordingChat(local_cwd=str(tmp_path)), LocalCommands()
    await commands.handle(chat, "!true")
    await commands.handle(chat, "!")

    assert chat.attachments == []
