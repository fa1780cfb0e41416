"""The messages of MCP resources. Conversations are resources that clients can list, read and subscribe to."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.tools import AttentionItem, ConversationSummary

__all__ = [
    "AttentionDocument",
    "ConversationDocument",
    "ConversationsDocument",
    "EventInDocument",
    "ListResourceTemplatesParams",
    "ListResourceTemplatesResult",
    "ListResourcesParams",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "Resource",
    "ResourceAnnotations",
    "ResourceListChanged",
    "ResourceTemplate",
    "ResourceUpdated",
    "SubscribeParams",
    "TextResourceContents",
    "UnsubscribeParams",
]


class ResourceAnnotations(Struct, frozen=True, kw_only=True, rename="camel"):
    last_modified: str | UnsetType = UNSET


class Resource(Struct, frozen=True, kw_only=True, rename="camel"):
    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str
    annotations: ResourceAnnotations | UnsetType = UNSET


class ListResourcesParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "resources/list"

    cursor: str | UnsetType | None = UNSET


class ListResourcesResult(Struct, frozen=True, kw_only=True, rename="camel"):
    resources: tuple[Resource, ...]
    next_cursor: str | UnsetType = UNSET


class ResourceTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    uri_template: str
    name: str
    title: str
    description: str
    mime_type: str


class ListResourceTemplatesParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "resources/templates/list"


class ListResourceTemplatesResult(Struct, frozen=True, kw_only=True, rename="camel"):
    resource_templates: tuple[ResourceTemplate, ...]


class ReadResourceParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "resources/read"

    uri: str


class TextResourceContents(Struct, frozen=True, kw_only=True, rename="camel"):
    uri: str
    mime_type: str
    text: Any
    """The text of the resource, as a string or as an encoded JSON string in a `Raw`."""


class ReadResourceResult(Struct, frozen=True, kw_only=True):
    contents: tuple[TextResourceContents, ...]


class SubscribeParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "resources/subscribe"

    uri: str


class UnsubscribeParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "resources/unsubscribe"

    uri: str


class ResourceUpdated(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "notifications/resources/updated"

    uri: str


class ResourceListChanged(Struct, frozen=True):
    METHOD: ClassVar[str] = "notifications/resources/list_changed"


# --- the contents of resources in JSON ----------------------------------------------------


class ConversationsDocument(Struct, frozen=True, kw_only=True):
    """The content of the resource `parley://conversations`: the conversations with the latest activity."""

    conversations: tuple[ConversationSummary, ...]
    more: bool
    """True if there are conversations that the document does not contain. The tool `conversationsList` lists
    them.
    """


class AttentionDocument(Struct, frozen=True, kw_only=True):
    """The content of the resource `parley://attention`: conversations that need a person's attention."""

    conversations: tuple[AttentionItem, ...]
    more: bool
    """True if there are conversations that the document does not contain. The tool `attentionList` lists them."""


class EventInDocument(Struct, frozen=True, kw_only=True):
    seq: int
    msg: Raw


class ConversationDocument(Struct, frozen=True, kw_only=True):
    """The content of the resource `parley://conversations/{id}/json`: one conversation with its events."""

    conversation_id: str
    title: str
    cwd: str
    model: str
    state: str
    updated_at: str
    seq: int
    """The position of the last entry of the conversation."""
    is_complete: bool
    """True if the document contains all events; False if the earliest events were left out."""
    events: tuple[EventInDocument, ...]
