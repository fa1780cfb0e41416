"""Converts recorded conversations to a file with pytest tests, which use `parley.testing`.

The conversations are read from a recording, or from a log in the store. In a test, the model gives the recorded
replies. The commands in the replies run in a read-only sandbox, so that a test does not repeat their effects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from parley.app.files.homes import entries_until
from parley.config.types import Settings
from parley.conversation.records import CallItem, MessageItem, ModelAsked, ModelSaid, record_type
from parley.models.recording import Exchange, RecordedItem, conversations_in, read_recording
from parley.models.redaction import Redactor, secrets_of
from parley.models.script import Call, Step, is_deep, recorded_call
from parley.ports.store import Store
from parley.wire.events import AgentReasoning, UserMessage, event_type
from parley.wire.ids import ConversationId
from parley.wire.items import TextItem
from parley.wire.jsonrpc import decode_lenient

__all__ = ["Reply", "as_tests", "replies_in_log", "replies_in_recording"]

CONTINUE: Final = "Continue."
"""The message that begins a turn for which no message was recorded."""

END: Final = "The recording ends here."
"""The text of the model's reply to the outputs of the last tool calls, if the recording contains no reply
to them.
"""

NAME_CHARACTERS: Final = 40
LINE_CHARACTERS: Final = 88
"""The maximum length, in characters, of a line that contains a whole reply. A longer reply is written with one line
for each step.
"""

_HEAD: Final = '''\
"""Recorded conversations as tests. `parley replay --as-test` made this file.

