"""The names of the branches, and the messages of the commits, that Parley creates."""

from __future__ import annotations

import re
from typing import Final

from parley.wire.ids import ConversationId

__all__ = ["branch_of", "commit_message", "is_branch_of", "is_from_parley", "next_branch"]

_ID_CHARACTERS: Final = 12
_MAX_SUBJECT: Final = 72
_HIDDEN: Final = re.compile(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


def branch_of(conversation_id: ConversationId) -> str:
    """Return the name of the first branch of a conversation. If this branch diverges, `next_branch` returns the
    name of the branch that replaces it.
    """
    return f"parley/{conversation_id.replace('-', '')[:_ID_CHARACTERS]}"


def is_branch_of(branch: str, conversation_id: ConversationId) -> bool:
    """Return whether `branch` is a branch of the given conversation: its first branch, or a name that `next_branch`
    returns, which ends with a dash and a number.
    """
    return re.fullmatch(re.escape(branch_of(conversation_id)) + r"(-[1-9][0-9]*)?", branch, re.ASCII) is not None


def is_from_parley(branch: str, commit: str) -> bool:
    """Return whether the name of a branch and the id of a commit from a log have the form that this package writes.
    The log of an imported conversation may contain any text.
    """
    is_branch = re.fullmatch(r"parley/[0-9a-f]{12}(-[1-9][0-9]{0,5})?", branch, re.ASCII) is not None
    return is_branch and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit, re.ASCII) is not None


def next_branch(branch: str) -> str:
    """Return the name of the branch on which a conversation continues after `branch` has diverged."""
    name, dash, number = branch.rpartition("-")
    return f"{name}-{int(number) + 1}" if dash and number.isdecimal() else f"{branch}-2"


def commit_message(text: str, conversation_id: ConversationId) -> str:
    """Return a commit message. Its subject is the first line of `text` that is not empty, shortened if necessary.
    Its last line contains the id of the conversation.
    """
    text = text[:10_000].encode(errors="replace").decode()
    lines = (" ".join(_HIDDEN.sub(" ", line).split()) for line in text.splitlines())
    subject = next(filter(None, lines), "Work of a turn")
    if len(subject) > _MAX_SUBJECT:
        subject = subject[: _MAX_SUBJECT - 3].rstrip() + "..."
    return f"{subject}\n\nParley-Conversation: {conversation_id}\n"
