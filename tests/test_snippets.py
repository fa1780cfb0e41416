"""Every code block of the documentation is run, parsed, or listed here with the reason why it is not."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from docs.site.reference.commands import commands_page

from kit.builders.snippets import (
    ROOT,
    Snippet,
    commands_in,
    inline_commands,
    problem_with,
    shell_lines,
    snippets,
)
from kit.system.commands import TIMEOUT_SECONDS
from parley.config.schema import SETTINGS

CHECKED: Final = frozenset({"console", "json", "python", "sh", "toml", "yaml"})
"""The languages whose blocks this file checks."""

ELSEWHERE: Final[dict[tuple[str, str], str]] = {
    ("README.md", "4. Send a message"): "tests/scenario/test_demo.py",
    ("README.md", "   <- exec_command_begin: cp"): "tests/scenario/test_demo.py",
    ("docs/config.md", "/home/ada/.parley/config.toml, line 7"): "tests/unit/config/test_config_docs.py",
    ("docs/config.md", "config argument: `approvalPolicy`"): "tests/unit/config/test_config_docs.py",
    ("docs/howto/proxy.md", "parley.example {"): "tests/scenario/test_howtos.py",
    ("docs/howto/proxy.md", "server {"): "tests/scenario/test_howtos.py",
    ("docs/howto/proxy.md", "example.org {"): "tests/scenario/test_howtos.py",
    ("docs/howto/typescript.md", "// Runs one turn"): "tests/clients/test_live_text_examples.py",
    ("docs/tutorial.md", "  approved"): "tests/test_tutorial.py",
}
"""The blocks that another file checks, by page and beginning."""

NOT_CHECKED: Final[dict[tuple[str, str], str]] = {
    ("docs/architecture.md", "           frames"): "a diagram",
    ("docs/architecture.md", "src/parley/"): "a table of packages; tests/test_layers.py has the rules",
    ("docs/architecture.md", " client of A"): "a diagram",
    ("docs/from-codex.md", "-{"): "a change of one line; both lines are JSON",
    (
        "docs/howto/typescript.md",
        "import { StreamableHTTP",
    ): "a part of a program; the tests of clients use this class",
    ("docs/postgres.md", "synchronous_standby_names"): "settings of PostgreSQL",
    ("docs/protocol.md", "task_started  [user"): "a grammar",
    ("docs/protocol.md", "The model says"): "a message with paths that the page omits",
    ("docs/protocol.md", "*** Begin Patch"): "a grammar",
    ("docs/scripted.md", "script /home/me"): "a message of an error in a file that the page omits",
    ("docs/sizing.md", "CPU microseconds"): "a measurement",
    ("docs/sizing.md", "at 70% of the nodes"): "a calculation from the measurement",
    ("docs/sizing.md", "turns of 200 deltas per second"): "a measurement",
}
"""The reasons why blocks are not checked, by page and beginning."""

NOT_SETTINGS: Final = frozenset({"docs/howto/testing.md", "docs/testing.md"})
"""Pages whose TOML is not for Parley's `config.toml`."""


def of_language(*languages: str) -> list[Snippet]:
    return [snippet for snippet in snippets() if snippet.language in languages]


def problems(found: Iterator[tuple[Snippet, str | None]]) -> dict[str, str]:
    return {str(snippet): problem for snippet, problem in found if problem is not None}


def test_every_block_is_checked_or_listed() -> None:
    listed = {**ELSEWHERE, **NOT_CHECKED}
    others = [snippet for snippet in snippets() if snippet.language not in CHECKED]
    matched = {
        str(snippet): [key for key in listed if snippet.page == key[0] and snippet.code.startswith(key[1])]
        for snippet in others
    }

    assert [name for name, keys in matched.items() if not keys] == []
    assert set(listed) - {key for keys in matched.values() for key in keys} == set()
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).exists()] == []


def test_python_compiles() -> None:
    """test_docs.py and, in scenario/, test_client_page.py, test_howtos.py and test_webhook.py run these blocks."""

    def problem(snippet: Snippet) -> str | None:
        try:
            compile(snippet.code, snippet.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            return str(error)
        return None

    assert problems((snippet, problem(snippet)) for snippet in of_language("python")) == {}


def test_json_is_json_and_starts_commands_that_exist() -> None:
    def problem(snippet: Snippet) -> str | None:
        try:
            # an example may continue the previous one
            for message in re.split(r"(?<=\})\n(?=\{)", snippet.code.strip()):
                value = msgspec.json.decode(message, type=dict)
                for words in programs_in(value):
                    if (wrong := problem_with(words)) is not None:
                        return wrong
        except msgspec.MsgspecError as error:
            return str(error)
        return None

    assert problems((snippet, problem(snippet)) for snippet in of_language("json")) == {}


def programs_in(value: Any) -> Iterator[list[str]]:
    """Yield the arguments of each program `parley` in the configuration of a client."""
    match value:
        case {"command": str(command), "args": [*arguments]} if command.rpartition("/")[2] == "parley":
            yield arguments
        case dict():
            for inner in value.values():
                yield from programs_in(inner)
        case list():
            for inner in value:
                yield from programs_in(inner)
        case _:
            pass


def test_toml_contains_settings_with_valid_values() -> None:
    def problem(snippet: Snippet) -> str | None:
        table = tomllib.loads(snippet.code)
        if snippet.page in NOT_SETTINGS or (isinstance(table.get("mcp_servers"), dict) and "hosts" in snippet.page):
            return None
        accepted = SETTINGS(table, ())
        same = msgspec.json.encode(accepted) == msgspec.json.encode(table)
        return None if same else f"unknown settings: {json.dumps(table)}"

    assert problems((snippet, problem(snippet)) for snippet in of_language("toml")) == {}


def test_yaml_is_yaml() -> None:
    for snippet in of_language("yaml"):
        assert yaml.safe_load(snippet.code), snippet


def test_shell_commands_have_valid_syntax(tmp_path: Path) -> None:
    files = []
    for number, snippet in enumerate(of_language("console", "sh")):
        files.append(tmp_path / f"{number}.sh")
        files[-1].write_text(shell_lines(snippet))
    code = 'for file in "$@"; do bash -n "$file" || exit 1; done'
    run = subprocess.run(
        ["bash", "-c", code, "bash", *files], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )

    assert (run.returncode, run.stderr) == (0, "")


def test_commands_of_parley_have_options_that_exist() -> None:
    checked = [
        (snippet, words) for snippet in of_language("console", "sh") for words in commands_in(shell_lines(snippet))
    ]

    assert len(checked) > 40
    assert problems((snippet, problem_with(words)) for snippet, words in checked) == {}


def test_commands_in_the_text_have_options_that_exist() -> None:
    known = {
        name: frozenset(re.findall(r"--?[a-zA-Z][a-z-]*", section))
        for name, section in re.findall(r"^## `parley ([\w-]+)`\n(.*?)(?=^## |\Z)", commands_page(), re.M | re.S)
    }
    named = {
        (page, words[0], frozenset(options_in(words)))
        for page, words in inline_commands()
        if words and re.fullmatch("[a-z]+", words[0]) and words[0] != "help"
        if not page.startswith("docs/decisions/")  # a decision may name a command that does not exist yet
    }

    assert len(known) > 20
    assert len(named) > 40
    assert [one for one in named if one[1] not in known or not one[2] <= known[one[1]]] == []


def options_in(words: list[str]) -> set[str]:
    own = words[: words.index("--")] if "--" in words else words
    return {word.strip("[]") for word in own if re.fullmatch(r"\[?--[a-z-]+\]?", word)}
