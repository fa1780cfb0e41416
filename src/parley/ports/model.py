"""The interface of a model that streams its responses.

`Model.stream` yields *batches*. A batch contains all chunks of one read from the network. A fast model sends
hundreds of deltas in one read, and a loop over a list is much faster than one await per delta.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from parley.config.types import Settings
from parley.conversation.history import HistoryItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.wire.events import TokenCount, WebSearch
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
    "Retrying",
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
    """A request for one response from the model."""

    instructions: str
    developer_instructions: str = ""
    """Instructions from the client, which the model gets in addition to `instructions`; empty if there are none."""
    context: tuple[str, ...]
    """The user messages that the model gets before the history: a description of the environment, and the notes of
    the user and the project.
    """
    history: Sequence[HistoryItem]
    breaks: Sequence[int] = ()
    """The indices in `history` at which a response of the model ends. The outputs of the tool calls in a response
    belong to this response. Some model APIs need these boundaries to group the items into messages.
    """
    tools: tuple[ToolSpec, ...] = ()
    output_schema: dict[str, Any] | None = None
    """The JSON Schema for the text of the response; None for free text."""


# --- the chunks of a response ------------------------------------------------------------


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of a message from the model."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of the summary of the model's reasoning."""

    text: str


class RawReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning itself, which only some providers send."""

    text: str


class MessageDone(Struct, frozen=True):
    """A complete message from the model."""

    item: MessageItem


class ReasoningDone(Struct, frozen=True):
    """A complete reasoning item. If the model API requires that later requests contain the item, `item` is this
    item; otherwise None.
    """

    summaries: tuple[str, ...]
    raw: tuple[str, ...]
    item: OpaqueItem | None = None


class CallDone(Struct, frozen=True):
    """A complete tool call. It is executed only after the response has ended."""

    item: CallItem


class OpaqueDone(Struct, frozen=True):
    """An item that later requests must contain unchanged, a web search that the provider has run, or both."""

    item: OpaqueItem | MessageFields | None
    """The item that later requests must contain; None for a web search that later requests need not contain."""
    search: WebSearch | None = None
    """The web search that the provider has run; None if there was no search."""


class ResponseDone(Struct, frozen=True):
    """The last chunk of a response."""

    usage: TokenCount | None
    cut_by: str | None = None
    """The provider's reason for ending the response early, such as `length`; None if the model ended the response.
    If the response ended early, the arguments of its last tool call may be incomplete.
    """
    refused: str | None = None
    """The model's explanation for declining the request, with the provider's category; None if the model did not
    decline. An empty string means that the model declined without an explanation. If the model declined, the tool
    calls in the response must not be executed.
    """
    is_paused: bool = False
    """True if the provider has paused the response. The response to the next request continues the paused
    response.
    """
    cache_write_tokens: int = 0
    """The number of input tokens that the provider wrote to its prompt cache. Providers charge a separate price for
    these tokens.
    """


class Retrying(Struct, frozen=True, kw_only=True):
    """Reports that a request failed with a transient error, and that it will be sent again after a delay."""

    attempt: int
    """The number of the retry that follows the delay; 1 for the first retry."""
    max_attempts: int
    delay_seconds: float
    reason: str


Chunk = (
    TextDelta
    | ReasoningDelta
    | RawReasoningDelta
    | MessageDone
    | ReasoningDone
    | CallDone
    | OpaqueDone
    | ResponseDone
    | Retrying
)


class Model(Protocol):
    """Sends the requests of one conversation to its model."""

    max_retries: int
    """The maximum number of times that the caller of `stream` should repeat a request whose response broke off."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Chunk], None]:
        """Send a request and yield the response as it arrives. The last chunk is `ResponseDone`.

        Until the response begins, the request is repeated after transient errors: status 429 or 5xx, or a lost
        connection. A `Retrying` is yielded before each delay. Closing the generator, or a cancellation, closes the
        connection.

        Raises:
            ModelError: there is no response, or the response is incomplete. The caller must discard the chunks that
                were yielded.
        """
        ...

    def why_unsupported(self, item: InputItem) -> str | None:
        """Return the reason why `item`, an item of a new message, cannot be sent to the model. The reason is a
        sentence; None means that the item can be sent.

        Call this method only for new messages. If an item of the history cannot be sent, `stream` sends a
        description of the item instead.
        """
        ...


OpenModel = Callable[[Settings, ConversationId], Model]
"""A function that creates the model for a conversation. The model opens a connection when it sends its first
request.
"""

_FIRST_DELAY_SECONDS: Final = 0.2
_JITTER: Final = 0.1


def backoff_seconds(attempt: int, chance: float) -> float:
    """Return the delay before a retry, in seconds.

    `attempt` is 1 for the first retry. The delay doubles with each attempt. `chance` is a random number from 0 to 1
    that varies the delay by up to a tenth, so that conversations whose requests failed at the same time do not
    retry at the same time.
    """
    spread = 1 + _JITTER * (2 * chance - 1)
    return float(_FIRST_DELAY_SECONDS * 2 ** (attempt - 1) * spread)
