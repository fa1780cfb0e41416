"""The port of a model that streams its responses.

`Model.stream` yields *batches*: all chunks of one read from the network. A fast model sends hundreds of deltas in
one read, and a loop over a list costs a fraction of as many awaits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from parley.config.types import Settings
from parley.conversation.history import HistoryItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.wire.events import TokenCount
from parley.wire.ids import ConversationId
from parley.wire.items import InputItem

__all__ = [
    "CallDone",
    "Chunk",
    "MessageDone",
    "Model",
    "ModelRequest",
    "OpaqueDone",
    "OpenModel",
    "RawReasoningDelta",
    "ReasoningDelta",
    "ReasoningDone",
    "ResponseDone",
    "TextDelta",
    "ToolSpec",
    "backoff_seconds",
]


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A request for one response."""

    instructions: str
    developer_instructions: str = ""
    """Further instructions of the client; may be empty."""
    context: tuple[str, ...]
    """User messages before the history: environment, project notes."""
    history: Sequence[HistoryItem]
    breaks: Sequence[int] = ()
    """Indices in `history` before which a response of the model has ended."""
    tools: tuple[ToolSpec, ...] = ()


# --- the chunks of a response ------------------------------------------------------------


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of a message."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of a reasoning summary."""

    text: str


class RawReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of raw reasoning."""

    text: str


class MessageDone(Struct, frozen=True):
    """A complete message."""

    item: MessageItem


class ReasoningDone(Struct, frozen=True):
    """Complete reasoning. `item` is sent back with the next request if the API requires it."""

    summaries: tuple[str, ...]
    raw: tuple[str, ...]
    item: OpaqueItem | None = None


class CallDone(Struct, frozen=True):
    """A complete function call, to be run when the response has ended."""

    item: CallItem


class OpaqueDone(Struct, frozen=True):
    """An item that is only sent back unchanged."""

    item: OpaqueItem | MessageFields


class ResponseDone(Struct, frozen=True):
    """The end of a complete response; always the last chunk."""

    usage: TokenCount | None
    cut_by: str | None = None
    """Why the provider cut the response off, such as `length`; None if it did not. The arguments of the last call
    may be incomplete then."""


Chunk = (
    TextDelta
    | ReasoningDelta
    | RawReasoningDelta
    | MessageDone
    | ReasoningDone
    | CallDone
    | OpaqueDone
    | ResponseDone
)


class Model(Protocol):
    """The model of one conversation."""

    max_retries: int
    """How often the turn may repeat the request after a response that broke off."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Send a request and yield the response as it arrives; the last chunk is `ResponseDone`.

        Repeats the request after transient errors (429, 5xx, a lost connection). Closing the generator, or a
        cancellation, closes the connection.

        Raises:
            ModelError: there is no response, or it broke off; the chunks that were yielded are void.
        """
        ...

    def cannot_carry(self, item: InputItem) -> str | None:
        """Return a sentence that says why this item of a new message cannot be sent to the model; None if it can.

        An item that the history contains already is replaced by text instead.
        """
        ...


OpenModel = Callable[[Settings, ConversationId], Model]
"""Creates the model of a conversation; it connects with the first request."""

_FIRST_DELAY_SECONDS: Final = 0.2
_JITTER: Final = 0.1


def backoff_seconds(attempt: int, chance: float) -> float:
    """Return the delay before a retry; `attempt` 1 is the first.

    The delay doubles each time. `chance` (0 to 1) varies it by up to a tenth, so that conversations that failed
    together do not retry together.
    """
    spread = 1 + _JITTER * (2 * chance - 1)
    return float(_FIRST_DELAY_SECONDS * 2 ** (attempt - 1) * spread)
