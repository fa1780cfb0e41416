"""The commands and pickers of the chat, with a server."""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kit.clients.chat_context import RecordingChat
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.cli.chat.commands import COMMANDS, handle_command
from parley.cli.chat.pickers import pick_conversation, pick_message
from parley.testing import HOLD, Call, ParleyProcess

ENTER, ESCAPE, DOWN, CTRL_F = "\r", "\x1b", "\x1b[B", "\x06"


@pytest.fixture
def chat(parley_server: ParleyProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingChat]:
    monkeypatch.delenv("TMUX", raising=False)
    with RecordingChat(parley_server.client) as recording:
        yield recording


async def use(chat: RecordingChat, line: str) -> str:
    """Run a command, and return its last note."""
    chat.notes.clear()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with chat.session():
            assert await handle_command(chat, line)
    return chat.notes[-1] if chat.notes else ""


def opened(chat: RecordingChat) -> str | None:
    return None if chat.conversation is None else chat.conversation.id


def shows(chat: RecordingChat, text: str) -> bool:
    return text in chat.screen()


async def say(chat: RecordingChat, server: ParleyProcess, text: str, answer: str) -> None:
    """Run a turn in the open conversation, or in a new one."""
    if chat.conversation is None:
        chat.conversation = await server.create()
    server.model.says(answer)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await (await chat.conversation.send(text)).result()


async def test_an_unknown_command_names_the_nearest_one_and_stays_in_the_input(chat: RecordingChat) -> None:
    assert (await use(chat, "/modle gpt")).startswith("unknown command /modle; did you mean /model? ")
    assert chat.input == "/modle gpt"
    assert (await use(chat, "/int")).startswith("unknown command /int; did you mean /interrupt? ")
    assert (await use(chat, "/")).startswith("unknown command /. /help lists the commands. ")
    assert chat.sent == []


async def test_the_help_lists_every_command(chat: RecordingChat) -> None:
    await use(chat, "/help")

    assert all(f"/{command.name}" in chat.text for command in COMMANDS)
    assert max(map(len, chat.text.splitlines())) <= 80


async def test_arguments_are_checked_before_anything_changes(chat: RecordingChat) -> None:
    assert await use(chat, "/new now") == "/new takes no argument"
    assert await use(chat, "/rename") == "usage: /rename TITLE"
    assert "unknown variant `sometimes`, expected one of" in await use(chat, "/approvals sometimes")
    assert "unknown variant `none`, expected one of" in await use(chat, "/sandbox none")
    assert "invalid model" in await use(chat, "/model two words")
    assert "no conversation is open" in await use(chat, "/fork")
    assert "is not the id of a conversation" in await use(chat, "/resume xyz")
    assert chat.overrides == {}


async def test_settings_apply_from_the_next_message_on(chat: RecordingChat) -> None:
    assert await use(chat, "/model other-model") == "model: other-model, from the next message on"
    assert "approvals: untrusted (" in await use(chat, "/approvals untrusted")
    assert "sandbox: read-only (" in await use(chat, "/sandbox read-only")

    assert chat.overrides == {"model": "other-model", "approval_policy": "untrusted", "sandbox": "read-only"}
    await use(chat, "/status")
    assert "other-model, from the next message on" in chat.text


async def test_a_setting_can_be_chosen_from_a_list(chat: RecordingChat) -> None:
    chat.keys(f"read{DOWN}")
    choosing = asyncio.create_task(use(chat, "/sandbox"))
    await until(lambda: chat.drawn.is_set() and "> read-only" in chat.screen())
    await until(lambda: "workspace-write" not in chat.screen())
    chat.keys(ENTER)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await choosing

    assert chat.overrides == {"sandbox": "read-only"}


