"""The commands of the chat that show, copy or export content of the conversation."""

from __future__ import annotations

import os
from typing import Final

import msgspec
from msgspec import UnsetType

from parley.cli.chat.choices import current_settings
from parley.cli.chat.clipboard import copy_to_clipboard
from parley.cli.chat.commands_conversation import open_conversation
from parley.cli.chat.context import ChatContext
from parley.cli.chat.earlier_events import last_event, turn_changes
from parley.cli.chat.pager import StyledLine, as_rich_text, diff_lines, show_pages
from parley.cli.event_renderer import tokens_text
from parley.cli.export import export_to_file
from parley.cli.ids import SHORT
from parley.cli.runner import CommandFailed
from parley.cli.settings import settings_loader
from parley.client import events
from parley.client.connection import read_result
from parley.common.os_errors import os_detail
from parley.wire.prompts import GetPromptParams, GetPromptResult
from parley.wire.text import quoted, visible

__all__ = ["copy", "diff", "export", "plan", "status"]

SHORT_DIFF: Final = 40
"""The maximum length, in lines, of a diff that is printed above the input. A longer diff is shown on the full
screen.
"""

NOT_SHOWN: Final = "changes by commands are not shown (`!git diff` shows them)"

_prompt_decoder: Final = msgspec.json.Decoder(GetPromptResult)

_STEPS: Final = {"completed": "[x]", "in_progress": "[>]", "pending": "[ ]"}


async def diff(context: ChatContext, argument: str) -> None:
    """Show the file changes that the patches of all turns have made. A long diff is shown on the full screen."""
    changes = await turn_changes(open_conversation(context))
    if not changes:
        context.note(f"no patch has changed a file; {NOT_SHOWN}")
        return
    lines: list[StyledLine] = []
    for one in changes:
        lines.append(StyledLine("bold", visible(one.message) or "(a turn without a message)"))
        lines += diff_lines(one.diff)
    if len(lines) <= SHORT_DIFF:
        context.print(as_rich_text(lines))
        context.note(NOT_SHOWN)
    else:
        await show_pages(context, f"Changes by patches; {NOT_SHOWN}", lines)


async def plan(context: ChatContext, task: str) -> None:
    """Show the agent's last plan. If `task` is not empty, ask the agent for a plan of this task instead."""
    if task:
        params = GetPromptParams(name="plan", arguments={"task": task})
        result = read_result(_prompt_decoder, await context.client.request(params.METHOD, params), params.METHOD)
        texts = [message.content.text for message in result.messages if hasattr(message.content, "text")]
        await context.send("".join(texts), written=task)  # the server wrote the rest of the text
        return
    found = await last_event(open_conversation(context), events.PlanUpdate)
    if found is None:
        context.note("the agent has made no plan; /plan TASK asks for one")
        return
    lines = [visible(found.explanation)] if found.explanation else []
    steps = (f"  {_STEPS[one.status]} {visible(one.step)}" for one in found.plan)
    context.print("\n".join([*lines, *steps]), wraps=True)


async def copy(context: ChatContext, argument: str) -> None:
    """Copy the last message of the agent to the clipboard."""
    found = await last_event(open_conversation(context), events.AgentMessage)
    if found is None:
        raise CommandFailed("the agent has not answered yet")
    context.note(await copy_to_clipboard(found.message))


async def export(context: ChatContext, path: str) -> None:
    """Write the conversation to the new file `path`: a `.md` file to read, or a `.jsonl` file for `parley import`.
    If `path` is empty, write a `.md` file with a default name.
    """
    conversation = open_conversation(context)
    path = _expanded(path) if path else f"conversation-{conversation.id[:SHORT]}.md"
    try:
        match os.path.splitext(path)[1].lower():
            case ".md":
                uri = f"parley://conversations/{conversation.id}"
                _write_new(path, await context.client.read_resource(uri))
            case ".jsonl" if context.is_remote:
                raise CommandFailed(
                    "the server at a URL exports .md files only; run `parley export` on that computer"
                )
            case ".jsonl":
                await export_to_file(settings_loader(), conversation.id, path)
            case _:
                raise CommandFailed(f"invalid file {quoted(path)}: the name must end in .md or .jsonl")
    except FileExistsError:
        raise CommandFailed(f"{quoted(path)} already exists; refusing to overwrite it") from None
    except (OSError, ValueError) as error:
        detail = os_detail(error) if isinstance(error, OSError) else "not a valid file path"
        raise CommandFailed(f"cannot write {quoted(path)}: {detail}") from None
    context.note(f"written to {quoted(path)}")


def _expanded(path: str) -> str:
    return os.path.expanduser(path)


def _write_new(path: str, text: str) -> None:
    """Write a new file that only the current user can read."""
    with open(
        path, "x", encoding="utf-8", errors="replace", opener=lambda name, flags: os.open(name, flags, 0o600)
    ) as file:
        file.write(text)


async def status(context: ChatContext, argument: str) -> None:
    """Show the settings of the next message, the number of tokens used, and the working directory."""
    settings = await current_settings(context)
    rows: list[tuple[str, str]] = []
    conversation = context.conversation
    found = None if conversation is None else await conversation.status()
    overrides = context.overrides
    cwd = context.cwd or settings.cwd
    if conversation is not None and found is not None:
        cwd = found.cwd
        rows.append(("conversation", f"{conversation.id}  {found.state}"))
        rows.append(("title", found.title))
    rows.append(("model", _changed(f"{settings.model} ({settings.model_provider})", overrides.get("model"))))
    rows.append(("approvals", _changed(settings.approval_policy, overrides.get("approval_policy"))))
    rows.append(("sandbox", _changed(settings.sandbox, overrides.get("sandbox"))))
    rows.append(("directory", cwd + ("" if context.local_cwd else "  (not on this computer: @ and ! are off)")))
    if conversation is not None and found is not None:
        rows.append(("tokens", "none" if found.tokens is None else tokens_text(found.tokens)))
        if not isinstance(found.workspace, UnsetType):
            state = f"{found.workspace.commit[:12]} on {found.workspace.branch}"
            rows.append(("workspace", state + ("" if found.workspace.pushed else ", not pushed")))
        waiting = await conversation.queue()
        if waiting.messages:
            rows.append(("queue", f"{len(waiting.messages)} waiting" + (", paused" if waiting.paused else "")))
    if context.attachments:
        rows.append(("next message", f"includes {len(context.attachments)} attached; `!` alone removes them"))
    width = max(len(name) for name, _ in rows)
    context.print("\n".join(f"  {name:<{width}}  {visible(value)}" for name, value in rows), wraps=True)


def _changed(value: str, override: str | None) -> str:
    return value if override is None else f"{override}, from the next message on (now {value})"
