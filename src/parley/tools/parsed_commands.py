"""Summarises commands for display (`parsed_cmd` in docs/events.md#exec_command_begin).

The module assumes that each program name refers to the usual program of this name. It reads no files and raises no
errors. A hostile command can have a harmless summary, so no permission depends on a summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from parley.common.shell_lexer import RESERVED, Word, Words, commands_in, words_of
from parley.wire.events import (
    ParsedCommand,
    ParsedListFiles,
    ParsedPlain,
    ParsedRead,
    ParsedSearch,
    ParsedWithTargets,
)

__all__ = ["MAX_SCRIPT", "parse"]

MAX_SCRIPT: Final = 8 * 1024
"""The maximum length, in characters, of a script that is summarised."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def parse(argv: Sequence[str]) -> tuple[ParsedCommand, ...]:
    """Return one summary for each command in `argv`, which may be a shell script. The command `true`, and commands
    that only reformat the output of other commands, have no summary. If all commands only reformat output, return
    one summary of an unknown command.
    """
    command = tuple(argv)
    match command:
        case ("bash", "-lc" | "-c", script) if len(script) > MAX_SCRIPT:
            return (_unknown(command),)
        case ("bash", "-lc" | "-c" as flag, script):
            lexed = words_of(script)
            words = tuple(word.value for word in lexed)
            commands = _plain_commands(script) if flag == "-lc" else _split(lexed)
            return _summaries(commands, words) if commands else (_unknown(words),)
        case _:
            return _summaries([command], command)


def _summaries(commands: list[Words], words: Words) -> tuple[ParsedCommand, ...]:
    commands = [command for command in commands if command != ("true",)]
    shown = [command for command in commands if not _only_formats(command)]
    if commands and not shown:
        return (_unknown(words),)
    return tuple(map(_summary, shown))


# --- scripts as words --------------------------------------------------------------------


def _plain_commands(script: str) -> list[Words] | None:
    """Return the commands of a script that consists of plain words and connectors; None for any other script."""
    commands = commands_in(script, words_only=True)
    return commands if commands is not None and all(map(_is_plain, commands)) else None


def _is_plain(command: Words) -> bool:
    first = command[0]
    return "=" not in first and first not in RESERVED and not any(word.startswith("=") for word in command)


_CONNECTORS: Final = frozenset({"&&", "||", ";", "|"})


