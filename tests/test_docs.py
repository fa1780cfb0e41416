"""The documentation is complete, its links are valid, and its examples work. `test_snippets.py` checks the code."""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from parley.cli import main
from parley.config.load import Loader
from parley.config.types import SettingsOverrides
from parley.models.demonstration import DEMONSTRATION
from parley.server.methods import methods
from parley.server.tools import TOOLS
from parley.wire.events import EVENT_TYPES

ROOT = Path(__file__).parents[1]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])

WIRE_MODULES = ("elicitation", "mcp", "notifications", "prompts", "resources", "tasks")

CHANGE_KINDS = ("removed", "added", "changed", "fixed")


ARGUMENTS = {tool.name: [field.encode_name for field in msgspec.structs.fields(tool.args)] for tool in TOOLS}

EXAMPLE_TESTS = {"tests/config_test.py"}
"""The paths in examples of other projects."""

SAID_TO_BE_THOSE_OF_CREATE = {("conversationSendMessage", argument) for argument in ARGUMENTS["conversationCreate"]}


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Return a page without its code blocks, because a line in a code block may look like a heading or a link."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(path: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", without_code(text_of(path)), re.MULTILINE)


def named_headings(path: str) -> list[str]:
    """Return the headings that consist of a name in code type."""
    return [found[1] for heading in headings(path) if (found := re.fullmatch(r"`([^`]+)`", heading))]


def names_in(path: str) -> set[str]:
    """Return all texts in code type on a page."""
    return set(re.findall(r"`([^`\n]+)`", without_code(text_of(path))))


class Block(NamedTuple):
    page: str
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}: {self.code[:30]!r}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            yield Block(str(page.relative_to(ROOT)), found[1], found[2])


# --- everything has its entry ----------------------------------------------------------


def test_every_event_has_a_heading_and_every_such_heading_is_an_event() -> None:
    assert sorted(named_headings("docs/events.md")) == sorted(EVENT_TYPES)


def test_every_field_of_an_event_is_named_under_its_heading() -> None:
    sections = re.split(r"^#+ ", text_of("docs/events.md"), flags=re.MULTILINE)
    under = {section.partition("\n")[0].strip("`"): section for section in sections}

    missing = [
        f"{kind}.{field.encode_name}"
        for kind, event in EVENT_TYPES.items()
        if "Never sent." not in under[kind]
        for field in msgspec.structs.fields(event)
        if f"`{field.encode_name}`" not in under[kind]
    ]

    assert missing == []


def test_every_tool_and_every_request_has_a_heading() -> None:
    nothing: Any = None  # only the keys are needed
    served = methods(nothing, nothing, nothing, nothing)
    expected = {*served, *(tool.name for tool in TOOLS)}

    assert expected - set(named_headings("docs/protocol.md")) == set()


def test_every_argument_of_a_tool_is_named_in_its_row() -> None:
    rows = {found[1]: found[0] for found in re.finditer(r"^\| \[`([^`]+)`\].*$", text_of("docs/protocol.md"), re.M)}

    missing = [
        f"{tool.name}.{argument}"
        for tool in TOOLS
        for argument in ARGUMENTS[tool.name]
        if f"`{argument}`" not in rows[tool.name] and (tool.name, argument) not in SAID_TO_BE_THOSE_OF_CREATE
    ]

    assert list(rows) == [tool.name for tool in TOOLS]
    assert missing == []


def test_every_method_on_the_wire_has_an_entry() -> None:
    declared = {
        value.METHOD
        for name in WIRE_MODULES
        for value in vars(importlib.import_module(f"parley.wire.{name}")).values()
        if isinstance(value, type) and hasattr(value, "METHOD")
    }

    assert declared - names_in("docs/protocol.md") == set()


def test_every_command_and_flag_has_an_entry() -> None:
    flags = {"-h", "--help", "-V", "--version"}
    for command in main.COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"parley.cli.{command.module}").configure(parser)
        flags |= {flag for action in parser._actions for flag in action.option_strings}
    commands = {command.name for command in main.COMMANDS}
    named = set(re.findall(r"--?[a-zV][a-z-]*|\w+", " ".join(names_in("docs/commands.md"))))

    of_files = {"--dry-run", "--force", "--new-id", "-o", "--output", "--to", "--yes"}
    of_conversations = {"--archived", "--at", "--follow", "--last", "--limit", "--reason", "--undo", "--watch"}
    of_replay = {"--as-test", "--speed", "--until"}
    of_exec = {"--output-schema", "-q", "--quiet", "--timeout"}
    of_turns = {
        "--approval",
        "--continue",
        "--cwd",
        "--image",
        "-m",
        "--model",
        "--profile",
        "--record",
        "--resume",
        "--sandbox",
        "--worktree",
    }
    assert flags == of_files | of_conversations | of_exec | of_replay | of_turns | {
        "-c",
        "--changed",
        "--config",
        "--ephemeral",
        "--exit-when-idle",
        "--expires",
        "-h",
        "--help",
        "--host",
        "--in-process",
        "--json",
        "--mode",
        "--network",
        "--no-http",
        "--online",
        "--port",
        "--repair",
        "--resident",
        "--sign-in",
        "--status",
        "--socket",
        "--drain",
        "--stop",
        "--tls-cert",
        "--tls-key",
        "--token-env",
        "--url",
        "-V",
        "--version",
    }
    assert (flags | commands) - named == set()


