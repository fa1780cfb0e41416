"""The first minutes of a newcomer: commands in a fresh home, without a key, and with a wrong one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kit.models.model_service import model_service
from kit.servers.command_line import environ_of, run_parley
from kit.servers.terminal_program import TerminalProgram


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("ls",), "parley ls: there are no conversations yet; `parley chat` begins one"),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in (
                (("ls", "--archived"), "parley ls: there are no archived conversations"),
                (("attention",), "parley attention: no conversation needs a person"),
                (("token", "ls"), "parley token ls: there are no tokens; `parley token create` creates one"),
            )
        ),
        pytest.param(("answer",), "parley answer: there are no open approvals", marks=pytest.mark.long),
    ],
)
async def test_an_empty_list_is_explained_on_a_terminal_only(
    tmp_path: Path, words: tuple[str, ...], note: str
) -> None:
    with TerminalProgram(
        (sys.executable, "-P", "-m", "parley", *words), env=environ_of(tmp_path), cwd=tmp_path
    ) as program:
        shown = program.finish(), program.output
    piped = await run_parley(tmp_path, *words)

    assert shown == (0, f"{note}\n")
    assert piped == ("", "", 0)


async def test_a_missing_key_comes_with_the_command_that_stores_one(tmp_path: Path) -> None:
    done = await run_parley(tmp_path, "exec", "hi")
    other = await run_parley(tmp_path, "exec", "hi", "--model", "groq/x")

    hint = "or run `parley config init"
    assert (done.exit_code, other.exit_code) == (1, 1)
    assert f"`OPENAI_API_KEY`. Set it to your API key for OpenAI, {hint}" in done.stderr
    assert f"`GROQ_API_KEY`. Set it to your API key for Groq, {hint} --force`" in other.stderr


async def test_a_provider_that_fails_comes_with_the_command_that_explains_it(tmp_path: Path) -> None:
    with model_service("small") as service:
        service.status, service.body = 401, "{}"
        written = await run_parley(tmp_path, "config", "init", "--base-url", service.base_url, "--model", "small")
        done = await run_parley(tmp_path, "exec", "hi")

    assert (written.exit_code, done.exit_code) == (0, 1)
    assert "parley exec: check the provider with `parley doctor --online`\n" in done.stderr
