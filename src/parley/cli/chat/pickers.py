"""Full-screen lists from which the user chooses: values, conversations and earlier messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UnsetType

from parley.cli.chat.choices import Choice, state_of
from parley.cli.chat.context import ChatContext, as_message
from parley.cli.chat.earlier_events import events_backwards
from parley.cli.chat.list_rows import Row, Rows
from parley.cli.ids import SHORT
from parley.client import Client, Conversation, events
from parley.wire.ids import MessageId
from parley.wire.items import text_of
from parley.wire.tools import ConversationSummary

__all__ = ["confirm", "pick_choice", "pick_conversation", "pick_message"]

PAGE: Final = 50
PREVIEW_EVENTS: Final = 60
"""The number of events at the end of a conversation that are searched for the messages of a preview."""

PREVIEW_LENGTH: Final = 200
"""The maximum number of characters that a preview shows from each message."""

NO: Final = "no"
YES: Final = "yes"


async def confirm(context: ChatContext, question: str) -> bool:
    """Ask a question, and return whether the user answered yes. The default answer is no."""
    answers = [Choice(NO, "change nothing"), Choice(YES)]
    return await pick_choice(context, question, answers) == YES


async def pick_choice(
    context: ChatContext, title: str, choices: Sequence[Choice], *, current: str | None = None
) -> str | None:
    """Let the user choose a value, and return it. If the user chose nothing, return None. The value `current` is
    selected first.
    """
    from parley.cli.chat.list_overlay import ListOverlay

    overlay = ListOverlay(title, _Choices(choices, current), actions={"enter": "choose"}, selected=current)
    picked = await overlay.show(context)
    return None if picked is None else picked.row.key


async def pick_conversation(context: ChatContext) -> None:
    """Let the user choose a conversation, and open it."""
    from parley.cli.chat.list_overlay import ListOverlay

    opened = None if context.conversation is None else context.conversation.id
    overlay = ListOverlay(
        "Conversations",
        _Conversations(context.client),
        actions={"enter": "open"},
        has_preview=True,
        selected=opened,
        empty="no conversation matches",
    )
    picked = await overlay.show(context)
    if picked is not None and picked.row.key != opened:
        await context.open(picked.row.key)


async def pick_message(context: ChatContext) -> None:
    """Let the user choose one of their earlier messages. Then put its text into the input, or fork the conversation
    after the turn of the message and open the fork, as the user chooses.
    """
    from parley.cli.chat.list_overlay import ListOverlay

    conversation = context.conversation
    if conversation is None:
        context.note("no conversation is open, so there are no earlier messages")
        return
    source = _Messages(conversation)
    overlay = ListOverlay(
        "Your messages",
        source,
        actions={"enter": "edit and send again", "c-f": "fork after its turn"},
        has_preview=True,
        empty="no message matches",
    )
    picked = await overlay.show(context)
    if picked is None:
        return
    if picked.action == "enter":
        context.set_input(as_message(source.texts[picked.row.key]))
        return
    forked = await conversation.fork(at_message_id=picked.row.key)
    await context.open(forked.id)
    context.note(f"this is a copy up to that message; /resume {conversation.id[:SHORT]} opens the original")


class _Choices:
    """Provides the rows of a fixed list of values."""

    def __init__(self, choices: Sequence[Choice], current: str | None) -> None:
        self._choices, self._current = choices, current

    async def rows(self, text: str, cursor: str | None) -> Rows:
        width = max((len(one.value) for one in self._choices), default=0)
        found = [one for one in self._choices if text.lower() in f"{one.value} {one.description}".lower()]
        return Rows([self._row(one, width) for one in found])

    def _row(self, choice: Choice, width: int) -> Row:
        is_current = choice.value == self._current
        text = f"{choice.value:<{width}}  {'(now) ' if is_current else ''}{choice.description}"
        return Row(choice.value, text.rstrip(), is_marked=is_current)

    async def preview(self, row: Row) -> str:
        return ""


class _Conversations:
    """Provides the conversations of the server as rows, with the latest activity first."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def rows(self, text: str, cursor: str | None) -> Rows:
        found = await self._client.list(limit=PAGE, text=text or None, cursor=cursor)
        more = None if isinstance(found.next_cursor, UnsetType) else found.next_cursor
        return Rows([_conversation_row(one) for one in found.conversations], more)

    async def preview(self, row: Row) -> str:
        conversation = self._client.conversation(row.key)
        lines: list[str] = []
        async for event in events_backwards(conversation, limit=PREVIEW_EVENTS):
            match event.msg:
                case events.UserMessage(content=content):
                    lines.append(_beginning(f"> {text_of(content)}"))
                case events.AgentMessage(message=message):
                    lines.append(_beginning(message))
                case _:
                    pass
            if len(lines) == 2:
                break
        status = await conversation.status()
        return "\n".join([f"{row.key}  {status.cwd}", *lines[::-1]])


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= PREVIEW_LENGTH else f"{text[:PREVIEW_LENGTH]}…"


def _conversation_row(one: ConversationSummary) -> Row:
    updated = "" if isinstance(one.updated_at, UnsetType) else one.updated_at[:16].replace("T", " ")
    is_unread = one.unread is True
    text = f"{one.conversation_id[:SHORT]}  {state_of(one):<7} {'*' if is_unread else ' '} {updated}  {one.title}"
    return Row(one.conversation_id, text, is_marked=is_unread)


class _Messages:
    """Provides the messages of the user in a conversation as rows, with the newest message first."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.texts: dict[MessageId | str, str] = {}
        """The text of each message, keyed by message id."""
        self._is_read = False

    async def rows(self, text: str, cursor: str | None) -> Rows:
        if not self._is_read:
            async for event in events_backwards(self._conversation):
                if isinstance(event.msg, events.UserMessage):
                    self.texts.setdefault(event.msg.message_id, text_of(event.msg.content))
            self._is_read = True
        wanted = text.lower()
        return Rows([Row(key, " ".join(one.split())) for key, one in self.texts.items() if wanted in one.lower()])

    async def preview(self, row: Row) -> str:
        return self.texts[row.key]