def test_every_environment_variable_has_an_entry() -> None:
    read = {name for path in (ROOT / "src").rglob("*.py") for name in variables_in(ast.parse(path.read_text()))}
    section = text_of("docs/config.md").partition("## Environment variables")[2]

    set_for_commands = {"CODEX_SANDBOX_NETWORK_DISABLED"}
    assert read - set_for_commands - set(re.findall(r"`([A-Z_]+)`", section)) == set()
    assert "PARLEY_SERVE_TOKEN" in read


def variables_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of environment variables that a module reads: Parley's own names, and the constant keys of
    mappings whose names contain `environ`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(name)) if re.fullmatch(r"(PARLEY|CODEX|OPENAI)_[A-Z_]+", name):
                yield name
            case (
                ast.Call(
                    func=ast.Attribute(value=where, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]
                )
                | ast.Subscript(value=where, slice=ast.Constant(value=str(name)))
            ) if "environ" in ast.unparse(where):
                yield name


def test_every_flag_of_the_scripted_model_has_an_entry() -> None:
    flags = set(re.findall(r'"(--[a-z-]+)"', text_of("src/parley/testing/__main__.py")))

    assert flags - set(re.findall(r"--[a-z][a-z-]*", text_of("docs/testing.md"))) == set()


# --- links and code --------------------------------------------------------------------


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_lead_somewhere() -> None:
    anchors = cache(lambda path: {anchor(heading) for heading in headings(path)})

    assert {str(page.relative_to(ROOT)): broken for page in PAGES if (broken := broken_links(page, anchors))} == {}


def broken_links(page: Path, anchors: Callable[[str], set[str]]) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        path, _, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (fragment and fragment not in anchors(str(file.relative_to(ROOT)))):
            broken.append(target)
    return broken


def test_every_section_that_the_code_names_exists() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    named = sorted(set(re.findall(r"\b(docs/[\w/-]+\.md)#([\w-]+)", text)))

    assert len(named) > 10
    assert [f"{page}#{name}" for page, name in named if name not in map(anchor, headings(page))] == []


def test_every_test_that_the_docs_name_exists() -> None:
    """A name may be a pattern, such as `tests/fault/test_sandbox_*.py`."""
    named = {path for page in PAGES for path in re.findall(r"`(tests/[^`\s]*)`", page.read_text())}

    assert len(named) > 30
    assert [path for path in sorted(named - EXAMPLE_TESTS) if not any(ROOT.glob(path.rstrip("/")))] == []


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", text_of("docs/decisions/README.md"))

    assert sorted([*listed, "README.md"]) == sorted(path.name for path in ROOT.glob("docs/decisions/*.md"))


def test_the_readme_shows_the_example_that_is_run_below() -> None:
    shown = [block.code for block in blocks() if block.page == "README.md" and block.language == "python"]

    assert shown == [text_of("docs/examples/first_conversation.py")]


async def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model_provider = "scripted"\n')
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "docs/examples/first_conversation.py"),
        env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(90):
        said, _ = await process.communicate()
    text = "".join(step.text for step in DEMONSTRATION.replies[0] if isinstance(step.text, str))

    assert (said.decode(), process.returncode) == (f"{text}\n", 0)


@pytest.mark.waits
def test_the_tests_on_the_testing_page_pass_with_its_settings(tmp_path: Path) -> None:
    shown = [block for block in blocks() if block.page == "docs/testing.md"]
    for name, language in (("pyproject.toml", "toml"), ("test_shown.py", "python")):
        (tmp_path / name).write_text("\n\n".join(block.code for block in shown if block.language == language))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert "4 passed" in run.stdout, run.stdout


def test_the_local_model_of_the_readme_needs_no_key(tmp_path: Path) -> None:
    (shown,) = (block.code for block in blocks() if block.page == "README.md" and block.language == "toml")
    (tmp_path / "config.toml").write_text(shown)
    settings = Loader(environ={"PARLEY_HOME": str(tmp_path)}, server_dir="/").choose(SettingsOverrides()).settings

    assert (settings.provider.base_url, settings.provider.env_key) == ("http://localhost:8000/v1", None)


# --- architecture ----------------------------------------------------------------------


def defined_in(path: Path) -> set[str]:
    """Return the names that a module defines at its top level, and `Class.method` for methods."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                names |= {name, *(f"{name}.{member.name}" for member in body if isinstance(member, functions))}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case _:
                pass
    return names


def test_every_function_that_the_architecture_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", text_of("docs/architecture.md"))

    assert len(named) > 30
    assert [f"{file}:{name}" for file, name in named if name not in defined_in(ROOT / "src/parley" / file)] == []


def test_every_file_that_the_architecture_page_names_with_its_folder_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)[`:]", text_of("docs/architecture.md")))
    roots = (ROOT / "src/parley", ROOT)

    assert [file for file in sorted(named) if not any((root / file).exists() for root in roots)] == []


def test_the_glossary_has_at_most_twenty_terms() -> None:
    glossary = text_of("docs/architecture.md").partition("## Glossary")[2].partition("## ")[0]

    assert 10 < len(re.findall(r"^\| [a-z]", glossary, re.MULTILINE)) - 1 <= 20


# --- the rest --------------------------------------------------------------------------


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    mentioned = {found for page in PAGES for found in re.findall(r"[`$] ?make ([a-z-]+)", page.read_text())}

    assert {"demo", "test", "test-long", "bench", "setup"} <= mentioned
    assert mentioned - targets == set()


def test_a_change_is_named_for_its_subject_and_its_kind() -> None:
    names = [path.name for path in ROOT.glob("changes/*")]

    assert [name for name in names if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(CHANGE_KINDS)})\.md", name)] == []


def test_the_readme_has_no_gaps_to_be_filled() -> None:
    assert "<!--" not in text_of("README.md")
