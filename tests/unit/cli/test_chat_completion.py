"""Completion of the input of the chat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import to_plain_text

from kit.clients.chat_context import RecordingChat
from parley.cli.chat import completion
from parley.cli.chat.choices import Choice
from parley.cli.chat.commands import Command
from parley.cli.chat.completion import ChatCompleter
from parley.client import Disconnected


async def complete(completer: ChatCompleter, text: str) -> list[str]:
    """Return the input after each of the completions."""
    event = CompleteEvent(text_inserted=True)
    found = [one async for one in completer.get_completions_async(Document(text), event)]
    return [text[: len(text) + one.start_position] + one.text for one in found]


async def test_a_slash_completes_the_names_of_commands() -> None:
    completer = ChatCompleter(RecordingChat())

    assert await complete(completer, "/re") == ["/resume ", "/rename ", "/reasoning"]
    assert await complete(completer, "/nothing") == []
    assert await complete(completer, " /re") == []
    assert len(await complete(completer, "/")) > 15


async def test_an_argument_is_completed_with_the_values_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def choices(context: Any) -> Sequence[Choice]:
        asked.append(context)
        return [Choice("gpt-5", "openai"), Choice("claude-opus", "anthropic")]

    async def run(context: Any, argument: str) -> None: ...

    command = Command("model", "[NAME]", "choose", run, choices)
    monkeypatch.setattr(completion, "find_command", lambda name: command if name == "model" else None)
    completer = ChatCompleter(RecordingChat())

    assert await complete(completer, "/model ") == ["/model gpt-5", "/model claude-opus"]
    assert await complete(completer, "/model cl") == ["/model claude-opus"]
    assert await complete(completer, "/model open") == ["/model gpt-5"]
    assert await complete(completer, "/model gpt-5 x") == []
    assert await complete(completer, "/other x") == []
    assert len(asked) == 1


async def test_a_lost_connection_offers_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    async def choices(context: Any) -> Sequence[Choice]:
        raise Disconnected(None)

    async def run(context: Any, argument: str) -> None: ...

    command = Command("model", "[NAME]", "choose", run, choices)
    monkeypatch.setattr(completion, "find_command", lambda name: command)

    assert await complete(ChatCompleter(RecordingChat()), "/model ") == []


async def test_an_at_sign_completes_files_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("main.py", "a file.md", "strange\x1b]0;x.txt"):
        (tmp_path / name).touch()
    completer = ChatCompleter(RecordingChat(local_cwd=str(tmp_path)))

    assert await complete(completer, "look at @ma") == ["look at @main.py"]
    assert await complete(completer, "look at @file") == ['look at @"a file.md"']
    assert await complete(completer, 'look at @"a f') == ['look at @"a file.md"']
    assert await complete(completer, "@strange") == ["@strange\\x1b]0;x.txt"]
    assert await complete(completer, "me@main") == []
    assert await complete(completer, "@main.py and") == []


async def test_control_characters_in_names_are_escaped_in_the_menu(tmp_path: Path) -> None:
    (tmp_path / "red\x1b[31m").touch()
    completer = ChatCompleter(RecordingChat(local_cwd=str(tmp_path)))
    found = [one async for one in completer.get_completions_async(Document("@red"), CompleteEvent())]

    assert [to_plain_text(one.display) for one in found] == ["red\\x1b[31m"]


async def test_without_a_local_directory_no_file_is_completed() -> None:
    assert await complete(ChatCompleter(RecordingChat(local_cwd=None)), "@m") == []


async def test_files_belong_to_the_directory_of_the_open_conversation(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.py").touch()
    chat = RecordingChat(local_cwd=str(tmp_path / "one"))
    completer = ChatCompleter(chat)
    first = await complete(completer, "@py")
    chat.local_cwd = str(tmp_path / "two")

    assert (first, await complete(completer, "@py")) == (["@one.py"], ["@two.py"])
