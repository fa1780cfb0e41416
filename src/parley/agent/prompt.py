"""Builds a request to the model from the instructions, the environment, the notes of the user and the project, and
the history.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from parley.agent.attachments import limit_attachments
from parley.agent.instructions import instructions_for
from parley.common.git_files import is_repository
from parley.common.guarded_files import DirFds, read_named
from parley.config.types import Settings
from parley.conversation.history import HistoryItem
from parley.ports.model import ModelRequest, ToolSpec

__all__ = ["environment_context", "request_for", "user_instructions"]

NOTES: Final = "AGENTS.md"
MAX_OWN_NOTES_BYTES: Final = 1024 * 1024
"""The maximum size, in bytes, of the user's own notes. Longer notes are truncated."""

_SEPARATOR: Final = "\n\n--- project-doc ---\n\n"


def request_for(
    settings: Settings,
    history: Sequence[HistoryItem],
    tools: tuple[ToolSpec, ...],
    *,
    breaks: Sequence[int] = (),
) -> ModelRequest:
    """Build the request for the model's next response. The notes are read again for each request, because they may
    change.

    `breaks` are the indices in the history at which a response of the model, with the outputs of its calls, has
    ended. The model clients use these indices to keep consecutive responses apart.
    """
    context = [environment_context(settings)]
    if notes := user_instructions(settings):
        context.append(notes)
    instructions = settings.base_instructions
    return ModelRequest(
        instructions=instructions_for(settings.model) if instructions is None else instructions,
        developer_instructions=settings.developer_instructions,
        context=tuple(context),
        history=limit_attachments(history),
        breaks=breaks,
        tools=tools,
        output_schema=settings.output_schema,
    )


def environment_context(settings: Settings) -> str:
    network = "enabled" if settings.network_access else "restricted"
    return (
        f"<environment_context>\n\nCurrent working directory: {settings.cwd}\n"
        f"Approval policy: {settings.approval_policy}\nSandbox policy: {settings.sandbox_mode}\n"
        f"Network access: {network}\n\n\n</environment_context>"
    )


def user_instructions(settings: Settings) -> str | None:
    """Return one message with the user's own notes and the project's notes; None if there are no notes."""
    own = _own_notes(settings)
    parts = [own.strip()] if own else []
    if project := _project_notes(settings):
        parts.append(project)
    return f"<user_instructions>\n\n{_SEPARATOR.join(parts)}\n\n</user_instructions>" if parts else None


def _own_notes(settings: Settings) -> str | None:
    """Return the user's notes in Parley's home directory; None if there are no notes.

    The notes file is read even though Parley's home directory is hidden from commands. If the notes file is a
    symbolic link, its target must not be hidden.
    """
    notes, hidden = os.path.join(settings.home, NOTES), settings.withheld_paths
    if not os.path.lexists(notes):  # this check is made because most homes have no notes, and `read_named` is slow
        return None
    try:
        return _text(read_named(notes, cwd="/", limit=MAX_OWN_NOTES_BYTES, hidden=hidden, own=settings.home))
    except OSError:
        return None


def _project_notes(settings: Settings) -> str | None:
    """Return the notes in the working directory. If there are none, return the notes at the root of the directory's
    repository. Return None if both are missing.

    If the notes file is a symbolic link to a file outside of the repository, this file is not read. Otherwise, a
    hostile repository could make Parley send that file to the provider.
    """
    limit = settings.project_doc_max_bytes
    try:
        # Most projects have no notes, and this check is much faster than a search for the root of the repository.
        if not any(os.path.lexists(os.path.join(folder, NOTES)) for folder in _up_from(settings.cwd)):
            return None
        with DirFds(settings.withheld_paths) as directories:
            folders = _folders(directories.resolve(settings.cwd))
            for folder in folders:
                if notes := _read(directories, os.path.join(folder, NOTES), limit=limit, project=folders[-1]):
                    return notes
    except OSError:
        pass  # the working directory does not exist, or is being replaced
    return None


def _up_from(cwd: str) -> Iterator[str]:
    """Yield the resolved working directory and then each directory above it."""
    folder = os.path.realpath(cwd)
    yield folder
    while folder != "/":
        folder = os.path.dirname(folder)
        yield folder


def _folders(cwd: str) -> tuple[str, ...]:
    """Return the directories that may contain the project's notes: the resolved working directory, then the root of
    its repository.

    A directory above the working directory that every user can write to, such as `/tmp`, is not the root of a
    repository. Otherwise, any user could create notes for the projects of other users.
    """
    root = cwd
    while not is_repository(root) or (root != cwd and _is_shared(root)):
        if root == "/":
            return (cwd,)
        root = os.path.dirname(root)
    return (cwd, root) if root != cwd else (cwd,)


def _is_shared(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def _read(directories: DirFds, path: str, *, limit: int, project: str) -> str | None:
    """Return the text of the notes file at `path`, truncated to `limit` bytes; None if the file is missing, blank
    or hidden, or if a symbolic link leads out of the directory `project`.

    `directories` resolves and reads the path, and refuses hidden paths.
    """
    try:
        return _text(directories.read(directories.resolve(path, project=project), limit=max(limit, 0)))
    # The file is missing, hidden, a pipe or outside of the project, or its path contains a loop of symbolic links
    # or a NUL.
    except OSError:
        return None


def _text(notes: bytes) -> str | None:
    """Decode the bytes of a notes file; return None if the text is blank."""
    text = notes.decode("utf-8", "replace")
    return text if text.strip() else None
