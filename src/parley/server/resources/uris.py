"""Parses and creates the URIs of resources."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from parley.server.errors import UnknownResource
from parley.wire.ids import ConversationId
from parley.wire.resources import ResourceTemplate

__all__ = [
    "ATTENTION",
    "CONVERSATIONS",
    "TEMPLATES",
    "Address",
    "ResourceKind",
    "address_of",
    "diff_uri",
    "transcript_uri",
]

ATTENTION: Final = "parley://attention"
CONVERSATIONS: Final = "parley://conversations"
_JSON: Final = "application/json"


class ResourceKind(Enum):
    """The kinds of resources. Each value consists of the MIME type and the suffix of the resource's URI."""

    ATTENTION = _JSON, "attention"
    CONVERSATIONS = _JSON, ""
    TRANSCRIPT = "text/markdown", ""
    EVENTS = _JSON, "/json"
    DIFF = "text/x-diff", "/diff"

    @property
    def mime_type(self) -> str:
        return self.value[0]

    @property
    def suffix(self) -> str:
        return self.value[1]


_OVERVIEWS: Final = {ATTENTION: ResourceKind.ATTENTION, CONVERSATIONS: ResourceKind.CONVERSATIONS}
_OF_CONVERSATION: Final = {
    kind.suffix: kind for kind in (ResourceKind.TRANSCRIPT, ResourceKind.EVENTS, ResourceKind.DIFF)
}
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ADDRESS: Final = re.compile(f"{CONVERSATIONS}/({_UUID})(/[a-z]+)?")


def _template(kind: ResourceKind, *, name: str, title: str, description: str) -> ResourceTemplate:
    return ResourceTemplate(
        uri_template=f"{CONVERSATIONS}/{{id}}{kind.suffix}",
        name=name,
        title=title,
        description=description,
        mime_type=kind.mime_type,
    )


TEMPLATES: Final = (
    _template(
        ResourceKind.TRANSCRIPT,
        name="transcript",
        title="Transcript of a conversation",
        description="The messages, commands and patches as Markdown; only the newest part of a long conversation.",
    ),
    _template(
        ResourceKind.EVENTS,
        name="events",
        title="Events of a conversation",
        description="The events of a conversation as JSON; only the newest events of a long conversation.",
    ),
    _template(
        ResourceKind.DIFF,
        name="diff",
        title="Diff of a conversation",
        description="The file changes of the last turn that applied a patch, as a unified diff in Git's format.",
    ),
)


class Address(NamedTuple):
    """The kind and the conversation of a resource, parsed from the URI of the resource."""

    kind: ResourceKind
    conversation: ConversationId | None
    """The id of the conversation; None for a list of conversations."""


def address_of(uri: str) -> Address:
    """Parse the URI of a resource, and return its parts.

    Raises:
        UnknownResource: no resource can have this URI.
    """
    if (overview := _OVERVIEWS.get(uri)) is not None:
        return Address(overview, None)
    found = _ADDRESS.fullmatch(uri)
    kind = None if found is None else _OF_CONVERSATION.get(found[2] or "")
    if found is None or kind is None:
        raise UnknownResource(uri)
    return Address(kind, ConversationId(found[1]))


def transcript_uri(conversation_id: ConversationId) -> str:
    """Return the URI of the resource that contains the transcript of the conversation."""
    return f"{CONVERSATIONS}/{conversation_id}"


def diff_uri(conversation_id: str) -> str:
    """Return the URI of the resource that contains the diff of the conversation."""
    return f"{CONVERSATIONS}/{conversation_id}{ResourceKind.DIFF.suffix}"