def _split(words: list[Word]) -> list[Words]:
    """Split words into commands at the connectors `&&`, `||`, `;` and `|`."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word.source in _CONNECTORS:
            commands.append([])
        else:
            commands[-1].append(word.value)
    return [tuple(command) for command in commands if command]


# --- summaries ---------------------------------------------------------------------------

_FILTERS: Final = _set("column cut sort tr uniq wc")
_RANGE: Final = re.compile(r"\d+(?:,\d+)?p")


def _only_formats(command: Words) -> bool:
    """Return whether a command only reformats the output of the commands before it."""
    match command:
        case ("head" | "tail",) | ("head" | "tail", _):
            return not _operands(command[1:])
        case ("sed", "-n", lines):
            return _RANGE.fullmatch(lines) is not None
        case (program, *_):
            return program in _FILTERS
        case _:
            return False


def _summary(command: Words) -> ParsedCommand:
    match command:
        case ("cat" | "bat" | "less" | "more" | "nl" | "head" | "tail" as program, *rest):
            return _read(command, _operands(rest, _TAKE_VALUES[program]))
        case ("sed", "-n", lines, path) if _RANGE.fullmatch(lines):
            return _read(command, [path])
        case ("ls" | "eza" | "tree" as program, *rest):
            return _list_files(command, _operands(rest, _TAKE_VALUES[program]))
        case ("git", "ls-files", *rest):
            return _list_files(command, _operands(rest))
        case ("find", *rest):
            return _find(command, rest)
        case ("rg" | "grep" | "egrep" | "fgrep" | "ag" | "ack", *rest) | ("git", "grep", *rest):
            return _search(command, rest)
        case ("fd", *rest) if operands := _operands(rest, _TAKE_VALUES["fd"]):
            return _found(command, operands[0], operands[1:])
        case ("fd", *_):
            return _list_files(command, [])
        case _:
            return _tool(command)


def _read(command: Words, paths: list[str]) -> ParsedCommand:
    if len(paths) != 1:
        return _unknown(command)
    return ParsedCommand(read=ParsedRead(cmd=command, name=_short(paths[0])))


def _list_files(command: Words, paths: list[str]) -> ParsedCommand:
    return ParsedCommand(list_files=ParsedListFiles(cmd=command, path=_first(paths)))


def _found(command: Words, query: str | None, paths: list[str]) -> ParsedCommand:
    return ParsedCommand(search=ParsedSearch(cmd=command, query=query, path=_first(paths)))


def _search(command: Words, rest: Sequence[str]) -> ParsedCommand:
    operands = _operands(rest, _RG_VALUES if command[0] == "rg" else _GREP_VALUES)
    if "--files" in rest:
        return _found(command, None, operands)
    if query := _value_of(rest, _PATTERN):
        return _found(command, query, operands)
    return _found(command, operands[0] if operands else None, operands[1:])


_FIND_BY_NAME: Final = _set("-iname -ipath -iregex -name -path -regex -wholename")
_FIND_ACTS: Final = _set("-delete -exec -execdir -fls -fprint -fprint0 -fprintf -ok -okdir")


def _find(command: Words, rest: Sequence[str]) -> ParsedCommand:
    if not _FIND_ACTS.isdisjoint(rest):
        return _unknown(command)
    paths: list[str] = []
    for word in rest:
        if word.startswith(("-", "(", "!")):
            break
        paths.append(word)
    if query := _value_of(rest, _FIND_BY_NAME):
        return _found(command, query, paths)
    return _list_files(command, paths)


_Kind = Literal["format", "lint", "test"]

_NAMES: Final[Mapping[_Kind, str]] = {
    "format": "black; cargo fmt; clang-format; go fmt; gofmt; isort; prettier; ruff format; rustfmt; shfmt",
    "lint": "cargo clippy; eslint; flake8; go vet; golangci-lint run; mypy; pylint; pyright; ruff check",
    "test": "bun test; cargo nextest; cargo test; ctest; dotnet test; go test; gradle test; jest; make test; "
    "mocha; mvn test; nox; npm run test; npm test; phpunit; pnpm run test; pnpm test; py.test; pytest; rspec; "
    "tox; unittest; vitest; yarn run test; yarn test",
}
_TOOLS: Final[Mapping[Words, _Kind]] = {
    tuple(name.split()): kind for kind, names in _NAMES.items() for name in names.split("; ")
}
_RUNNERS: Final = (
    ("bundle", "exec"),
    ("bunx",),
    ("npx",),
    ("pnpm", "exec"),
    ("poetry", "run"),
    ("python", "-m"),
    ("python3", "-m"),
    ("uv", "run"),
    ("uvx",),
)


def _tool(command: Words) -> ParsedCommand:
    words = command
    for _ in range(2):  # a command can have two runners, as in `uv run python -m pytest`
        runner = next((runner for runner in _RUNNERS if words[: len(runner)] == runner), ())
        words = words[len(runner) :]
    name = next((words[:length] for length in (3, 2, 1) if words[:length] in _TOOLS), None)
    if name is None:
        return _unknown(command)
    targets = tuple(_operands(words[len(name) :], _TARGET_VALUES, up_to_dashes=True)) or None
    found = ParsedWithTargets(cmd=command, tool=" ".join(name), targets=targets)
    match _TOOLS[name]:
        case "format":
            return ParsedCommand(format=found)
        case "lint":
            return ParsedCommand(lint=found)
        case "test":
            return ParsedCommand(test=ParsedPlain(cmd=command))


def _unknown(words: Words) -> ParsedCommand:
    return ParsedCommand(unknown=ParsedPlain(cmd=words))


# --- options and paths -------------------------------------------------------------------

_TAKE_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "bat": _set("-H -l -r --highlight-line --language --line-range --style --theme"),
    "cat": frozenset(),
    "eza": _set("-I -L -s --ignore-glob --level --sort"),
    "fd": _set("-E -S -d -e -t --exclude --extension --max-depth --size --type"),
    "head": _set("-c -n --bytes --lines"),
    "less": frozenset(),
    "ls": _set("-I -T -w --hide --ignore --tabsize --width"),
    "more": _set("-n"),
    "nl": _set("-b -d -f -h -i -l -n -s -v -w"),
    "tail": _set("-c -n -s --bytes --lines --pid --sleep-interval"),
    "tree": _set("-I -L -P"),
}
"""For each program, the options whose value is the next word."""

_PATTERN: Final = _set("-e --regexp")
_GREP_VALUES: Final = _PATTERN | _set(
    "-A -B -C -D -d -f -m --after-context --before-context --context --exclude --exclude-dir --file --include "
    "--max-count"
)
_RG_VALUES: Final = _PATTERN | _set(
    "-A -B -C -E -M -T -d -f -g -j -m -r -t --after-context --before-context --color --context --encoding --file "
    "--glob --iglob --max-columns --max-count --max-depth --replace --sort --threads --type --type-not"
)
_TARGET_VALUES: Final = _set(
    "-c -f -l --config --config-file --edition --ext --format --ignore --line-length --max-warnings --select"
)
_COMMON_NAMES: Final = frozenset({"src", "build", "dist", "node_modules"})


def _operands(
    words: Sequence[str], take_values: frozenset[str] = frozenset(), *, up_to_dashes: bool = False
) -> list[str]:
    """Return the words that are neither options nor values of options, without `-` (standard input). `take_values`
    contains the options whose value is the next word. If `up_to_dashes` is True, the words after `--` are not
    returned.
    """
    operands: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            if not up_to_dashes:
                operands += rest
            break
        if word in take_values:
            next(rest, None)
        elif not word.startswith("-"):
            operands.append(word)
    return operands


def _value_of(words: Sequence[str], options: frozenset[str]) -> str | None:
    rest = iter(words)
    return next((next(rest, None) for word in rest if word in options), None)


def _first(paths: list[str]) -> str | None:
    return _short(paths[0]) if paths else None


def _short(path: str) -> str:
    """Return the last part of a path, skipping common names such as `src` and `build`. If every part is a common
    name, return the whole path.
    """
    parts = path.split("/")
    return next((part for part in reversed(parts) if part and part not in _COMMON_NAMES), path)