async def test_a_model_can_be_chosen_from_those_that_a_provider_offers(chat: RecordingChat) -> None:
    chat.models = {"ollama": ["one-model", "other-model"]}
    settings = await chat.client.settings()
    chat.models[settings.model_provider] = [settings.model, "newest-model"]

    async def choose(line: str, *shown: str) -> str:
        choosing = asyncio.create_task(use(chat, line))
        await until(lambda: chat.drawn.is_set() and all(one in chat.screen() for one in shown))
        chat.keys(shown[-1])
        await until(lambda: f"> {shown[-1]}" in chat.screen())
        chat.keys(ENTER)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await choosing
        chat.drawn.clear()
        return str(chat.overrides.get("model"))

    assert await choose("/model", "ollama/", "newest-model") == "newest-model"
    assert await choose("/model ollama/", "ollama/one-model", "ollama/other-model") == "ollama/other-model"
    assert "cannot be listed" in await use(chat, "/model vllm/")
    assert chat.input == "/model vllm/"
    assert "the provider geminy cannot be used (choose from " in await use(chat, "/model geminy/")


async def test_the_models_of_the_current_provider_are_listed_even_if_the_settings_name_them(
    chat: RecordingChat,
) -> None:
    settings = await chat.client.settings()
    chat.models[settings.model_provider] = [settings.model]
    choosing = asyncio.create_task(use(chat, f"/model {settings.model_provider}/"))
    await until(lambda: choosing.done() or (chat.drawn.is_set() and f"> {settings.model}" in chat.screen()))
    chat.keys(ENTER)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await choosing == f"model: {settings.model}, from the next message on"


async def test_a_list_can_be_left_without_a_choice(chat: RecordingChat) -> None:
    chat.keys(ESCAPE)
    await use(chat, "/model")

    assert chat.overrides == {}


