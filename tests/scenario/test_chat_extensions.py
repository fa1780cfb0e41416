"""Commands, completion, local commands and lists of `parley chat` in a terminal of 80 columns and 24 rows.

Modules: `parley.cli.start`, `parley.cli.chat.offered_models`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.builders.images import PNG
from kit.models.model_service import ModelService, model_service
from kit.servers.resident_process import parley
from kit.system.interrupted import WAITS
from kit.system.tmux import TMUX, Terminal
from parley.testing import Call, ScriptedModel
from parley.testing.home import Home

pytestmark = [pytest.mark.child_process, pytest.mark.fresh_process, pytest.mark.waits, TMUX]

LINES = "".join(f"+line {number}\n" for number in range(60))
PATCH = f"*** Begin Patch\n*** Add File: long.txt\n{LINES}*** End Patch"


@pytest.fixture
def home(parley_model: ScriptedModel, tmp_path: Path) -> Iterator[Home]:
    home = Home(parley_model, home=tmp_path / "home", config='approval_policy = "never"\n')
    home.open()
    yield home
    home.close()


@pytest.fixture
def shop() -> Iterator[ModelService]:
    with model_service("small", "large") as service:
        yield service


def start(home: Home, *arguments: str) -> Terminal:
    command = (sys.executable, "-P", "-m", "parley", *arguments)
    return Terminal(command, env={**home.environ, "SHELL": "/bin/sh"}, cwd=home.work)


async def stop(home: Home) -> None:
    await parley("serve", "--stop", env=home.environ)


async def test_a_message_names_an_image_and_contains_the_output_of_a_local_command(
    home: Home, parley_model: ScriptedModel
) -> None:
    (home.work / "shots").mkdir()
    (home.work / "shots" / "error.png").write_bytes(PNG)
    parley_model.says("I see it.")
    try:
        async with start(home) as terminal:  # `parley` without a command
            await terminal.until_shows("scripted-model")
            terminal.type("!echo from here; exit 7")
            terminal.press("Enter")
            await terminal.until_shows("  from here", "exit code 7; the next message includes this output")
            terminal.type(f"!exec {WAITS}")
            terminal.press("Enter")
            await terminal.until_shows("  begun")
            terminal.press("C-c")
            await terminal.until_shows("ended by SIGINT")
            terminal.type("look at @err")
            await terminal.until_shows("shots/error.png")
            terminal.press("Tab")
            await terminal.until_shows("look at @shots/error.png")
            terminal.press("Enter")
            await terminal.until_shows("I see it.")
            terminal.type("/export talk.jsonl")
            terminal.press("Enter")
            await terminal.until_shows("written to talk.jsonl")
            terminal.type("/quit")
            terminal.press("Enter")
            await terminal.until_shows("to continue: parley chat --resume", "exit code 0")
        async with start(home, "chat", "--resume") as terminal:
            await terminal.until_shows("Conversations  1", "look at @shots/error.png", "I see it.")
            terminal.press("Enter")
            await terminal.until_hides("Conversations  1")
            await terminal.until_shows("> look at @shots/error.png", "I see it.")
            terminal.press("C-d")
            await terminal.until_shows("exit code 0")
    finally:
        await stop(home)

    exported = [json.loads(line) for line in (home.work / "talk.jsonl").read_text().splitlines()]
    assert len(exported) > 3
    sent = str(parley_model.requests[0].body)
    assert "look at @shots/error.png" in sent
    assert "$ echo from here; exit 7" in sent
    assert "[exit code 7]" in sent
    assert "data:image/png;base64," in sent


async def test_commands_are_completed_and_lists_open_and_close(
    home: Home, parley_model: ScriptedModel, shop: ModelService
) -> None:
    parley_model.says(Call("apply_patch", {"input": PATCH}))
    parley_model.says("Written.")
    parley_model.says("Blue.")
    provider = "-c", f"model_providers.shop.base_url={shop.base_url}"
    try:
        async with start(home, "chat", "--sandbox", "workspace-write", "write a long file", *provider) as terminal:
            await terminal.until_shows("Written.")
            terminal.type("/dif")
            await terminal.until_shows("/diff", "show the changes of all patches")
            terminal.press("Tab", "Enter", "Enter")
            await terminal.until_shows("Changes", "+line 1", "q closes")
            terminal.press("End")
            await terminal.until_shows("+line 59")
            overlay = [terminal.has(flag) for flag in ("alternate_on", "mouse_any_flag")]
            terminal.press("q")
            await terminal.until_hides("q closes")
            await terminal.until_shows("Written.")
            assert (overlay, terminal.has("alternate_on")) == ([True, False], False)

            terminal.type("/new")
            terminal.press("Enter")
            await terminal.until_shows("the next message begins a new conversation")
            terminal.type("name a colour")
            terminal.press("Enter")
            await terminal.until_shows("Blue.")
            await terminal.until_hides("Esc interrupts")
            terminal.press("C-l")
            await terminal.until_hides("Blue.")
            terminal.press("C-t")
            await terminal.until_shows("Conversations  2", "name a colour", "write a long file", "Enter: open")
            assert len(terminal.screen().splitlines()) <= 24
            terminal.type("long")
            await terminal.until_shows("Conversations  1")
            terminal.press("Enter")
            await terminal.until_shows("+line 58", "Written.")
            await terminal.until_hides("Enter: open")

            terminal.press("C-r")
            await terminal.until_shows("Your messages  1", "> write a long file")
            terminal.press("Enter")
            await terminal.until_hides("Your messages")
            await terminal.until_shows("> write a long file")
            terminal.press("C-c")

            terminal.type("/sandbox read")
            await terminal.until_shows("commands can write no files")
            terminal.press("Tab", "Enter")
            await terminal.until_shows("sandbox: read-only")
            terminal.type("/model shop/")
            terminal.press("Enter")
            await terminal.until_shows("Models of shop  2", "> shop/small  offered by shop", "shop/large")
            terminal.press("Down", "Enter")
            await terminal.until_shows("model: shop/large, from the next message on")

            terminal.type("/resume")
            terminal.press("Enter")
            await terminal.until_shows("Conversations  2")
            terminal.type("colour")
            await terminal.until_shows("Conversations  1")
            terminal.press("Enter")
            await terminal.until_shows("not sent, and therefore dropped: model shop/large, sandbox read-only")
            terminal.type("/modle x")
            terminal.press("Enter")
            await terminal.until_shows("did you mean /model?")
            terminal.press("C-c")
            terminal.press("C-d")
            await terminal.until_shows("exit code 0")
    finally:
        await stop(home)

    assert len(parley_model.requests) == 3


async def test_without_settings_the_set_up_comes_first(tmp_path: Path, parley_model: ScriptedModel) -> None:
    home = Home(parley_model, home=tmp_path / "home")
    home.open()
    (home.path / "config.toml").unlink()
    try:
        async with start(home) as terminal:
            await terminal.until_shows("provider", "openai")
            terminal.press("C-d")
            await terminal.until_shows("the input ended, so config.toml was not written", "exit code 1")
    finally:
        home.close()
    assert not (home.path / "config.toml").exists()
