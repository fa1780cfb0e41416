"""Completes the input of the chat: commands and their arguments after `/`, and paths of files after `@`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from parley.cli.chat.choices import Choice
from parley.cli.chat.commands import ALIASES, COMMANDS, PREFIX, Command, find_command
from parley.cli.chat.context import ChatContext
from parley.cli.chat.file_index import FileIndex
from parley.client import ClientError
from parley.wire.text import visible

__all__ = ["ChatCompleter"]

MAX_FILES: Final = 50
CHOICES_SECONDS: Final = 10.0
"""The number of seconds for which the values of a command's argument are cached."""

_FILE: Final = re.compile(r'(?:^|(?<=\s))@(?:"([^"]*)|([^\s"]*))$')
"""Matches `@` and an incomplete path at the end of the line before the cursor."""

_PLAIN: Final = re.compile(r'[^\s"]+')


class ChatCompleter(Completer):
    """Completes commands, their first arguments, and file paths while the user types."""

    def __init__(self, context: ChatContext) -> None:
        self._context = context
        self._files: FileIndex | None = None
        self._directory: str | None = None
        """The directory that the file index covers; None if the working directory does not exist on this computer.
        """
        self._choices: dict[str, tuple[float, Sequence[Choice]]] = {}
        """The time at which the cached values of a command's argument expire, and the values, keyed by the
        command's name.
        """

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return ()  # all completions are asynchronous

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        before = document.text_before_cursor
        if before.startswith(PREFIX):
            for completion in await self._command_completions(before):
                yield completion
        elif (found := _FILE.search(document.current_line_before_cursor)) is not None:
            for completion in await self._file_completions(found):
                yield completion

    # --- commands --------------------------------------------------------------------------

    async def _command_completions(self, before: str) -> list[Completion]:
        name, blank, argument = before[1:].partition(" ")
        if not blank:
            return [_completed_command(one, name) for one in COMMANDS if one.name.startswith(name)]
        command = find_command(ALIASES.get(name, name))
        if command is None or command.choices is None or " " in argument:
            return []
        choices = await self._choices_of(command)
        begins = [one for one in choices if one.value.startswith(argument)]
        inside = [one for one in choices if one not in begins and _contains(one, argument)]
        return [_completed_choice(one, argument) for one in [*begins, *inside]]

    async def _choices_of(self, command: Command) -> Sequence[Choice]:
        """Return the values that the first argument of a command can have; an empty list if the request to the
        server fails.
        """
        assert command.choices is not None
        now = asyncio.get_running_loop().time()
        old_at, choices = self._choices.get(command.name, (0.0, ()))
        if now >= old_at:
            try:
                choices = await command.choices(self._context)
            except ClientError:
                choices = ()
            self._choices[command.name] = (asyncio.get_running_loop().time() + CHOICES_SECONDS, choices)
        return choices

    # --- files -----------------------------------------------------------------------------

    async def _file_completions(self, found: re.Match[str]) -> list[Completion]:
        if (files := self._index()) is None:
            return []
        quoted, plain = found.groups()
        typed = plain if quoted is None else quoted
        return [
            Completion(_written(path), start_position=found.start() - found.end(), display=visible(path))
            for path in await files.search(typed, limit=MAX_FILES)
        ]

    def _index(self) -> FileIndex | None:
        """Return the file index of the working directory; None if the directory does not exist on this computer."""
        directory = self._context.local_cwd
        if directory != self._directory:
            if self._files is not None:
                self._files.close()
            self._files = None if directory is None else FileIndex(directory)
            self._directory = directory
        return self._files


def _completed_command(command: Command, typed: str) -> Completion:
    text = f"{command.name} " if command.arguments else command.name
    shown = f"/{command.name} {command.arguments}".rstrip()
    return Completion(text, start_position=-len(typed), display=shown, display_meta=command.summary)


def _completed_choice(choice: Choice, typed: str) -> Completion:
    return Completion(
        choice.value,
        start_position=-len(typed),
        display=visible(choice.value.strip()),
        display_meta=visible(choice.description),
    )


def _contains(choice: Choice, typed: str) -> bool:
    return typed.lower() in f"{choice.value} {choice.description}".lower()


def _written(path: str) -> str:
    """Return a path as completion inserts it into the input: after `@`, with its control characters escaped, and in
    quotation marks if it contains spaces.
    """
    shown = visible(path)
    return f"@{shown}" if _PLAIN.fullmatch(shown) else f'@"{shown}"'
