"""The keys of the extensions of the chat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prompt_toolkit.key_binding import KeyBindingsBase
from prompt_toolkit.keys import Keys

from kit.clients.chat_context import RecordingChat
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.interrupted import WAITS
from kit.system.waiting import until
from parley.cli.chat.keys import key_bindings
from parley.cli.chat.local_command import LocalCommands


def press(keys: KeyBindingsBase, key: Keys) -> bool:
    """Call the handlers of a key that are enabled. Return whether there is one."""
    handlers = [one for one in keys.get_bindings_for_keys((key,)) if one.filter()]
    for one in handlers:
        one.handler(None)  # type: ignore[arg-type]  # the handlers do not use the event
    return bool(handlers)


async def test_ctrl_c_stops_a_local_command_and_is_free_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    chat, local = RecordingChat(local_cwd=str(tmp_path)), LocalCommands()
    keys = key_bindings(chat, local)
    assert not press(keys, Keys.ControlC)

    running = asyncio.create_task(local.handle(chat, f"!exec {WAITS}"))
    await until(lambda: "  begun" in chat.text)
    assert press(keys, Keys.ControlC)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await running
    assert chat.notes == ["ended by SIGINT; the next message includes this output"]


async def test_ctrl_r_opens_the_list_of_messages() -> None:
    chat = RecordingChat()
    keys = key_bindings(chat, LocalCommands())
    assert press(keys, Keys.ControlR)
    assert press(keys, Keys.ControlR)  # repeated before the list opens
    await until(lambda: bool(chat.notes))
    assert chat.notes == ["no conversation is open, so there are no earlier messages"]

    assert press(keys, Keys.ControlR)
    await until(lambda: len(chat.notes) == 2)