The model gives the recorded replies. Their commands run in a read-only sandbox and in an empty directory, so their
outputs can differ from the recorded outputs.
"""

import pytest

{failed}from parley.testing import {names}

CONFIG = 'sandbox_mode = "read-only"'
'''


_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    **{event_type(kind): msgspec.json.Decoder(kind) for kind in (UserMessage, AgentReasoning)},
    **{record_type(kind): msgspec.json.Decoder(kind) for kind in (ModelAsked, ModelSaid)},
}
"""The decoders for the entries of a log from which a test is made, keyed by the type of the entry."""


class Reply(Struct, frozen=True, kw_only=True):
    """One reply from the model, and the new message in the request for this reply. `message` is empty if the
    request contained no new message. `steps` are the steps that make a scripted model give the reply.
    """

    message: str
    steps: tuple[Step, ...]

    @property
    def has_calls(self) -> bool:
        return any(step.call is not UNSET for step in self.steps)

    @property
    def failure(self) -> Step | None:
        """The step that contains the failure of the reply; None if the reply did not fail."""
        failed = (step for step in self.steps if step.fail is not UNSET or step.error is not UNSET)
        return next(failed, None)

    @property
    def is_paused(self) -> bool:
        return any(step.paused is not UNSET for step in self.steps)

    @property
    def texts(self) -> list[str]:
        """The messages of the agent in the reply. Consecutive text steps are one message."""
        texts: list[str] = []
        is_open = False
        for step in self.steps:
            if step.text:
                if is_open:
                    texts[-1] += step.text
                else:
                    texts.append(step.text)
                is_open = True
            elif step.reasoning or step.raw_reasoning or step.call is not UNSET:
                is_open = False
        return texts


# --- the replies -----------------------------------------------------------------------


def replies_in_recording(path: str) -> list[list[Reply]]:
    """Return the replies of each conversation in a recording.

    Raises:
        BadRecording: the file cannot be read, or it is not a recording.
    """
    return [list(_of_exchanges(exchanges)) for exchanges in conversations_in(read_recording(path))]


def _of_exchanges(exchanges: Sequence[Exchange]) -> Iterator[Reply]:
    for exchange in exchanges:
        if exchange.request.tools:  # a request without tools is a request for a summary
            yield Reply(message=_new_message(exchange.request.items), steps=exchange.reply)


def _new_message(items: Sequence[RecordedItem]) -> str:
    """Return the text of the consecutive user messages at the end of the history `items`. The text is empty if the
    last item is not a user message.
    """
    texts: list[str] = []
    for item in items:
        if item.user is UNSET:
            texts.clear()
        else:
            texts.append(item.user)
    return "\n\n".join(filter(None, texts))


async def replies_in_log(store: Store, named: str, settings: Iterable[Settings]) -> list[Reply]:
    """Return the replies in the log of the conversation with the id `named`. The secrets that `settings` contain
    are redacted in the replies.

    Raises:
        UnknownConversation: the conversation does not exist.
        StoreError: the conversation cannot be read.
    """
    conversation = ConversationId(named)
    head = await store.head(conversation)
    found: list[tuple[str, list[Step]]] = []
    messages: list[str] = []
    reasoning: list[Step] = []
    async for entry in entries_until(store, conversation, until=head.last):
        decoder = _DECODERS.get(entry.type)
        match decoder and decode_lenient(decoder, entry.body):
            case UserMessage(content=content):
                messages += [item.text for item in content if isinstance(item, TextItem)]
            case AgentReasoning(text=text):
                reasoning.append(Step(reasoning=text))
            case ModelAsked():
                found.append(("\n\n".join(filter(None, messages)), reasoning))
                messages, reasoning = [], []
            case ModelSaid(item=MessageItem(text=text)) if found:
                found[-1][1].append(Step(text=text))
            case ModelSaid(item=CallItem() as call) if found:
                found[-1][1].append(Step(call=recorded_call(call)))
            case _:
                pass
    redactor, secrets = Redactor(()), [secret for one in settings for secret in secrets_of(one)]
    plain = msgspec.to_builtins([Reply(message=message, steps=tuple(steps)) for message, steps in found])
    return msgspec.convert(redactor.redact(plain, secrets), list[Reply])


# --- the turns -------------------------------------------------------------------------


class Turn(Struct, frozen=True, kw_only=True):
    """A message and the replies to it. Each reply except the final reply contains tool calls."""

    message: str
    replies: list[Reply]


def _joined(replies: Iterable[Reply]) -> Iterator[Reply]:
    """Yield the replies, except failed replies whose requests were repeated. Join each paused reply with the
    replies that continue it.
    """
    message, steps = "", list[Step]()
    last: Reply | None = None
    for reply in replies:
        if last is not None and not reply.message and last.failure is not None:  # the request was repeated
            del steps[len(steps) - len(last.steps) :]
        elif last is None or reply.message or not last.is_paused:
            if last is not None:
                yield Reply(message=message, steps=tuple(steps))
            message, steps = reply.message, []
        steps += reply.steps
        last = reply
    if last is not None:
        yield Reply(message=message, steps=tuple(steps))


def _turns(replies: Iterable[Reply]) -> list[Turn]:
    """Group the replies into turns. A turn ends with its first reply that contains no tool calls or has failed.

    If the last turn has no such reply, add a reply with the text `END`.
    """
    turns: list[Turn] = []
    for reply in _joined(replies):
        if turns and turns[-1].replies[-1].has_calls and turns[-1].replies[-1].failure is None:
            turns[-1].replies.append(reply)
        else:
            turns.append(Turn(message=reply.message or CONTINUE, replies=[reply]))
    for turn in turns:
        if turn.replies[-1].has_calls and turn.replies[-1].failure is None:
            turn.replies.append(Reply(message="", steps=(Step(text=END),)))
    return turns


# --- the file --------------------------------------------------------------------------


def as_tests(conversations: Iterable[Iterable[Reply]]) -> str:
    """Return the text of a Python file with a test for each conversation. Conversations without replies are left
    out.
    """
    tests: dict[str, str] = {}
    for replies in conversations:
        if turns := _turns(replies):
            name = base = _name(turns[0].message)
            number = len(tests)
            while name in tests:
                number += 1
                name = f"{base}_{number}"
            tests[name] = "\n".join(_test(name, turns))
    body = "\n\n\n".join(tests.values())
    used = [word for word in ("Call", "Reasoning") if f" {word}(" in body or f"({word}(" in body]
    return (
        "\n\n".join(
            (
                _HEAD.format(
                    names=", ".join(sorted([*used, "ParleyProcess", "ScriptedModel"])),
                    failed="from parley.client import TurnFailed\n" if "TurnFailed" in body else "",
                ),
                body,
            )
        )
        + "\n"
    )


def _name(message: str) -> str:
    words = "_".join(re.findall("[a-z0-9]+", message.lower()))[:NAME_CHARACTERS].strip("_")
    return f"test_{words or 'recorded_conversation'}"


def _test(name: str, turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the lines of a test with the given name, for the turns of one conversation."""
    yield "@pytest.mark.asyncio"
    yield f"async def {name}(parley_model: ScriptedModel) -> None:"
    yield '    async with ParleyProcess(parley_model, api="responses", config=CONFIG) as parley:'
    yield "        conversation = await parley.create()"
    for turn in turns:
        yield ""
        for reply in turn.replies:
            yield from _model_says(reply)
        yield f"        turn = await conversation.send({turn.message!r})"
        if turn.replies[-1].failure is not None:
            yield "        with pytest.raises(TurnFailed):"
            yield "            await turn.result()"
        else:
            text = "\n".join(chain.from_iterable(reply.texts for reply in turn.replies))
            yield f"        assert (await turn.result()).text == {text!r}"
    yield ""
    yield f"    assert len(parley_model.requests) == {sum(len(turn.replies) for turn in turns)}"


def _model_says(reply: Reply) -> Iterator[str]:
    """Yield the lines of a test that make the scripted model give a reply."""
    failure = reply.failure
    if failure is not None and failure.error is not UNSET:
        yield f"        parley_model.fails(400, body={failure.error!r})"
        return
    steps = [written for step in reply.steps if (written := _written(step)) is not None]
    ending = [] if failure is None else ['how="end"']
    arguments = [*steps, *ending]
    call = f"        parley_model.{'says' if failure is None else 'cuts'}("
    if len(line := f"{call}{', '.join(arguments)})") <= LINE_CHARACTERS:
        yield line
        return
    yield call
    for argument in arguments:
        yield f"            {argument},"
    yield "        )"


def _written(step: Step) -> str | None:
    """Return the Python code for a step; None if tests do not need steps of its type."""
    if step.text:
        return repr(step.text)
    if reasoning := step.reasoning or step.raw_reasoning:
        return f"Reasoning({reasoning!r})"
    if isinstance(step.call, Call):
        call = step.call
        arguments = call.arguments
        if is_deep(arguments):  # Python limits the number of nested brackets in code
            arguments = msgspec.json.encode(arguments).decode()
        return f"Call({call.name!r}, {arguments!r}, {call.call_id!r})"
    return None
