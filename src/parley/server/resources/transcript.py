"""Writes a conversation as Markdown.

All text from a model, a command or a person is written as a block quote, so that the text cannot imitate a heading
of the transcript. Invisible characters and control characters in this text are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from parley.conversation.log import Entry
from parley.server.sanitize import one_line
from parley.wire.events import (
    AgentMessage,
    ApplyPatchApprovalRequest,
    ApprovalSettled,
    ErrorEvent,
    EventBase,
    ExecApprovalRequest,
    ExecCommandBegin,
    ExecCommandEnd,
    FileChange,
    LimitReached,
    McpToolCallBegin,
    PatchApplyBegin,
    PatchApplyEnd,
    PlanUpdate,
    UserMessage,
    event_type,
)
from parley.wire.items import ImageItem, InputItem, LocalImageItem, TextItem
from parley.wire.jsonrpc import decode_lenient, encode
from parley.wire.principals import LOCAL
from parley.wire.text import quoted, quoted_command, unseen

__all__ = ["section", "transcript_head"]

TEXT_LENGTH: Final = 20_000
"""The maximum number of characters in one block quote of the transcript. Longer text is truncated."""
OUTPUT_LENGTH: Final = 4_000
"""The maximum number of characters of a command's output, a patch error or a tool's arguments in the transcript.
Longer text is reduced to its beginning and its end.
"""
LARGE_BYTES: Final = 1024 * 1024
"""The size in bytes above which an event is not decoded, because decoding would block the event loop. The
transcript then shows only the type and the size of the event.
"""

_SHOWN: Final[tuple[type[EventBase], ...]] = (
    UserMessage,
    AgentMessage,
    ErrorEvent,
    ExecCommandBegin,
    ExecCommandEnd,
    ExecApprovalRequest,
    ApplyPatchApprovalRequest,
    PatchApplyBegin,
    PatchApplyEnd,
    PlanUpdate,
    McpToolCallBegin,
    ApprovalSettled,
    LimitReached,
)
_DECODERS: Final = {event_type(cls): msgspec.json.Decoder(cls) for cls in _SHOWN}

_STEPS: Final = {"pending": "[ ]", "in_progress": "[~]", "completed": "[x]"}


def transcript_head(*, title: str, facts: Iterable[str], is_complete: bool) -> str:
    """Return the first lines of a transcript: the title, and a line for each of the `facts` about the conversation.

    If `is_complete` is False, a note states that the beginning of the conversation is missing.
    """
    lines = [f"# {one_line(title) or 'Conversation'}", "", *(f"- {one_line(fact)}" for fact in facts)]
    if not is_complete:
        lines += ["", "The beginning is left out, because the conversation is long. `conversationRead` returns it."]
    return "\n".join(lines)


def section(entry: Entry) -> str | None:
    """Return the section of the transcript for the entry; None if the transcript does not show this type of
    entry.
    """
    if not entry.is_event or (decoder := _DECODERS.get(entry.type)) is None:
        return None
    if entry.size > LARGE_BYTES:
        return f"## {entry.type}, {entry.size} bytes, not shown"
    return _section(decode_lenient(decoder, entry.encoded))


def _section(event: EventBase) -> str | None:
    match event:
        case UserMessage(content=content, principal=principal):
            return _text(f"## User{_by(principal)}", _words(content))
        case AgentMessage(message=message):
            return _text("## Agent", message)
        case ErrorEvent(message=message, principal=principal):
            return _text(f"## Error{_by(principal)}", message.strip())
        case ExecCommandBegin(command=command, cwd=cwd):
            return _text("### Command", f"{quoted_command(command)}\nin {quoted(cwd)}")
        case ExecCommandEnd(stdout=stdout, stderr=stderr, exit_code=exit_code):
            output = "\n".join(filter(None, (stdout.rstrip("\n"), stderr.rstrip("\n"))))
            return _text(f"### Exit code {exit_code}", _middle_cut(output))
        case ExecApprovalRequest(command=command):
            return _text("### Approval requested", quoted_command(command))
        case ApplyPatchApprovalRequest(changes=changes):
            return _text("### Approval requested", _files(changes))
        case LimitReached(limit=limit, used=used, allowed=allowed):
            return _text("### Limit reached", f"{limit}: {used} of {allowed}")
        case ApprovalSettled(decision=decision, by=by, reason=reason, principal=principal):
            heading = f"### Approval {decision}, by {by}{_by(principal)}"
            return _text(heading, reason if isinstance(reason, str) else "")
        case PatchApplyBegin(changes=changes):
            return _text("### Patch", _files(changes))
        case PatchApplyEnd(success=False, stderr=stderr):
            return _text("### Patch failed", _middle_cut(stderr))
        case PlanUpdate(plan=plan):
            return _text("### Plan", "\n".join(f"{_STEPS[one.status]} {one.step}" for one in plan))
        case McpToolCallBegin(invocation=called):
            arguments = "" if called.arguments is None else encode(called.arguments).decode()
            return _text("### Tool", f"{called.server}.{called.tool} {_middle_cut(arguments)}".rstrip())
        case _:
            return None


def _by(principal: str | UnsetType) -> str:
    """Return the name of the principal in parentheses, for the end of a heading; an empty string for the local
    user.
    """
    return "" if principal is UNSET or principal == LOCAL.name else f" ({one_line(principal)})"


def _words(content: tuple[InputItem, ...]) -> str:
    """Return the content of a message as text. A line such as `(an image)` represents each image and each file."""
    parts: list[str] = []
    size = 0
    for item in content:
        if size > TEXT_LENGTH:
            break
        match item:
            case TextItem(text=text):
                parts.append(text)
            case ImageItem() | LocalImageItem():
                parts.append("\n(an image)\n")
            case _:
                parts.append("\n(a file)\n")
        size += len(parts[-1])
    return "".join(parts).strip("\n")


def _files(changes: dict[str, FileChange]) -> str:
    return "\n".join(f"{_change(change)} {quoted(path)}" for path, change in changes.items())


def _change(change: FileChange) -> str:
    if isinstance(change, str):
        return "deleted"
    return "changed" if change.update else "added"


def _text(heading: str, text: str) -> str:
    """Return a section that consists of a heading and `text` as a block quote."""
    more = len(text) - TEXT_LENGTH
    if more > 0:
        text = f"{text[:TEXT_LENGTH]}\n[{more} more characters]"
    if not text:
        return heading
    escaped = text.translate({code: how for code, how in unseen(text).items() if chr(code) not in "\n\t"})
    return "\n".join((heading, "", *(f"> {line}".rstrip() for line in escaped.split("\n"))))


def _middle_cut(text: str) -> str:
    left_out = len(text) - OUTPUT_LENGTH
    if left_out <= 0:
        return text
    half = OUTPUT_LENGTH // 2
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"
