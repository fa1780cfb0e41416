"""What the model is told besides the history: instructions, environment, project notes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from parley.agent.attachments import within_bounds
from parley.agent.instructions import instructions_for
from parley.config.files import is_repository, read_file
from parley.config.types import Settings
from parley.conversation.history import HistoryItem
from parley.ports.model import ModelRequest, ToolSpec

__all__ = ["environment_context", "request_for", "user_instructions"]

NOTES: Final = "AGENTS.md"
MAX_OWN_NOTES_BYTES: Final = 1024 * 1024
"""The user's own notes are taken whole; a file beyond this is a mistake."""

_SEPARATOR: Final = "\n\n--- project-doc ---\n\n"


def request_for(settings: Settings, history: Sequence[HistoryItem], tools: tuple[ToolSpec, ...]) -> ModelRequest:
    """The request for the next response. Notes are read anew: they may change while we talk."""
    context = [environment_context(settings)]
    if notes := user_instructions(settings):
        context.append(notes)
    instructions = settings.base_instructions
    return ModelRequest(
        instructions=instructions_for(settings.model) if instructions is None else instructions,
        context=tuple(context),
        history=within_bounds(history),
        tools=tools,
    )


def environment_context(settings: Settings) -> str:
    network = "enabled" if settings.network_access else "restricted"
    return (
        f"<environment_context>\n\nCurrent working directory: {settings.cwd}\n"
        f"Approval policy: {settings.approval_policy}\nSandbox policy: {settings.sandbox_mode}\n"
        f"Network access: {network}\n\n\n</environment_context>"
    )


def user_instructions(settings: Settings) -> str | None:
    """The user's own notes and the project's, in one message; None when there are neither."""
    own = _read(Path(settings.home, NOTES), limit=MAX_OWN_NOTES_BYTES)
    parts = [own.strip()] if own else []
    if project := _project_notes(Path(settings.cwd), limit=settings.project_doc_max_bytes):
        parts.append(project)
    return f"<user_instructions>\n\n{_SEPARATOR.join(parts)}\n\n</user_instructions>" if parts else None


def _project_notes(cwd: Path, *, limit: int) -> str | None:
    """The notes in the working directory, else those at the root of the repository it is in."""
    root = next((path for path in (cwd, *cwd.parents) if is_repository(path)), cwd)
    for folder in dict.fromkeys((cwd, root)):
        path = folder / NOTES
        # A repository may be hostile: notes that are a link out of it would show the model, and
        # whoever is behind it, a file of the user's.
        if _leads_inside(path, root) and (notes := _read(path, limit=limit)):
            return notes
    return None


def _leads_inside(path: Path, root: Path) -> bool:
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
    except OSError:
        return False  # somebody moves a directory on the way about just now


def _read(path: Path, *, limit: int) -> str | None:
    """The text at `path`, cut at `limit` bytes; None where there is nothing to read."""
    try:
        text = read_file(path, limit=max(limit, 0)).decode("utf-8", "replace")
    except (OSError, ValueError):  # missing, forbidden, a loop of links, a pipe, a NUL in the path
        return None
    return text if text.strip() else None
