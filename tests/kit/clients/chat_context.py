"""`RecordingChat`: a chat without a screen, which records what its extensions do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, Self

from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.key_binding import KeyBindingsBase
from prompt_toolkit.layout import AnyContainer, Layout
from prompt_toolkit.layout.layout import FocusableElement
from prompt_toolkit.output import DummyOutput

from parley.cli.chat.context import Delivery
from parley.client import Client, Conversation, Overrides
from parley.wire.items import InputItem

__all__ = ["RecordingChat"]


class _Terminal(DummyOutput):
    """A terminal of 80×24 without a screen."""

    def __init__(self) -> None:
        self.raw: list[str] = []

    def get_size(self) -> Size:
        return Size(rows=24, columns=80)

    def write_raw(self, data: str) -> None:
        self.raw.append(data)


class RecordingChat:
    """A chat in which overlays are real applications of prompt_toolkit. The test types the keys with `keys`."""

    def __init__(
        self, client: Client | None = None, *, local_cwd: str | None = None, is_remote: bool = False
    ) -> None:
        self._client = client
        self.conversation: Conversation | None = None
        self.overrides: Overrides = {}
        self.attachments: list[InputItem] = []
        self.models: dict[str, Sequence[str]] = {}
        """The models that each provider offers."""
        self.shows_reasoning = False
        self.local_cwd, self.is_remote = local_cwd, is_remote
        self.cwd = local_cwd
        self.state: Literal["idle", "running", "asking"] = "idle"
        self.printed: list[object] = []
        self.notes: list[str] = []
        self.sent: list[tuple[str | Iterable[InputItem], str]] = []
        self.input = ""
        self.is_ended = False
        self.drawn = asyncio.Event()
        """Is set when an overlay has been drawn for the first time."""
        self.terminal = _Terminal()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._pipe = self._stack.enter_context(create_pipe_input())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def session(self) -> AbstractContextManager[object]:
        """Return a block in which prompt_toolkit uses the terminal of this chat."""
        return create_app_session(input=self._pipe, output=self.terminal)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def text(self) -> str:
        """All that was printed, as plain text."""
        return "\n".join(str(one) for one in self.printed)

    def keys(self, text: str) -> None:
        """Type keys. An overlay that opens later gets them, too."""
        self._pipe.send_text(text)

    async def offered_models(self, provider: str) -> Sequence[str]:
        return self.models.get(provider, ())

    async def open(self, conversation_id: str) -> None:
        self.conversation = self.client.conversation(conversation_id)

    async def new(self) -> None:
        self.conversation = None

    async def send(
        self, content: str | Iterable[InputItem], *, delivery: Delivery = "join", written: str | None = None
    ) -> None:
        self.sent.append((content, delivery))

    def set_input(self, text: str) -> None:
        self.input = text

    def print(self, renderable: object, *, wraps: bool = False) -> None:
        self.printed.append(renderable)

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def overlay(
        self,
        container: AnyContainer,
        *,
        focus: FocusableElement | None = None,
        key_bindings: KeyBindingsBase | None = None,
    ) -> Any:
        app: Application[Any] = Application(
            layout=Layout(container, focused_element=focus),
            key_bindings=key_bindings,
            full_screen=True,
            input=self._pipe,
            output=self.terminal,
        )
        app.after_render += lambda _: self.drawn.set()
        self.shown = app
        return await app.run_async()

    def exit(self) -> None:
        self.is_ended = True

    def screen(self) -> str:
        """Return the characters of the overlay that was drawn last."""
        drawn = self.shown.renderer.last_rendered_screen
        assert drawn is not None
        rows = (drawn.data_buffer[row] for row in range(drawn.height))
        return "\n".join(
            "".join(row[column].char for column in range(self.terminal.get_size().columns)).rstrip() for row in rows
        )
