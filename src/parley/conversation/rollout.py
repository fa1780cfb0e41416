"""Converts recorded sessions of Codex CLI to conversations.

The first line of a rollout file describes the session. The other lines contain the items of its history, as they
were sent to the model, and changes of its state. Each message from the user begins a turn. Items from the model and
the outputs of tool calls are copied, so that the next model request continues the same history. Messages in which
Codex CLI describes instructions and the environment are left out, because Parley adds its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar
from uuid import UUID, uuid5

import msgspec
from msgspec import Raw, Struct

from parley.conversation.export_format import Line
from parley.conversation.log import LogPayload
from parley.conversation.records import (
    CallItem,
    CallOutput,
    MessageItem,
    ModelAsked,
    ModelItem,
    ModelSaid,
    OpaqueItem,
    TurnStarted,
)
from parley.conversation.turn_ends import turn_end
from parley.errors import BadFile
from parley.wire.events import AgentMessage, AgentReasoning, TaskStarted, UserMessage
from parley.wire.ids import CallId, ConversationId, EventId, MessageId
from parley.wire.items import ImageItem, InputItem, TextItem
from parley.wire.jsonrpc import decode_lenient, encode

__all__ = ["RolloutReader", "Session", "read_session"]

T = TypeVar("T")

UNFINISHED: Final = "Turn interrupted: it was recorded without an end"

_GENERATED_TAGS: Final = ("environment_context", "user_instructions")
"""The XML tags that enclose the messages that Codex CLI generates at the start of a session. These messages are
left out.
"""


class Session(Struct, frozen=True, kw_only=True):
    """The description of a session, from the first line of a rollout file."""

    id: str
    timestamp: str
    """The start of the session, in ISO 8601 format."""

    @property
    def conversation_id(self) -> ConversationId:
        return ConversationId(str(UUID(self.id)))


class _Kind(Struct):
    type: str = ""
    role: str = ""
    record_type: str = ""


class _Part(Struct):
    type: str = ""
    text: str = ""
    image_url: str = ""


class _Message(Struct):
    content: tuple[_Part, ...]
    id: str | None = None


class _Reasoning(Struct):
    summary: tuple[_Part, ...] | None = None


class _FunctionCall(Struct):
    call_id: str
    name: str
    arguments: str


class _LocalShellCall(Struct):
    action: Raw
    call_id: str | None = None
    id: str | None = None


class _Output(Struct):
    call_id: str
    output: str


_sessions: Final = msgspec.json.Decoder(Session)
_kinds: Final = msgspec.json.Decoder(_Kind)
_messages: Final = msgspec.json.Decoder(_Message)
_reasonings: Final = msgspec.json.Decoder(_Reasoning)
_function_calls: Final = msgspec.json.Decoder(_FunctionCall)
_local_shell_calls: Final = msgspec.json.Decoder(_LocalShellCall)
_outputs: Final = msgspec.json.Decoder(_Output)
_anything: Final = msgspec.json.Decoder(Any)


def read_session(line: bytes) -> Session:
    """Decode the first line of a rollout file. Raise `BadFile` if the line does not describe a session."""
    session = _read(_sessions, line)
    if session is None:
        raise BadFile(1, "not the first line of a rollout file")
    try:
        UUID(session.id)
    except ValueError:
        raise BadFile(1, f"{session.id!r} is not the id of a session") from None
    return session


class RolloutReader:
    """Converts the lines of one session into entries."""

    def __init__(self, session: Session) -> None:
        self._session = UUID(session.id)
        self.left_out = 0
        """The number of items that were left out. An item is left out if it is invalid or cannot occur in a
        conversation.
        """
        self._turns = 0
        self._messages = 0
        self._in_turn = False
        self._model_is_asked = False
        """True if the record `ModelAsked` was already created for the model response that contains the next item.
        """
        self._unanswered: list[CallId] = []
        self._last_text: str | None = None
        self._ends_in_text = False

    def read(self, lines: Iterable[Line]) -> Iterator[LogPayload]:
        """Yield the content of the entries for `lines`, which are the lines after the first line of the file.

        Raises:
            BadFile: a line that ends with a line feed is not JSON. An incomplete last line is left out, because a
                program that is killed while writing leaves such a line.
        """
        for number, line in lines:
            try:
                whole = _as_valid_json(line)
            except msgspec.DecodeError as error:
                if line.endswith(b"\n"):
                    raise BadFile(number, f"not JSON: {error}") from None
                self.left_out += 1
                break
            yield from self._convert(whole)
        yield from self._end_turn()

    def _convert(self, line: bytes) -> Iterator[LogPayload]:
        payloads: Iterable[LogPayload] | None = None
        match _read(_kinds, line):
            case _Kind(record_type="state"):
                return
            case _Kind(type="message", role="user"):
                payloads = self._user_message(line)
            case _Kind(type="message", role="assistant"):
                payloads = self._assistant_message(line)
            case _Kind(type="reasoning"):
                payloads = self._reasoning(line)
            case _Kind(type="function_call"):
                payloads = self._function_call(line)
            case _Kind(type="local_shell_call"):
                payloads = self._shell_call(line)
            case _Kind(type="function_call_output"):
                payloads = self._call_output(line)
            case _:
                pass
        if payloads is None:
            self.left_out += 1
        else:
            yield from payloads

    # --- items: each method returns the entries, or None to leave the item out -----------------------------

    def _user_message(self, line: bytes) -> list[LogPayload] | None:
        message = _read(_messages, line)
        content = _content(message.content) if message is not None else ()
        if message is None or not content:
            return None
        if _is_generated(content):
            return []
        self.left_out += len(message.content) - len(content)
        self._messages += 1
        message_id = MessageId(str(uuid5(self._session, str(self._messages))))
        return [*self._end_turn(), *self._begin_turn(), UserMessage(message_id=message_id, content=content)]

    def _assistant_message(self, line: bytes) -> list[LogPayload] | None:
        message = _read(_messages, line)
        text = "".join(part.text for part in message.content) if message is not None else ""
        if message is None or not text:
            return None
        payloads = self._model_said(MessageItem(text=text, id=message.id), AgentMessage(message=text))
        self._last_text, self._ends_in_text = text, True
        return payloads

    def _reasoning(self, line: bytes) -> list[LogPayload] | None:
        reasoning = _read(_reasonings, line)
        if reasoning is None:
            return None
        shown = (AgentReasoning(text=part.text) for part in reasoning.summary or () if part.text)
        return self._model_said(OpaqueItem(verbatim=Raw(line)), *shown)

    def _function_call(self, line: bytes) -> list[LogPayload] | None:
        call = _read(_function_calls, line)
        if call is None or not call.call_id:
            return None
        return self._model_called(call.call_id, call.name, call.arguments, line)

    def _shell_call(self, line: bytes) -> list[LogPayload] | None:
        call = _read(_local_shell_calls, line)
        call_id = (call.call_id or call.id) if call is not None else None
        if call is None or not call_id:
            return None
        return self._model_called(call_id, "local_shell", bytes(call.action).decode(), line)

    def _model_called(self, call_id: str, name: str, arguments: str, line: bytes) -> list[LogPayload]:
        call = CallItem(call_id=CallId(call_id), name=name, arguments=arguments, verbatim=Raw(line))
        payloads = self._model_said(call)
        self._unanswered.append(call.call_id)
        return payloads

    def _call_output(self, line: bytes) -> list[LogPayload] | None:
        output = _read(_outputs, line)
        if output is None or output.call_id not in self._unanswered:
            return None
        call_id = CallId(output.call_id)
        self._unanswered.remove(call_id)
        self._model_is_asked = self._ends_in_text = False
        return [CallOutput(call_id=call_id, output=output.output)]

    # --- turns ----------------------------------------------------------------------------

    def _model_said(self, item: ModelItem, *shown: LogPayload) -> list[LogPayload]:
        payloads: list[LogPayload] = [] if self._in_turn else self._begin_turn()
        if not self._model_is_asked and not self._unanswered:
            payloads.append(ModelAsked())
            self._model_is_asked = True
        self._ends_in_text = False
        return [*payloads, *shown, ModelSaid(item=item)]

    def _begin_turn(self) -> list[LogPayload]:
        self._turns += 1
        self._in_turn, self._model_is_asked, self._ends_in_text, self._last_text = True, False, False, None
        return [TurnStarted(event_id=EventId(str(self._turns))), TaskStarted()]

    def _end_turn(self) -> list[LogPayload]:
        if not self._in_turn:
            return []
        self._in_turn = False
        if self._ends_in_text and not self._unanswered:
            return list(turn_end("done", last_message=self._last_text))
        unanswered = tuple(self._unanswered)
        self._unanswered.clear()
        return list(turn_end("interrupted", UNFINISHED, unanswered=unanswered))


def _read(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    """Decode a line. Return None if the line does not match the type of the decoder."""
    try:
        return decode_lenient(decoder, line)
    except msgspec.DecodeError:
        return None


def _as_valid_json(line: bytes) -> bytes:
    """Return a line as strictly valid JSON. This is necessary because the item in the line is later sent to a model
    unchanged.

    A valid line is returned without surrounding whitespace. In a line that is JSON except for lone surrogates, the
    surrogates are replaced.

    Raises:
        msgspec.DecodeError: the line is not JSON.
    """
    try:
        _anything.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return encode(decode_lenient(_anything, line))
    return line.strip()


def _content(parts: Iterable[_Part]) -> tuple[InputItem, ...]:
    """Convert the recorded parts of a message to input items. Leave out parts that a message in Parley cannot
    contain.
    """
    content: list[InputItem] = []
    for part in parts:
        if part.type in ("input_text", "output_text", "text"):
            content.append(TextItem(text=part.text))
        elif part.type == "input_image" and part.image_url:
            content.append(ImageItem(image_url=part.image_url))
    return tuple(content)


def _is_generated(content: tuple[InputItem, ...]) -> bool:
    match content:
        case (TextItem(text=text),):
            stripped = text.strip()
            return any(
                stripped.startswith(f"<{tag}>") and stripped.endswith(f"</{tag}>") for tag in _GENERATED_TAGS
            )
        case _:
            return False
