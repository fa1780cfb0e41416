"""Handles the MCP methods for resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from parley.errors import UnknownConversation
from parley.ports.store import ConversationListing, Query
from parley.server import page_cursors
from parley.server.access import require_role
from parley.server.context import Role, ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.errors import UnknownResource
from parley.server.page_cursors import decode_cursor, encode_cursor
from parley.server.params import params_of, since_full_version
from parley.server.resources.contents import ResourceReader
from parley.server.resources.subscriptions import ResourceSubscriptions
from parley.server.resources.uris import (
    ATTENTION,
    CONVERSATIONS,
    TEMPLATES,
    ResourceKind,
    address_of,
    transcript_uri,
)
from parley.server.sanitize import one_line
from parley.server.times import iso
from parley.wire.jsonrpc import encode
from parley.wire.resources import (
    ListResourcesParams,
    ListResourcesResult,
    ListResourceTemplatesParams,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
    Resource,
    ResourceAnnotations,
    SubscribeParams,
    TextResourceContents,
    UnsubscribeParams,
)

__all__ = ["resource_methods"]

LIST_LIMIT: Final = 50
"""The maximum number of conversations on one page of the list of resources."""

_OVERVIEW: Final = (
    Resource(
        uri=CONVERSATIONS,
        name="conversations",
        title="Conversations",
        description="The conversations with coding agents, latest activity first.",
        mime_type=ResourceKind.CONVERSATIONS.mime_type,
    ),
    Resource(
        uri=ATTENTION,
        name="attention",
        title="Attention",
        description="The conversations that wait for a person, have failed, or have finished unread.",
        mime_type=ResourceKind.ATTENTION.mime_type,
    ),
)

_list_decoder: Final = msgspec.json.Decoder(ListResourcesParams)
_read_decoder: Final = msgspec.json.Decoder(ReadResourceParams)
_subscribe_decoder: Final = msgspec.json.Decoder(SubscribeParams)
_unsubscribe_decoder: Final = msgspec.json.Decoder(UnsubscribeParams)


def resource_methods(subscriptions: ResourceSubscriptions, server: ServerContext) -> Mapping[str, Handler]:
    """Return the handlers of the MCP methods for resources, by method, for one client."""

    async def list_resources(call: Call) -> None:
        principal = call.context.principal
        require_role(principal, Role.OBSERVER)
        cursor = params_of(_list_decoder, call).cursor
        after = decode_cursor(cursor, page_cursors.CONVERSATIONS) if cursor else None
        if not call.context.features.modern:
            await subscriptions.listed(principal)
        found = await server.conversations.page(
            Query(conversation=principal.conversation, after=after, limit=LIST_LIMIT)
        )
        result = ListResourcesResult(
            resources=(*(_OVERVIEW if after is None else ()), *map(_resource, found.items)),
            next_cursor=encode_cursor(found.items[-1].cursor) if found.more else UNSET,
        )
        call.answer(encode(result))

    async def list_templates(call: Call) -> None:
        call.answer(encode(ListResourceTemplatesResult(resource_templates=TEMPLATES)))

    async def read_resource(call: Call) -> None:
        context = call.context
        require_role(context.principal, Role.OBSERVER)
        uri = params_of(_read_decoder, call).uri
        address = address_of(uri)
        reader = ResourceReader(server.conversations, context.principal, context.features)
        call.stop_on_cancel()
        try:
            text = await reader.text_of(address)
        except UnknownConversation:
            raise UnknownResource(uri) from None
        finally:
            call.finished()
        contents = TextResourceContents(uri=uri, mime_type=address.kind.mime_type, text=text)
        call.answer(encode(ReadResourceResult(contents=(contents,))))

    async def subscribe(call: Call) -> None:
        principal = call.context.principal
        require_role(principal, Role.OBSERVER)
        await subscriptions.subscribe(params_of(_subscribe_decoder, call).uri, principal)
        call.answer(b"{}")

    async def unsubscribe(call: Call) -> None:
        subscriptions.unsubscribe(params_of(_unsubscribe_decoder, call).uri)
        call.answer(b"{}")

    handlers = {
        ListResourcesParams.METHOD: list_resources,
        ListResourceTemplatesParams.METHOD: list_templates,
        ReadResourceParams.METHOD: read_resource,
        SubscribeParams.METHOD: subscribe,
        UnsubscribeParams.METHOD: unsubscribe,
    }
    return {method: since_full_version(method, handle) for method, handle in handlers.items()}


def _resource(listed: ConversationListing) -> Resource:
    summary = listed.summary
    return Resource(
        uri=transcript_uri(listed.conversation_id),
        name=listed.conversation_id,
        title=one_line(summary.title) or UNSET,
        description=one_line(f"The transcript of a conversation in {summary.cwd}"),
        mime_type=ResourceKind.TRANSCRIPT.mime_type,
        annotations=ResourceAnnotations(last_modified=iso(summary.updated_at)),
    )
