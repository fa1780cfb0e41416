"""The messages of MCP prompts and completion."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from parley.wire.mcp import TextContent
from parley.wire.resources import TextResourceContents

__all__ = [
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "EmbeddedResource",
    "GetPromptParams",
    "GetPromptResult",
    "ListPromptsParams",
    "ListPromptsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "ResourceReference",
]


class PromptArgument(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    required: bool


class Prompt(Struct, frozen=True, kw_only=True):
    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]


class ListPromptsParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "prompts/list"


class ListPromptsResult(Struct, frozen=True, kw_only=True):
    prompts: tuple[Prompt, ...]


class GetPromptParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "prompts/get"

    name: str
    arguments: dict[str, str] | UnsetType | None = UNSET


class EmbeddedResource(Struct, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    resource: TextResourceContents


class PromptMessage(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant"]
    content: TextContent | EmbeddedResource


class GetPromptResult(Struct, frozen=True, kw_only=True):
    description: str
    messages: tuple[PromptMessage, ...]


class ResourceReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="ref/resource"):
    uri: str


class PromptReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="ref/prompt"):
    name: str


class CompletionArgument(Struct, frozen=True, kw_only=True):
    name: str
    value: str


class CompleteParams(Struct, frozen=True, kw_only=True):
    METHOD: ClassVar[str] = "completion/complete"

    ref: ResourceReference | PromptReference
    argument: CompletionArgument


class Completion(Struct, frozen=True, kw_only=True, rename="camel"):
    values: tuple[str, ...]
    total: int | UnsetType = UNSET
    has_more: bool


class CompleteResult(Struct, frozen=True, kw_only=True):
    completion: Completion
