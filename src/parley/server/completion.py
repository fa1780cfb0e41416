"""Completes the ids of conversations in resource URIs and in prompt arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from parley.common.spelling import shortened
from parley.ports.store import Query
from parley.runtime.registry import ConversationRegistry
from parley.server.access import require_role
from parley.server.context import Principal, Role, ServerContext
from parley.server.dispatch import Call, Handler
from parley.server.errors import BadPrompt, UnknownResource
from parley.server.params import params_of, since_full_version
from parley.server.prompts import CONVERSATION, PROMPTS
from parley.server.resources.uris import TEMPLATES
from parley.wire.jsonrpc import encode
from parley.wire.prompts import CompleteParams, CompleteResult, Completion, PromptReference, ResourceReference

__all__ = ["completion_methods"]

MAX_VALUES: Final = 100
"""The maximum number of completion values that the protocol allows."""
MAX_SEARCHED: Final = 2000
"""The maximum number of conversations that are compared with the text that the user has entered. The conversations
with the latest activity are compared.
"""
PAGE_SIZE: Final = 200

_decoder: Final = msgspec.json.Decoder(CompleteParams)


def completion_methods(server: ServerContext) -> Mapping[str, Handler]:
    """Return a mapping from the method `completion/complete` to its handler."""

    async def complete(call: Call) -> None:
        principal = call.context.principal
        require_role(principal, Role.OBSERVER)
        params = params_of(_decoder, call)
        if _is_conversation(params):
            completion = await _conversations(server.conversations, principal, params.argument.value)
        else:
            completion = Completion(values=(), total=0, has_more=False)
        call.answer(encode(CompleteResult(completion=completion)))

    return {CompleteParams.METHOD: since_full_version(CompleteParams.METHOD, complete)}


def _is_conversation(params: CompleteParams) -> bool:
    """Return whether the argument to complete is a conversation id.

    Raises:
        UnknownResource: the reference names a resource template that does not exist.
        BadPrompt: the reference names a prompt that does not exist.
    """
    match params.ref:
        case ResourceReference(uri=uri):
            if all(uri != one.uri_template for one in TEMPLATES):
                raise UnknownResource(uri)
            return params.argument.name == "id"
        case PromptReference(name=name):
            if all(name != one.name for one in PROMPTS):
                raise BadPrompt(f"Unknown prompt '{shortened(name)}'")
            return params.argument.name == CONVERSATION


async def _conversations(conversations: ConversationRegistry, principal: Principal, text: str) -> Completion:
    """Return the ids of at most `MAX_VALUES` conversations that the principal may see, and whose id begins with
    `text` or whose title contains `text`.
    """
    found: list[str] = []
    searched, text = 0, text.casefold()
    query = Query(conversation=principal.conversation, limit=PAGE_SIZE)
    while True:
        page = await conversations.page(query)
        found += [
            one.conversation_id
            for one in page.items
            if one.conversation_id.startswith(text) or text in one.summary.title.casefold()
        ]
        searched += len(page.items)
        if not page.more or searched >= MAX_SEARCHED:
            break
        query = Query(conversation=principal.conversation, limit=PAGE_SIZE, after=page.items[-1].cursor)
    return Completion(
        values=tuple(found[:MAX_VALUES]),
        total=UNSET if page.more else len(found),
        has_more=page.more or len(found) > MAX_VALUES,
    )
