"""The scripted provider, which plays a script instead of asking a model. It needs no network and no key.

The provider is for demonstrations and for tests of clients. `script.py` defines the file format.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final
from uuid import uuid4

from msgspec import UNSET

from parley.config.types import Provider
from parley.conversation.records import CallItem, MessageItem
from parley.errors import ModelStreamBroken
from parley.models.content import flaw_of
from parley.models.demonstration import DEMONSTRATION
from parley.models.script import Call, Script, Step, Usage, read_script
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount
from parley.wire.ids import CallId, ConversationId
from parley.wire.items import InputItem
from parley.wire.jsonrpc import encode

__all__ = ["ScriptedModel"]

_WORD: Final = re.compile(r"\s*\S+|\s+$")
"""The pattern of a word with the whitespace before it, or of the whitespace at the end of the text."""


class ScriptedModel:
    """A model that plays a script. The content of the requests does not affect the replies."""

    def __init__(
        self,
        provider: Provider,
        conversation: ConversationId,
        *,
        replies_given: Counter[ConversationId],
        clock: Clock,
    ) -> None:
        self.max_retries = provider.stream_max_retries
        self._path = provider.script
        self._conversation = conversation
        self._replies_given = replies_given
        """The number of replies that have been played, by conversation. A conversation that is opened again
        continues its script.
        """
        self._clock = clock
        self._script: Script | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Yield the next reply of the script.

        Raises:
            BadScript: the script cannot be read or is invalid.
            ModelStreamBroken: the script contains a failure.
        """
        script = self._script = self._script or (read_script(self._path) if self._path else DEMONSTRATION)
        reply = script.replies[self._replies_given[self._conversation] % len(script.replies)]
        self._replies_given[self._conversation] += 1

        usage: TokenCount | None = None
        text = ""
        for step in reply:
            if text and _ends_text(step):
                yield [MessageDone(MessageItem(text=text))]
                text = ""
            if step.text is not UNSET:
                for word in _WORD.findall(step.text):
                    await self._pause(script.delta_delay_ms)
                    yield [TextDelta(word)]
                text += step.text
            elif step.reasoning is not UNSET:
                for word in _WORD.findall(step.reasoning):
                    await self._pause(script.delta_delay_ms)
                    yield [ReasoningDelta(word)]
                yield [ReasoningDone(summaries=(step.reasoning,), raw=())]
            elif step.call is not UNSET:
                yield [CallDone(_call_item(step.call))]
            elif step.delay_ms is not UNSET:
                await self._pause(step.delay_ms)
            elif step.fail is not UNSET:
                raise ModelStreamBroken(step.fail)
            elif step.usage is not UNSET:
                usage = _token_count(step.usage)
        if text:
            yield [MessageDone(MessageItem(text=text))]
        yield [ResponseDone(usage)]

    def cannot_carry(self, item: InputItem) -> str | None:
        return flaw_of(item)

    async def _pause(self, milliseconds: int) -> None:
        if milliseconds:
            await self._clock.sleep(milliseconds / 1000)
        else:
            await asyncio.sleep(0)  # a long script must not block the event loop


def _ends_text(step: Step) -> bool:
    """Return whether a step ends the text of the steps before it. A pause or a failure does not, because it may
    occur in the middle of a text.
    """
    return step.text is UNSET and step.delay_ms is UNSET and step.fail is UNSET


def _call_item(call: Call) -> CallItem:
    arguments = call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()
    return CallItem(call_id=CallId(call.call_id or f"call_{uuid4()}"), name=call.name, arguments=arguments)


def _token_count(usage: Usage) -> TokenCount:
    return TokenCount(
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        reasoning_output_tokens=usage.reasoning_output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
