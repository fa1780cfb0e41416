"""The scripted provider, which plays a script instead of asking a model.

The provider needs neither a network nor a key. It is used for demonstrations and for tests of clients. `script.py`
defines the file format. The provider also plays recordings (`recording.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final
from uuid import uuid4

from msgspec import UNSET
from msgspec.structs import replace

from parley.common.files import read_file
from parley.config.types import Provider
from parley.conversation.records import CallItem, MessageItem
from parley.errors import ModelStreamBroken
from parley.models.content import flaw_of
from parley.models.demonstration import DEMONSTRATION
from parley.models.errors import BadScript, ScriptedError
from parley.models.recording import conversations_in, is_recording, read_recording
from parley.models.script import Call, Script, Search, Step, Usage, decode_script
from parley.ports.clock import Clock
from parley.ports.model import (
    CallDone,
    Chunk,
    MessageDone,
    ModelRequest,
    OpaqueDone,
    RawReasoningDelta,
    ReasoningDelta,
    ReasoningDone,
    ResponseDone,
    TextDelta,
)
from parley.wire.events import TokenCount, WebSearch
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
        """Maps each conversation to the number of replies that have been played. A conversation that is opened
        again continues its script.
        """
        self._clock = clock
        self._scripts: Sequence[Script] = ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Yield the next reply of the script.

        Raises:
            BadScript, BadRecording: the file cannot be read or is invalid.
            ModelStreamBroken, ScriptedError: the script contains a failure.
        """
        script = self._own_script()
        reply = script.replies[self._replies_given[self._conversation] % len(script.replies)]
        self._replies_given[self._conversation] += 1

        done = ResponseDone(None)
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
            elif step.raw_reasoning is not UNSET:
                for word in _WORD.findall(step.raw_reasoning):
                    await self._pause(script.delta_delay_ms)
                    yield [RawReasoningDelta(word)]
                yield [ReasoningDone(summaries=(), raw=(step.raw_reasoning,))]
            elif step.search is not UNSET:
                yield [_search_done(step.search)]
            elif step.call is not UNSET:
                yield [CallDone(_call_item(step.call))]
            elif step.delay_ms is not UNSET:
                await self._pause(step.delay_ms)
            elif step.fail is not UNSET:
                raise ModelStreamBroken(step.fail)
            elif step.error is not UNSET:
                raise ScriptedError(step.error)
            else:
                done = _ended(done, step)
        if text:
            yield [MessageDone(MessageItem(text=text))]
        yield [done]

    def why_unsupported(self, item: InputItem) -> str | None:
        return flaw_of(item)

    def _own_script(self) -> Script:
        """Return the script of this conversation. A recording has one script for each recorded conversation. The
        first conversation of this process that makes a request gets the first script, the next one gets the second
        script, and so on.
        """
        if not self._scripts:
            self._scripts = _read(self._path) if self._path else (DEMONSTRATION,)
        if len(self._scripts) == 1:
            return self._scripts[0]
        # the entry also counts a conversation to which no reply was given yet
        self._replies_given[self._conversation] += 0
        return self._scripts[list(self._replies_given).index(self._conversation) % len(self._scripts)]

    async def _pause(self, milliseconds: int) -> None:
        if milliseconds:
            await self._clock.sleep(milliseconds / 1000)
        else:
            await asyncio.sleep(0)  # a long script must not block the event loop


def _read(path: str) -> Sequence[Script]:
    """Return the scripts in a file, which is a script or a recording.

    Raises:
        BadScript, BadRecording: the file cannot be read or is invalid.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise BadScript(path, error.strerror or str(error)) from None
    if not is_recording(data):
        return (decode_script(path, data),)
    recorded = conversations_in(read_recording(path, data))
    if not recorded:
        raise BadScript(path, "the recording is empty")
    return [Script(replies=tuple(exchange.reply for exchange in exchanges)) for exchanges in recorded]


def _ended(done: ResponseDone, step: Step) -> ResponseDone:
    """Return `done`, the end of the response, with the token usage, the truncation, the refusal or the pause that
    the step contains.
    """
    if step.usage is not UNSET:
        return replace(done, usage=_token_count(step.usage))
    if step.cut_by is not UNSET:
        return replace(done, cut_by=step.cut_by)
    if step.refused is not UNSET:
        return replace(done, refused=_refusal(step.refused))
    return replace(done, is_paused=True)


def _refusal(explanation: str) -> str:
    """Return the explanation of a refusal in the form that decoders of providers use. In this form, the explanation
    begins with the category in parentheses or with a colon. The explanation in a recording already has this form.
    """
    return explanation if not explanation or explanation.startswith((" (", ": ")) else f": {explanation}"


def _search_done(search: Search) -> OpaqueDone:
    found = WebSearch(call_id=f"search_{uuid4()}", query=search.query, results=search.results, error=search.error)
    return OpaqueDone(None, search=found)


def _ends_text(step: Step) -> bool:
    """Return whether a step ends the text of the steps before it.

    A delay or a failure does not end the text, because either may occur in the middle of the text.
    """
    return step.text is UNSET and step.delay_ms is UNSET and step.fail is UNSET and step.error is UNSET


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
