"""A model that answers as it thinks.

`Model.stream` yields *batches*: all that one read from the network held. A fast model sends
hundreds of deltas in one read, and a loop over a list costs a fraction of as many awaits.
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
    """What one response is asked with."""

    instructions: str
    developer_instructions: str = ""
    """Instructions of the client in addition to `instructions`; empty: none."""
    context: tuple[str, ...]
    """Said by the user before everything else: environment, project notes."""
    history: Sequence[HistoryItem]
    breaks: Sequence[int] = ()
    """Indices in `history` before which a response of the model has ended."""
    tools: tuple[ToolSpec, ...] = ()


# --- what a response is made of ----------------------------------------------------------


class TextDelta(Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of a reasoning summary."""

    text: str


class RawReasoningDelta(Struct, frozen=True, gc=False):
    text: str


class MessageDone(Struct, frozen=True):
    """A text of the assistant is whole."""

    item: MessageItem


class ReasoningDone(Struct, frozen=True):
    """The model has thought; `item` goes back to it where its API wants that."""

    summaries: tuple[str, ...]
    raw: tuple[str, ...]
    item: OpaqueItem | None = None


class CallDone(Struct, frozen=True):
    """The model wants a function run, when the response has ended."""

    item: CallItem


class OpaqueDone(Struct, frozen=True):
    """Something that only goes back as it came."""

    item: OpaqueItem | MessageFields


class ResponseDone(Struct, frozen=True):
    """The response ended: always the last chunk, and only then is it whole."""

    usage: TokenCount | None
    cut_by: str | None = None
    """Why the provider stopped before the model had finished, such as `length`; None: it did not. The last call
    may lack a part of its arguments."""


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
    """One conversation's way to its model."""

    max_retries: int
    """How often the turn may ask again after a response that broke off."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Ask, and yield the response as it comes; the last chunk of all is `ResponseDone`.

        Repeats the request by itself while it is refused in passing (429, 5xx, a lost connection).
        Closing the generator, or cancelling, closes the connection.

        Raises:
            ModelError: there is no response, or it broke off; what was yielded is void.
        """
        ...

    def cannot_carry(self, item: InputItem) -> str | None:
        """Why this item of a message cannot be sent to the model: a sentence that names it. None: it can.

        For messages that are still to be taken. What a history holds all the same is replaced by words.
        """
        ...


OpenModel = Callable[[Settings, ConversationId], Model]
"""Makes the way to a model; costs nothing until the first request."""

_FIRST_DELAY_SECONDS: Final = 0.2
_JITTER: Final = 0.1


def backoff_seconds(attempt: int, chance: float) -> float:
    """How long to wait before try `attempt` (1 is the first repetition).

    Doubles each time; `chance` (0 to 1) spreads it by a tenth both ways, so that many
    conversations that failed together do not come back together.
    """
    spread = 1 + _JITTER * (2 * chance - 1)
    return float(_FIRST_DELAY_SECONDS * 2 ** (attempt - 1) * spread)
