"""The interface between the chat and its extensions: commands, completion, local commands and pickers.

The extensions use only a `ChatContext`, never the screen or the connection directly. `extensions.py` lists the
extensions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from parley.client import Client, Conversation, Overrides
from parley.wire.items import InputItem

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindingsBase
    from prompt_toolkit.layout import AnyContainer
    from prompt_toolkit.layout.layout import FocusableElement

__all__ = ["ChatContext", "Delivery", "Extensions", "InitialAction", "LineHandler", "as_message"]

Delivery: TypeAlias = Literal["join", "queue"]


def as_message(text: str) -> str:
    """Return an input that is sent as the message `text`.

    A space precedes text that would otherwise be a command of the chat or a local command. Another client may have
    written the text.
    """
    return f" {text}" if text.startswith(("/", "!")) else text


class ChatContext(Protocol):
    """The part of the chat that extensions can use. The methods may be called only in the thread of the
    event loop.
    """

    overrides: Overrides
    """The settings that the next message changes, such as `model`, `approval_policy` and `sandbox`. The chat clears
    the overrides when a message has been accepted.
    """

    attachments: list[InputItem]
    """The items that the next message contains after its text, such as the output of a local command. A text item
    begins with the newlines that separate the item from the text of the message. The chat removes the items when a
    message has been accepted.
    """

    shows_reasoning: bool
    """True to show the whole reasoning of the model, False to show only its first line."""

    @property
    def conversation(self) -> Conversation | None:
        """The open conversation; None until the first message creates one."""

    @property
    def client(self) -> Client:
        """The connection to the server. Line handlers are called only after the connection has been established.

        Raises:
            Disconnected: the connection has not been established yet.
        """

    @property
    def cwd(self) -> str | None:
        """The working directory of the conversation on the server, or of the conversation that the first message
        creates; None if the server chooses the directory.
        """

    @property
    def local_cwd(self) -> str | None:
        """The value of `cwd` if this directory exists on this computer; None otherwise.

        Local commands run in this directory, and completion lists its files.
        """

    @property
    def is_remote(self) -> bool:
        """True if the chat uses the server at a URL instead of the home of this computer."""

    @property
    def state(self) -> Literal["idle", "running", "asking"]:
        """The state of the open conversation: `asking` if an approval waits for the user, `running` if a turn is
        running; otherwise, or if no conversation is open, `idle`.
        """

    async def offered_models(self, provider: str) -> Sequence[str]:
        """Ask a provider for the names of its models. If the provider does not list its models, or if `is_remote`
        is True, return an empty sequence.
        """

    async def open(self, conversation_id: str) -> None:
        """Open a conversation in place of the current one, and show its latest events. The previous conversation
        continues on the server.

        Raises:
            ClientError: the conversation cannot be opened. The current conversation stays open.
        """

    async def new(self) -> None:
        """Close the open conversation. The next message creates a new conversation."""

    async def send(
        self, content: str | Iterable[InputItem], *, delivery: Delivery = "join", written: str | None = None
    ) -> None:
        """Send a message with the current overrides. The message creates a conversation if none is open. If
        `delivery` is `queue`, the message waits until the running turn has ended.

        `written` is the part of the text that the user has written; None if the user has written the whole text.
        The local images that this part names are attached to the message. Images that are named only in the rest of
        the text, which the server has written, are not attached.
        """

    def set_input(self, text: str) -> None:
        """Replace the text in the input line with `text`, for the user to edit."""

    def print(self, renderable: object, *, wraps: bool = False) -> None:
        """Print a string or an object of `rich` once, above the input. Control characters are escaped. If `wraps`
        is True, long lines of a string are broken between words; otherwise the terminal wraps them.
        """

    def note(self, text: str) -> None:
        """Print a short message of the chat itself, such as the result of a command or an error."""

    async def overlay(
        self,
        container: AnyContainer,
        *,
        focus: FocusableElement | None = None,
        key_bindings: KeyBindingsBase | None = None,
    ) -> Any:
        """Show a container on the full screen until a key binding ends the overlay with
        `event.app.exit(result=...)`. Return this result. `focus` is the element that has the focus at first; None
        means the first element of the container that can have the focus. Events that arrive while the overlay is
        shown are printed after the overlay has ended.
        """

    def exit(self) -> None:
        """End the chat. A running turn continues on the server."""


LineHandler: TypeAlias = Callable[[ChatContext, str], Awaitable[bool]]
"""A function that handles an input line, such as `/model gpt-5`. If the function returns False, the command in the
line is unknown, and the chat prints a note and puts the line back into the input. If the function raises a
`ClientError`, the chat shows the error as a note.
"""

InitialAction: TypeAlias = Callable[[ChatContext], Awaitable[None]]


@dataclass(frozen=True)
class Extensions:
    """The extensions of the chat."""

    line_handlers: Mapping[str, LineHandler] = field(default_factory=dict)
    """The functions that handle input lines, keyed by the first character of the line, such as `/` or `!`. All
    other lines are messages.
    """

    attach: Callable[[ChatContext, str], Iterable[InputItem]] | None = None
    """A function that is called with the text of a message, and returns the items to attach to the message, such as
    the images whose paths are in the text. None means that no items are attached.
    """

    make_completer: Callable[[ChatContext], Completer] | None = None
    """A function that creates the completer of the input. The chat calls this function after the first frame has
    been drawn.
    """

    make_key_bindings: Callable[[ChatContext], KeyBindingsBase] | None = None
    """A function that creates additional key bindings of the input, such as a key that opens a picker."""

    pick_conversation: InitialAction | None = None
    """A function that lets the user choose a conversation, and opens it. For `parley chat --resume` without an id,
    the chat calls this function after it has connected to the server.
    """
