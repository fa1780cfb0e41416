"""`parley chat` in a terminal of 80 columns and 24 rows, with a scripted model.

Modules: `parley.cli.chat.chat`, `parley.cli.chat.screen`, `parley.cli.chat.terminal`, `parley.cli.chat.plain`,
`parley.cli.chat_command`, `parley.cli.turn_options`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.builders.images import PNG
from kit.clients.shell_turns import shell
from kit.servers.command_line import environ_of
from kit.servers.cutting_port import CuttingPort
from kit.servers.http_server import HttpServer
from kit.servers.resident_process import parley
from kit.system.git import git
from kit.system.needs import SANDBOX
from kit.system.tmux import TMUX, Terminal
from parley.common.home import SOCKET
from parley.common.resident_socket import ask
from parley.common.resident_socket import connect as connect_to_resident
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import Home

pytestmark = [pytest.mark.child_process, pytest.mark.fresh_process, pytest.mark.waits, TMUX]

PATCH = "*** Begin Patch\n*** Add File: greet.py\n+print('hello')\n*** End Patch"
PLAN = {"plan": [{"step": "ask", "status": "completed"}, {"step": "write", "status": "in_progress"}]}
READY = "a allow once"


@pytest.fixture
def home(parley_model: ScriptedModel, tmp_path: Path) -> Iterator[Home]:
    home = Home(parley_model, home=tmp_path / "home", config='approval_policy = "untrusted"\n')
    home.open()
    yield home
    home.close()


async def stop(home: Home) -> None:
    await parley("serve", "--stop", env=home.environ)


def chat(
    home: Home, *arguments: str, env: Mapping[str, str] | None = None, rows: int = 24, columns: int = 80
) -> Terminal:
    command = (sys.executable, "-P", "-m", "parley", "chat", *arguments)
    return Terminal(command, env={**home.environ, **(env or {})}, cwd=home.work, columns=columns, rows=rows)


def dumb(home: Home, *arguments: str) -> Terminal:
    command = (sys.executable, "-P", "-m", "parley", "chat", *arguments)
    return Terminal(command, env=home.environ, cwd=home.work, term="dumb")


def resident_pid(home: Home) -> int:
    with connect_to_resident(str(home.path)) as channel:
        return int(ask(channel, "status")["pid"])


async def test_a_change_with_a_plan_and_two_approvals(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says(
        "I **look** first.", Call("update_plan", PLAN), shell("c1", "sh", "-c", "echo seen; touch made")
    )
    parley_model.says(Call("apply_patch", {"input": PATCH}))
    parley_model.says("All done.\n\n- 日本語 🙂")
    try:
        async with chat(home) as terminal:
            await terminal.until_shows("scripted-model", "> /help lists the commands\n")
            terminal.type("Greet me")
            await terminal.until_shows("> Greet me\n")
            terminal.press("Enter")

            await terminal.until_shows("$ sh -c 'echo seen; touch made'", "Run this command", READY, "[>] write")
            terminal.press("a")
            await terminal.until_shows("add ", "+print('hello')", "Apply these changes", READY)
            assert not (home.work / "greet.py").exists()
            assert not terminal.has("alternate_on")
            assert not terminal.has("mouse_any_flag")
            terminal.press("a")
            await terminal.until_shows("All done.", " • 日本語 🙂", "[>] write")
            await terminal.until_hides("Esc interrupts")

            shown = terminal.everything()
            terminal.press("C-d")
            await terminal.until_shows("to continue: parley chat --resume", "exit code 0")
    finally:
        await stop(home)

    assert (home.work / "greet.py").read_text() == "print('hello')\n"
    assert (home.work / "made").exists()
    expected = ["> Greet me", "I look first.", "seen", "approved", "approved", "patch:", "plan:", "[>] write"]
    positions: list[int] = []
    for text in expected:
        positions.append(shown.index(text, positions[-1] + 1 if positions else 0))
    assert "/help" not in shown
    assert shown.count("All done.") == shown.count("I look first.") == shown.count("> Greet me") == 1


async def test_a_denial_with_a_reason_and_an_interrupt(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Half an ans", HOLD, "wer")
    try:
        async with chat(home, "Try it") as terminal:
            await terminal.until_shows("$ touch made", READY)
            terminal.press("d")
            await terminal.until_shows("reason>")
            terminal.type("not today")
            terminal.press("Enter")
            await terminal.until_shows("denied: not today", "Half an ans")
            terminal.press("Escape")
            await terminal.until_shows("\ninterrupted")
            await terminal.until_hides("Esc interrupts")
    finally:
        await stop(home)

    assert not (home.work / "made").exists()
    assert "not today" in str(parley_model.requests[1].body)


async def test_characters_that_were_typed_ahead_answer_nothing(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("Wait.", HOLD, shell("c1", "touch", "made"))
    parley_model.says("Done.")
    try:
        async with chat(home, "Try it") as terminal:
            await terminal.until_shows("Wait.")
            terminal.type("a dra")
            await terminal.until_shows("> a dra")
            parley_model.release()
            await terminal.until_shows("$ touch made", "clear the input first")
            terminal.type("ft about")
            await terminal.until_shows("> a draft about", "clear the input first")
            assert not (home.work / "made").exists()
            terminal.press("C-c")
            await terminal.until_shows(READY)
            terminal.press("a")
            await terminal.until_shows("Done.")
    finally:
        await stop(home)

    assert (home.work / "made").exists()


async def test_a_reply_that_begins_with_a_key_decides_nothing(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Stopped.")
    try:
        async with chat(home, "Try it") as terminal:
            await terminal.until_shows("$ touch made", READY)
            terminal.type("stop")
            await terminal.until_shows("> stop", "clear the input first")
            terminal.press("C-c")
            await terminal.until_shows(READY)
            assert not (home.work / "made").exists()
            terminal.press("x")
            await terminal.until_hides(READY)
    finally:
        await stop(home)

    assert not (home.work / "made").exists()


async def test_the_agent_neither_controls_the_terminal_nor_imitates_a_request(
    home: Home, parley_model: ScriptedModel
) -> None:
    imitation = f"The agent asks to run a command in /p:{' ' * 42}  $ make test"
    parley_model.says("First.")
    parley_model.says(
        "Kept.\n\nSee <http://x/%1B%5B2J%1B%5B1;1H%1B%5D0;title%1B%5C> &#x202e;there.\n\nEnd.",
        shell("c1", "bash", "-c", f"touch made; true #{' ' * 2000}{imitation}"),
    )
    parley_model.says("Stopped.")
    try:
        async with chat(home, "One") as terminal:
            await terminal.until_shows("First.")
            terminal.type("Two")
            terminal.press("Enter")
            await terminal.until_shows("Run this command? The request has", "scroll up", READY)
            shown = terminal.everything()
            lines = terminal.screen().splitlines()
            terminal.press("x")
            await terminal.until_hides(READY)
    finally:
        await stop(home)

    assert "\\x1b[2J\\x1b[1;1H\\x1b]0;title" in shown.replace("\n", "")
    assert "Kept." in shown
    assert "\\u202ethere." in shown
    assert not [line for line in lines if line.startswith(("The agent asks", "  $ make"))]


async def test_earlier_messages_are_formatted_when_a_conversation_is_continued(
    home: Home, parley_model: ScriptedModel
) -> None:
    parley_model.says(f"# Title\n\nThis is **bold** and `code`, {'wrapped between words ' * 5}here.\n\n- item")
    try:
        async with chat(home, "First", columns=60) as terminal:
            await terminal.until_shows("• item")
            live = terminal.everything()
            terminal.press("C-d")
            await terminal.until_shows("parley chat --resume")
        async with chat(home, "--continue", columns=60) as terminal:
            await terminal.until_shows("> First", "• item")
            continued = terminal.everything()
    finally:
        await stop(home)

    assert _between(continued, "> First", "item") == _between(live, "> First", "item")
    assert "\nTitle\n" in continued
    assert "This is bold and code, wrapped between words wrapped between\n" in continued


def _between(text: str, first: str, last: str) -> str:
    return text[text.index(first) : text.index(last)]


async def test_two_chats_on_one_conversation_stay_in_step(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("One.", shell("c1", "touch", "made"))
    parley_model.says("Two.", HOLD, " Three.")
    try:
        async with chat(home, "First") as first:
            await first.until_shows("One.", READY)
            async with chat(home, "--continue") as second:
                await second.until_shows("> First", "One.", "$ touch made", READY)
                second.press("a")
                await first.until_hides(READY)
                await first.until_shows("approved", "Two.")
                second.type("From the other")
                second.press("Tab")
                await second.until_shows("queued: > From the other")
                await first.until_shows("queue: 1 more waiting")
                parley_model.says("Four.")
                parley_model.release()
                for terminal in (first, second):
                    await terminal.until_shows("> From the other", "Four.", "Two. Three.")
                    assert terminal.everything().count("Two.") == 1
    finally:
        await stop(home)


async def test_a_killed_server_is_replaced_and_nothing_is_lost_or_doubled(
    home: Home, parley_model: ScriptedModel
) -> None:
    parley_model.says("Before.\n\nHalf", HOLD)
    try:
        async with chat(home, "First") as terminal:
            await terminal.until_shows("Before.", "Half")
            os.kill(resident_pid(home), signal.SIGKILL)
            await terminal.until_shows("was killed; starting another one", "connected again", "Turn interrupted")
            parley_model.says("After.")
            terminal.type("Second")
            terminal.press("Enter")
            await terminal.until_shows("> Second", "After.")
            await terminal.until_hides("Esc interrupts")
            shown = terminal.everything()
    finally:
        await stop(home)

    for text in ("> First", "Before.", "Half", "> Second", "After."):
        assert shown.count(text) == 1, shown


async def test_a_cut_network_loses_and_doubles_nothing(parley_model: ScriptedModel, tmp_path: Path) -> None:
    (nothing := tmp_path / "nothing").mkdir()
    parley_model.says("First.\n\nHalf", HOLD, " whole.\n\nLast.")
    async with HttpServer(parley_model, tmp_path / "home") as server, CuttingPort(server.url) as port:
        env = {**environ_of(nothing), "PARLEY_TOKEN": server.token}
        command = (sys.executable, "-P", "-m", "parley", "chat", "Go", "--url", port.url)
        async with Terminal(command, env=env, cwd=nothing) as terminal:
            await terminal.until_shows("First.", "Half")
            await port.stop_listening()
            await terminal.until_shows("lost the connection", "reconnecting")
            terminal.type("Meanwhile")
            terminal.press("Enter")
            parley_model.says("Heard.")
            parley_model.release()
            await port.listen_again()
            await terminal.until_shows("connected again", "Half whole.", "Last.", "> Meanwhile", "Heard.")
            await terminal.until_hides("Esc interrupts")
            shown = terminal.everything()
    for text in ("> Go", "First.", "Half", "Last.", "> Meanwhile", "Heard."):
        assert shown.count(text) == 1, shown


async def test_a_ready_provider_needs_only_its_key(home: Home, parley_model: ScriptedModel, tmp_path: Path) -> None:
    (home.path / "config.toml").unlink()
    image = tmp_path / "image.png"
    image.write_bytes(PNG)
    parley_model.says("I see.")
    address = f"model_providers.anthropic.base_url={parley_model.base_url.removesuffix('/v1')}"
    # With another address, the provider sends the key only if its variable is named, too.
    key = "model_providers.anthropic.env_key=ANTHROPIC_API_KEY"
    options = ("--model", "anthropic/claude-test", "--image", str(image), "-c", address, "-c", key)
    try:
        async with chat(home, "What is this?", *options, env={"ANTHROPIC_API_KEY": "secret-key"}) as terminal:
            await terminal.until_shows("> What is this?", "[1 attached]", "I see.", "claude-test · ")
    finally:
        await stop(home)

    request = parley_model.requests[0]
    assert request.path.endswith("/messages")
    assert request.headers["authorization"] == "Bearer secret-key"
    assert "image" in str(request.body)


async def test_without_colour_in_a_narrow_terminal_that_is_resized(home: Home, parley_model: ScriptedModel) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    parley_model.says(f"**Bold** {words}\n\n", HOLD, "日本語" * 30, shell("c1", "touch", "made"))
    try:
        async with chat(home, "Go", env={"NO_COLOR": "1"}, columns=30, rows=12) as terminal:
            await terminal.until_shows("word39")
            terminal.resize(60, 20)
            parley_model.release()
            await terminal.until_shows("日本語日本語")
            await terminal.until_shows("a allow once   s allow for the session   d deny\nx deny and stop\n")
            terminal.press("x")
            await terminal.until_hides("x deny and stop")
            terminal.type("still here")
            await terminal.until_shows("> still here")
            styled = terminal.styled()
    finally:
        await stop(home)

    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", styled)  # no foreground colours


async def test_a_terminal_that_cannot_move_its_cursor(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("Look:", shell("c1", "touch", "made"))
    parley_model.says(shell("c2", "touch", "other"))
    parley_model.says("Done.")
    try:
        async with dumb(home) as terminal:
            terminal.type("Go on")
            terminal.press("Enter")
            await terminal.until_shows("Look:", "$ touch made", "Answer with /approve")
            terminal.type("/approve")
            terminal.press("Enter")
            await terminal.until_shows("exit code 0", "$ touch other")
            terminal.type("/deny not this one")
            terminal.press("Enter")
            await terminal.until_shows("denied: not this one", "Done.")
            terminal.press("C-d")
            await terminal.until_shows("to continue: parley chat --resume", "exit code 0")
            styled = terminal.styled()
    finally:
        await stop(home)

    assert "\x1b" not in styled
    assert (home.work / "made").exists()
    assert not (home.work / "other").exists()


async def test_a_message_before_the_end_of_the_chat_is_not_lost(home: Home, parley_model: ScriptedModel) -> None:
    parley_model.says("Heard.")
    try:
        async with chat(home) as terminal:
            await terminal.until_shows("connecting")
            terminal.type("Do it")
            terminal.press("Enter", "C-d")
            await terminal.until_shows("to continue: parley chat --resume", "exit code 0")
        await parley_model.wait_for_requests(1)
    finally:
        await stop(home)


async def test_invalid_settings_end_the_chat(home: Home) -> None:
    async with chat(home, "-c", "nonsense") as terminal:
        await terminal.until_shows("nonsense", "exit code 2")


@SANDBOX
async def test_a_worktree_is_created_after_the_connection(home: Home) -> None:
    git("init", "--quiet", cwd=home.work)
    (home.work / "file").touch()
    git("add", "--all", cwd=home.work)
    git("commit", "--quiet", "--message=one", cwd=home.work)
    beginning = f"{home.work.name}-parley-"

    (socket := home.path / SOCKET).mkdir()
    async with chat(home, "--worktree") as terminal:
        await terminal.until_shows("no resident server could be started")
    worktrees = [path for path in home.work.parent.iterdir() if path.name.startswith(beginning)]
    socket.rmdir()
    try:
        async with chat(home, "--worktree") as terminal:
            await terminal.until_shows("working in", "on the new branch parley/", "scripted-model")
    finally:
        await stop(home)

    assert worktrees == []
    assert [path.name.startswith(beginning) for path in home.work.parent.iterdir()].count(True) == 1


async def test_without_a_terminal_the_chat_names_exec(home: Home) -> None:
    code, _, err = await parley("chat", env=home.environ, cwd=home.work)

    assert code == 2
    assert "parley exec" in err