async def test_conversations_are_forked_renamed_and_resumed(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await say(chat, parley_server, "first", "One.")
    assert chat.conversation is not None
    original = chat.conversation.id
    assert await use(chat, "/rename A better title") == "title: A better title"
    assert original[:8] in await use(chat, "/fork")
    assert chat.conversation.id != original
    await use(chat, f"/resume {original}")

    assert chat.conversation.id == original
    assert (await chat.conversation.status()).title == "A better title"


async def test_a_conversation_is_archived_and_deleted_after_a_question(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await say(chat, parley_server, "first", "One.")
    notes = []
    for keys, selected in (("", "> no"), ("yes", "> yes")):
        chat.drawn.clear()
        deleting = asyncio.create_task(use(chat, "/delete"))
        await until(lambda: chat.drawn.is_set() and "> no" in chat.screen())
        chat.keys(keys)
        await until(partial(shows, chat, selected))
        chat.keys(ENTER)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            notes.append(await deleting)
    assert notes == ["nothing was deleted", "deleted"]
    assert chat.conversation is None
    assert (await parley_server.client.list()).conversations == ()

    await say(chat, parley_server, "second", "Two.")
    assert "archived" in await use(chat, "/archive")
    assert chat.conversation is None
    assert len((await parley_server.client.list(archived=True)).conversations) == 1


async def test_the_diff_and_the_plan_of_the_conversation_are_shown(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    patch = "*** Begin Patch\n*** Add File: new.txt\n+one\n+\x1b[2Jtwo\n*** End Patch\n"
    steps = {"plan": [{"step": "look", "status": "completed"}, {"step": "change", "status": "pending"}]}
    chat.conversation = await parley_server.create(sandbox="workspace-write", approval_policy="never")
    assert "no patch" in await use(chat, "/diff")
    assert "no plan" in await use(chat, "/plan")
    parley_server.model.says(Call("update_plan", steps))
    parley_server.model.says(Call("apply_patch", {"input": patch}))
    await say(chat, parley_server, "add a file", "Added.")
    shown = await use(chat, "/diff")
    await use(chat, "/plan")

    assert "changes by commands are not shown (`!git diff` shows them)" in shown
    assert "add a file\n" in chat.text
    assert "\n+one\n+\\x1b[2Jtwo" in chat.text
    assert "  [x] look\n  [ ] change" in chat.text


async def test_a_long_diff_gets_the_whole_screen(chat: RecordingChat, parley_server: ParleyProcess) -> None:
    lines = "".join(f"+line {number}\n" for number in range(100))
    patch = f"*** Begin Patch\n*** Add File: new.txt\n{lines}*** End Patch\n"
    chat.conversation = await parley_server.create(sandbox="workspace-write", approval_policy="never")
    parley_server.model.says(Call("apply_patch", {"input": patch}))
    await say(chat, parley_server, "add a file", "Added.")
    showing = asyncio.create_task(use(chat, "/diff"))
    await until(lambda: chat.drawn.is_set() and "+line 1" in chat.screen())
    assert "changes by commands are not shown" in chat.screen()
    chat.keys("G")
    await until(lambda: "+line 99" in chat.screen())
    chat.keys("q")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await showing

    assert chat.printed == []


async def test_the_last_answer_is_copied_with_the_sequence_of_the_terminal(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await say(chat, parley_server, "first", "The answer: é")
    assert "copied 13 characters" in await use(chat, "/copy")

    (sequence,) = chat.terminal.raw
    assert b64decode(sequence.removeprefix("\x1b]52;c;").removesuffix("\x07")).decode() == "The answer: é"


async def test_a_conversation_is_exported_to_new_files_only(
    chat: RecordingChat, parley_server: ParleyProcess, tmp_path: Path
) -> None:
    await say(chat, parley_server, "first", "One.")
    path = tmp_path / "talk.md"
    await use(chat, f"/export {path}")
    assert "> One." in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "already exists" in await use(chat, f"/export {path}")
    assert "must end in .md or .jsonl" in await use(chat, f"/export {tmp_path / 'talk.pdf'}")
    assert "cannot write" in await use(chat, f"/export {tmp_path / 'absent' / 'talk.md'}")
    chat.is_remote = True
    assert "exports .md files only" in await use(chat, f"/export {tmp_path / 'talk.jsonl'}")

    assert [name for name in os.listdir(tmp_path) if name.startswith("talk")] == ["talk.md"]


async def test_the_queue_is_listed_and_changed(chat: RecordingChat, parley_server: ParleyProcess) -> None:
    chat.conversation = conversation = await parley_server.create()
    parley_server.model.says(HOLD, "One.")
    await conversation.send("first")
    await parley_server.model.wait_until_held()
    await conversation.send("second message", delivery="queue")
    await conversation.send("third message", delivery="queue")
    await use(chat, "/queue")
    assert "  1. second message\n  2. third message" in chat.text
    assert await use(chat, "/queue remove 1") == "removed: second message"
    assert "choose from 1 to 1" in await use(chat, "/queue remove 2")
    await use(chat, "/queue edit 1")
    assert chat.input == "third message"
    assert "an interrupt pauses the queue" in await use(chat, "/queue pause")
    assert "usage: /queue" in await use(chat, "/queue nonsense")
    assert (await conversation.queue()).messages == ()

    assert await use(chat, "/compact") == "A turn is running"
    chat.state = "running"
    await use(chat, "/interrupt")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (page := await conversation.read()).state != "idle":
            await conversation.read(after=page.seq, wait_seconds=1)
    chat.state = "idle"
    assert await use(chat, "/interrupt") == "no turn is running"
    parley_server.model.says("Continued.")
    await use(chat, "/continue")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while "Continued." not in str(page := await conversation.read()):
            await conversation.read(after=page.seq, wait_seconds=1)


async def test_the_history_is_compacted_and_a_paused_queue_is_continued(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await say(chat, parley_server, "first", "One.")
    conversation = chat.conversation
    assert conversation is not None

    async def until_reads(text: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while text not in str(page := await conversation.read()):
                await conversation.read(after=page.seq, wait_seconds=1)

    parley_server.model.says("In short.")
    await use(chat, "/compact")
    await until_reads("Context compacted")
    parley_server.model.says("Two", HOLD)
    await conversation.send("second")
    await parley_server.model.wait_until_held()
    await conversation.send("third", delivery="queue")
    chat.state = "running"
    await use(chat, "/interrupt")
    await until_reads("Turn interrupted")
    parley_server.model.says("Three.")
    await use(chat, "/queue continue")
    await until_reads("Three.")

    assert "In short." in str(parley_server.model.requests[-1].body)


async def test_a_plan_of_a_task_is_requested_from_the_agent(chat: RecordingChat) -> None:
    await use(chat, "/plan a faster start")

    ((text, delivery),) = chat.sent
    assert "a faster start" in str(text)
    assert delivery == "join"


async def test_reasoning_is_shown_and_folded_and_the_chat_is_left(chat: RecordingChat) -> None:
    assert await use(chat, "/reasoning") == "reasoning: shown"
    assert await use(chat, "/reasoning") == "reasoning: folded"
    await use(chat, "/exit")

    assert chat.is_ended


async def test_a_conversation_is_found_by_its_text_and_opened(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await say(chat, parley_server, "about apples", "Red.")
    assert chat.conversation is not None
    apples = chat.conversation.id
    chat.conversation = None
    await say(chat, parley_server, "about pears", "Green.")
    picking = asyncio.create_task(pick_conversation(chat))
    await until(lambda: chat.drawn.is_set() and "about apples" in chat.screen() and "Green." in chat.screen())
    drawn = chat.screen()
    chat.keys("apples")
    await until(lambda: "about pears" not in chat.screen() and "Red." in chat.screen())
    chat.keys(ENTER)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await picking

    assert opened(chat) == apples
    assert len(drawn.splitlines()) == 24
    assert max(map(len, drawn.splitlines())) <= 80
    assert drawn.splitlines()[0] == "Conversations  2"
    assert f"  {apples[:8]}  idle    *" in drawn


async def test_a_long_list_is_loaded_page_by_page(
    chat: RecordingChat, parley_server: ParleyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.cli.chat.pickers.PAGE", 10)
    created = [await parley_server.create() for _ in range(35)]
    picking = asyncio.create_task(pick_conversation(chat))
    await until(lambda: chat.drawn.is_set() and chat.screen().startswith("Conversations  10+"))
    for loaded in ("20+", "30+", "35"):
        chat.keys(DOWN * 20)
        await until(partial(shows, chat, f"Conversations  {loaded}"))
    chat.keys("\x1b[1;5F")  # Ctrl-End
    await until(lambda: f"> {created[0].id[:8]}" in chat.screen())
    chat.keys(ENTER)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await picking

    assert chat.conversation is not None
    assert chat.conversation.id == created[0].id


@pytest.mark.parametrize("text", ["!touch planted", "/approvals never\nplease"])
async def test_a_message_of_another_client_that_looks_like_a_command_stays_a_message(
    chat: RecordingChat, parley_server: ParleyProcess, text: str
) -> None:
    await say(chat, parley_server, text, "One.")
    picking = asyncio.create_task(pick_message(chat))
    await until(lambda: chat.drawn.is_set() and text[:8] in chat.screen())
    chat.keys(ENTER)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await picking
    assert chat.input == f" {text}"

    assert chat.conversation is not None
    parley_server.model.says(HOLD, "Two.")
    await chat.conversation.send("wait")
    await parley_server.model.wait_until_held()
    await chat.conversation.send(text, delivery="queue")
    chat.input = ""
    await use(chat, "/queue edit 1")
    assert chat.input == f" {text}"


async def test_an_earlier_message_is_edited_or_the_conversation_is_forked_after_it(
    chat: RecordingChat, parley_server: ParleyProcess
) -> None:
    await pick_message(chat)
    assert chat.notes == ["no conversation is open, so there are no earlier messages"]
    await say(chat, parley_server, "first question\nwith details", "One.")
    await say(chat, parley_server, "second question", "Two.")
    assert chat.conversation is not None
    original = chat.conversation.id

    for keys, row in (("", "> second question"), (DOWN, "> first question with details")):
        chat.drawn.clear()
        picking = asyncio.create_task(pick_message(chat))
        await until(lambda: chat.drawn.is_set() and "> second question" in chat.screen())
        chat.keys(keys)
        await until(partial(shows, chat, row))
        chat.keys(ENTER)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await picking
    assert chat.input == "first question\nwith details"

    chat.drawn.clear()
    picking = asyncio.create_task(pick_message(chat))
    await until(lambda: chat.drawn.is_set() and "> second question" in chat.screen())
    chat.keys("first")
    await until(lambda: "> first question" in chat.screen())
    chat.keys(CTRL_F)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await picking
    assert chat.conversation.id != original
    assert "Two." not in str((await chat.conversation.read()).events)
    assert "One." in str((await chat.conversation.read()).events)
