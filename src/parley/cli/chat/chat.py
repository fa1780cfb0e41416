"""The chat: connects the screen, the server and the open conversation."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from uuid import uuid4

from msgspec import UnsetType

from parley.cli.chat.approval_dialog import DENY, ApprovalDialog, PendingAnswer
from parley.cli.chat.approvals import ANSWERS, OpenApprovals
from parley.cli.chat.context import Delivery, Extensions, as_message
from parley.cli.chat.live import LiveRegion, LiveState, Styled, wrapped
from parley.cli.chat.markdown import MarkdownRenderer
from parley.cli.chat.status import status_line
from parley.cli.chat.view import ChatView
from parley.cli.connecting import ConnectionOptions, connected
from parley.cli.event_output import mark_read
from parley.cli.ids import SHORT
from parley.cli.printing import for_terminal, print_note
from parley.cli.runner import CommandFailed
from parley.cli.server_address import ServerAddress
from parley.cli.turn_options import chosen_conversation, chosen_settings, enter_worktree
from parley.client import (
    AlreadyDecided,
    Approval,
    Client,
    ClientError,
    Conversation,
    CreateOptions,
    Disconnected,
    Overrides,
    Stream,
    ToolFailed,
    events,
)
from parley.client.turn_result import Event, ends_turn
from parley.wire.items import InputItem, TextItem, text_of
from parley.wire.tools import SettingsListResult

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindingsBase
    from prompt_toolkit.layout import AnyContainer
    from prompt_toolkit.layout.layout import FocusableElement
    from rich.console import RenderableType

    from parley.cli.chat.terminal import Terminal

__all__ = ["Chat"]

SNAPSHOT_EVENTS: Final = 300
"""The maximum number of events that are read when a conversation is opened."""
SHOWN_TURNS: Final = 2
"""The maximum number of turns that are shown when a conversation is opened."""
RECONNECT_SECONDS: Final = 30 * 24 * 3600.0
"""The number of seconds for which a chat tries to reconnect. The number is large, because a user may leave a chat
open for days.
"""
SEND_SECONDS: Final = 5.0
"""The maximum number of seconds for which an exiting chat waits until the server has accepted the last messages."""
STEP_SECONDS: Final = 0.005
"""The time, in seconds, after which a chat that is processing many events of one stream lets other tasks run."""
PANEL_LINES: Final = 5
"""The number of lines on the screen below an approval request: the activity, the question, the keys, the input and
the status.
"""
LOAD_SECONDS: Final = 5.0
"""The maximum number of seconds for which the first events wait for the Markdown renderer. After this time,
messages are shown as unformatted Markdown.
"""
SETTLE_SECONDS: Final = 0.3
"""The number of seconds for which the chat waits for the event that describes an approval. After this time, the
chat shows the approval without the event.
"""


@dataclass
class _Followed:
    """The open conversation with its view, its directory, its stream, and the task that reads the stream."""

    conversation: Conversation
    view: ChatView
    cwd: str | None
    stream: Stream
    task: asyncio.Task[None] | None = None


class Chat:
    """One chat on a terminal.

    The class implements `ChatContext`, which the extensions of the chat use, and `Actions`, which the terminal
    calls.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        address: ServerAddress | None,
        images: Sequence[InputItem],
        *,
        colour: bool,
        width_of: Callable[[str], int],
    ) -> None:
        self._args, self._address = args, address
        self._colour, self._width_of = colour, width_of
        self._initial_overrides: Overrides = chosen_settings(args)
        """The settings that the command line chooses for the first message; empty after this message has been
        accepted.
        """
        self.overrides = self._initial_overrides
        self.attachments: list[InputItem] = list(images)
        self.shows_reasoning = False
        self._screen: Terminal | None = None
        self._client: Client | None = None
        self._extensions = Extensions()
        self._extensions_loaded = asyncio.Event()
        self._markdown_loaded = asyncio.Event()
        """Is set when the Markdown renderer has been loaded, or could not be loaded."""
        self._connected = asyncio.Event()
        self._outgoing: asyncio.Queue[tuple[str, Delivery]] = asyncio.Queue()
        self._sending: tuple[str, Delivery] | None = None
        """The message that is being sent; None if no message is being sent."""
        self._followed: _Followed | None = None
        self._settings: SettingsListResult | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wants_server = False
        self._has_sent = args.prompt is not None
        """True if the user has sent a message or a command in this chat."""
        self._markdown = MarkdownRenderer(colour=colour)
        self._state = LiveState(notice="connecting ...")
        self._live = LiveRegion(self._state, self._markdown, clock=time.monotonic, width_of=width_of)
        self._view = self._new_view(None)
        self._approvals = OpenApprovals(changed=self._approvals_changed)
        self._dialog = ApprovalDialog(lambda: asyncio.get_running_loop().time())
        self._exit_armed = self._exit_was_armed = False
        """`_exit_armed` is True if pressing Ctrl-C now exits the chat. `_exit_was_armed` is the value of
        `_exit_armed` before the current key was pressed.
        """

    # --- running ---------------------------------------------------------------------------

    async def run(self, screen: Terminal) -> int:
        """Show the chat on `screen` until the user exits. Return the exit code.

        Raises:
            CommandFailed, ConfigError: the server or the conversation cannot be used.
        """
        self._screen = screen
        serving = asyncio.create_task(self._serve())
        serving.add_done_callback(lambda _: screen.exit())
        try:
            await screen.run()
            await self._send_rest(serving)
        finally:
            tasks = [serving, *self._tasks]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        self._say_how_to_return()
        return 0

    async def _send_rest(self, serving: asyncio.Task[None]) -> None:
        """Wait until the server has accepted the messages that the user has sent. Then print the messages that the
        server has not accepted.

        Wait at most `SEND_SECONDS`, and only while the task `serving` is running.
        """
        rest = asyncio.create_task(self._outgoing.join())
        await asyncio.wait((rest, serving), timeout=SEND_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        rest.cancel()
        unsent = [] if self._sending is None else [self._sending]
        while not self._outgoing.empty():
            unsent.append(self._outgoing.get_nowait())
        for text, _ in unsent:
            print_note("chat", f"not sent: {text}")

    def first_frame_drawn(self) -> None:
        self._spawn(self._load())

    async def _load(self) -> None:
        """Load the extensions and the Markdown renderer, which the first frame does not need."""
        from parley.cli.chat.extensions import load_extensions

        self._extensions = await asyncio.to_thread(load_extensions)
        if self._screen is not None:
            make_completer, make_keys = self._extensions.make_completer, self._extensions.make_key_bindings
            self._screen.extend(
                make_completer(self) if make_completer is not None else None,
                make_keys(self) if make_keys is not None else None,
            )
        self._extensions_loaded.set()
        try:
            await asyncio.to_thread(self._markdown.load)
        finally:
            self._markdown_loaded.set()
        self._changed()

    async def _serve(self) -> None:
        options = ConnectionOptions(
            report=self.note,
            on_lost=self._connection_lost,
            on_approval=self._approvals.ask,
            reconnect_seconds=RECONNECT_SECONDS,
            wants_server=lambda: self._wants_server,
        )
        async with connected(
            "chat", self._address, config=self._args.config, resident=True, options=options
        ) as server:
            await enter_worktree(self._args, self.note)
            self._client = server.client
            if (found := await chosen_conversation(server.client, self._args)) is not None:
                await self.open(found.id)
            await self._refresh_settings()
            self._state.notice = ""
            self._connected.set()
            self._changed()
            if self._args.resume == "":
                await self._extensions_loaded.wait()
                if self._extensions.pick_conversation is None:
                    raise CommandFailed("--resume requires an id; `parley ls` lists the conversations")
                await self._extensions.pick_conversation(self)
            if self._args.prompt is not None:
                self._outgoing.put_nowait((self._args.prompt, "join"))
            while True:
                self._sending = await self._outgoing.get()
                text, delivery = self._sending
                try:
                    await self.send(text, delivery=delivery)
                except ClientError as error:
                    self._give_back(text, error)
                self._sending = None
                self._outgoing.task_done()

    def _give_back(self, text: str, error: ClientError) -> None:
        """Print a note that the message `text` was not sent because of `error`. If the input is empty, put `text`
        back into the input.
        """
        self.note(f"not sent: {_reason(error)}")
        if self._screen is not None and not self._screen.input_text:
            self._screen.set_input(as_message(text))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a new task, and return the task. If the coroutine raises a `ClientError`, show the
        error as a note.
        """

        async def run() -> None:
            try:
                await work
            except ClientError as error:
                self.note(_reason(error))

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.note(f"internal error: {type(error).__name__}: {error}")

    def _say_how_to_return(self) -> None:
        if self._followed is None:
            return
        url = "" if self._address is None else f" --url {self._address.shown}"
        if self.state != "idle":
            print_note("chat", "the turn continues on the server")
        print_note("chat", f"to continue: parley chat --resume {self._followed.conversation.id[:SHORT]}{url}")

    # --- the connection --------------------------------------------------------------------

    def _connection_lost(self) -> None:
        self._wants_server = False
        self._state.notice = "reconnecting ..."
        self._changed()
        self._spawn(self._wait_for_connection())

    async def _wait_for_connection(self) -> None:
        if self._client is None:
            return
        await self._client.settings()  # the client sends the request when the connection is restored
        if self._state.notice:
            self._state.notice = ""
            self.note("connected again")

    # --- the context of the extensions -------------------------------------------------------

    @property
    def client(self) -> Client:
        if self._client is None:
            raise Disconnected(None, "not connected yet")
        return self._client

    @property
    def conversation(self) -> Conversation | None:
        return None if self._followed is None else self._followed.conversation

    @property
    def cwd(self) -> str | None:
        if self._followed is not None:
            return self._followed.cwd
        if self._args.cwd is not None:
            return str(self._args.cwd)
        return None if self._settings is None else self._settings.cwd

    @property
    def local_cwd(self) -> str | None:
        cwd = self.cwd
        return cwd if cwd is not None and os.path.isdir(cwd) else None

    @property
    def is_remote(self) -> bool:
        return self._address is not None

    async def offered_models(self, provider: str) -> Sequence[str]:
        if self.is_remote:  # the settings and the keys of that server are not on this computer
            return ()
        from parley.cli.chat.offered_models import offered_models  # imported here: few chats need this module

        return await offered_models(provider, config=self._args.config)

    @property
    def state(self) -> Literal["idle", "running", "asking"]:
        if self._open_approval is not None:
            return "asking"
        return "idle" if self._state.running_since is None else "running"

    @property
    def _conversation_id(self) -> str | None:
        return None if self._followed is None else self._followed.conversation.id

    @property
    def _open_approval(self) -> Approval | None:
        return self._approvals.of(self._conversation_id)

    async def open(self, conversation_id: str) -> None:
        conversation = self.client.conversation(conversation_id)
        status = await conversation.status()
        queue = await conversation.queue()
        stream = await conversation.stream(last=SNAPSHOT_EVENTS)
        await self._close()
        view = self._new_view(status.cwd)
        self._follow(_Followed(conversation, view, status.cwd, stream))
        self.note(f"conversation {conversation.id[:SHORT]}: {status.title or '(no title)'}")
        if status.tokens is not None:
            view.usage, view.usage_seq = status.tokens, status.seq
        self._state.queued, self._state.queue_paused = len(queue.messages), queue.paused
        for one in queue.messages:
            view.add_pending(one.message_id, text_of(one.content), is_queued=True)
        if status.state != "idle":
            self._state.running_since = time.monotonic()
        self._drop_unsent_settings()
        self._spawn(mark_read(conversation, status.seq))
        await self._refresh_settings()

    async def new(self) -> None:
        await self._close()
        self._drop_unsent_settings()
        await self._refresh_settings()
        self.note("the next message begins a new conversation")

    def _drop_unsent_settings(self) -> None:
        """Undo the changes of settings that were not sent with a message, and print a note that lists these
        changes.

        The user meant these changes for the previous conversation. If the changes remained, looser permissions
        could apply to another conversation by accident.
        """
        dropped = {
            name: value for name, value in self.overrides.items() if self._initial_overrides.get(name) != value
        }
        if dropped:
            listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sorted(dropped.items()))
            self.note(f"not sent, and therefore dropped: {listed}")
        self.overrides = self._initial_overrides

    async def send(
        self, content: str | Iterable[InputItem], *, delivery: Delivery = "join", written: str | None = None
    ) -> None:
        given = (TextItem(text=content),) if isinstance(content, str) else tuple(content)
        text = text_of(given)
        attached = tuple(self.attachments)
        own = text if written is None else written
        found = () if self._extensions.attach is None else tuple(self._extensions.attach(self, own))
        followed = await self._followed_conversation()
        overrides = self.overrides
        message_id = str(uuid4())
        followed.view.add_pending(message_id, text, is_queued=False)
        self._changed()
        try:
            # The client repeats the call if the connection is lost. The id prevents the message from being added
            # twice.
            await followed.conversation.send(
                (*given, *attached, *found), message_id=message_id, delivery=delivery, **overrides
            )
        except BaseException:
            followed.view.state.pending.pop(message_id, None)
            self._changed()
            raise
        self.attachments = self.attachments[len(attached) :]
        if overrides and self.overrides is overrides:
            self.overrides = self._initial_overrides = {}
            self._spawn(self._refresh_settings())  # if this fails, the message has been sent nevertheless

    def set_input(self, text: str) -> None:
        if self._screen is not None:
            self._screen.set_input(text)

    def print(self, renderable: object, *, wraps: bool = False) -> None:
        if isinstance(renderable, str):
            lines = for_terminal(renderable).split("\n")
            self._write("".join(f"{line}\n" for line in (self._view.rows(lines) if wraps else lines)))
        else:
            self._write(
                "".join(
                    f"{line}\n"
                    for line in self._markdown.render_escaped(cast("RenderableType", renderable), self._width())
                )
            )

    def note(self, text: str) -> None:
        self._view.note(text)
        self._changed()

    async def overlay(
        self,
        container: AnyContainer,
        *,
        focus: FocusableElement | None = None,
        key_bindings: KeyBindingsBase | None = None,
    ) -> Any:
        assert self._screen is not None
        return await self._screen.overlay(container, focus=focus, key_bindings=key_bindings)

    def exit(self) -> None:
        if self._screen is not None:
            self._screen.exit()

    # --- the conversation --------------------------------------------------------------------

    async def _followed_conversation(self) -> _Followed:
        """Return the open conversation. If no conversation is open, create one. If the stream of the conversation
        has ended, open it again.
        """
        followed = self._followed
        if followed is None:
            given = {name: value for name, value in self.overrides.items() if name in CreateOptions.__annotations__}
            directory = self.overrides.get("cwd") or self.cwd or (await self.client.settings()).cwd
            conversation = await self.client.create(
                cwd=directory, model=self.overrides.get("model"), **cast(CreateOptions, given)
            )
            self.overrides = self._initial_overrides = {}
            stream = await conversation.stream(after=0)
            followed = _Followed(conversation, self._view, directory, stream)
            self._view.set_cwd(directory)
            self._follow(followed)
            self._spawn(self._refresh_settings())
        elif followed.task is None or followed.task.done():  # for example, another client had taken over the stream
            stream = await followed.conversation.stream(after=followed.stream.seq)
            followed.stream = stream
            self._follow(followed)
        return followed

    def _new_view(self, cwd: str | None) -> ChatView:
        return ChatView(
            self._state,
            self._markdown,
            cwd=cwd,
            colour=self._colour,
            width=self._width,
            clock=time.monotonic,
            width_of=self._width_of,
        )

    def _follow(self, followed: _Followed) -> None:
        self._followed, self._view = followed, followed.view
        followed.task = self._spawn(self._read(followed))

    async def _close(self) -> None:
        """Stop following the open conversation."""
        followed, self._followed = self._followed, None
        if followed is not None:
            if followed.task is not None:
                followed.task.cancel()
                with suppress(asyncio.CancelledError):
                    await followed.task
            await followed.stream.close()
        self._flush_view()
        notice = self._state.notice
        self._state.reset()
        self._state.notice = notice
        self._view = self._new_view(None)
        self._dialog.stop_denying()

    async def _read(self, followed: _Followed) -> None:
        """Show the events of the conversation's stream until the stream ends."""
        with suppress(TimeoutError):  # finished text is printed once, so it must be formatted from the beginning
            await asyncio.wait_for(self._markdown_loaded.wait(), LOAD_SECONDS)
        stream, view = followed.stream, followed.view
        hidden = _hidden_events(stream.snapshot)
        if hidden:
            view.note(f"{hidden} earlier events; `parley show {followed.conversation.id[:SHORT]}` shows them")
        loop = asyncio.get_running_loop()
        step = loop.time()
        try:
            async for event in stream.detailed():
                if hidden:
                    hidden -= 1
                    continue
                view.shows_reasoning = self.shows_reasoning
                view.show(event)
                self._changed()
                if event.live and ends_turn(event.msg) and not isinstance(event.meta.seq, UnsetType):
                    self._spawn(mark_read(followed.conversation, event.meta.seq))
                if loop.time() - step > STEP_SECONDS:  # many events can arrive at once
                    await asyncio.sleep(0)
                    step = loop.time()
        except Disconnected as error:
            self.note(_reason(error))
            return
        if stream.disconnected is not None:
            self.note(f"the stream has ended: {stream.disconnected}")
            if stream.disconnected_code == "deleted":
                self._followed = None
                self._state.reset()

    async def _refresh_settings(self) -> None:
        self._settings = await self.client.settings(conversation=self._conversation_id)
        self._changed()

    # --- drawing ---------------------------------------------------------------------------

    def _width(self) -> int:
        return 80 if self._screen is None else self._screen.size[0]

    def _changed(self) -> None:
        if self._screen is not None:
            self._screen.changed(self._flush_view)

    def _flush_view(self) -> None:
        if self._screen is not None:
            self._screen.print(self._view.take_printed())

    def _write(self, text: str) -> None:
        self._flush_view()
        if self._screen is not None:
            self._screen.print(text)
            self._screen.changed(self._flush_view)

    def live_lines(self, *, width: int, height: int) -> list[Styled]:
        return self._live.lines(width=width, height=height)

    def panel_lines(self, *, width: int) -> list[Styled]:
        return [
            (style, row.strip())
            for style, text in self._panel(width)
            for row in wrapped(text, width, self._width_of)
        ]

    def _panel(self, width: int) -> list[Styled]:
        """Return the lines of the panel: the question about the open approval and the keys that answer it, or a
        hint about Ctrl-C. The rows with the keys have at most `width` columns; the other lines are not wrapped yet.
        """
        approval = self._open_approval
        self._dialog.show(approval)
        if approval is None:
            return [("class:hint", _EXIT_HINT)] if self._exit_armed else []
        has_input = self._screen is not None and bool(self._screen.input_text)
        if (seconds := self._dialog.seconds_until_keys(has_input=has_input)) is not None:
            asyncio.get_running_loop().call_later(seconds + 0.01, self._changed)
        return self._dialog.lines(note=self._length_note(), has_input=has_input, width=width)

    def _length_note(self) -> str:
        """If the approval request is too long for the screen, return a hint to scroll up; otherwise return an empty
        string.
        """
        lines = self._view.request_lines
        if self._screen is None or lines + PANEL_LINES <= self._screen.size[1]:
            return ""
        return f" The request has {lines} lines; scroll up to read all of them."

    def prompt(self) -> str:
        return "reason> " if self._dialog.is_denying else "> "

    def placeholder(self) -> str:
        return "" if self._has_sent or self.state != "idle" else _PLACEHOLDER

    def status_line(self, *, width: int) -> str:
        return status_line(
            state=self.state,
            settings=self._settings,
            overrides=self.overrides,
            attachments=len(self.attachments),
            cwd=self.cwd,
            usage=self._view.usage,
            width=width,
            width_of=self._width_of,
        )

    # --- keys ------------------------------------------------------------------------------

    def submit(self, text: str, *, queue: bool) -> None:
        if (denied := self._dialog.take_denied()) is not None:
            self._decide(denied, DENY, text.strip() or None)
            return
        if not text.strip():
            return
        self._wants_server = self._has_sent = True
        if text[0] in "/!" and (not self._extensions_loaded.is_set() or text[0] in self._extensions.line_handlers):
            self._spawn(self._handle_line(text))
        else:
            self._outgoing.put_nowait((text, "queue" if queue else "join"))

    async def _handle_line(self, text: str) -> None:
        await self._extensions_loaded.wait()
        await self._connected.wait()
        handle = self._extensions.line_handlers.get(text[0])
        if handle is None:
            self._outgoing.put_nowait((text, "join"))
        elif not await handle(self, text):
            self.note(f"unknown command {text.split()[0]}; /help lists the commands")
            if self._screen is not None and not self._screen.input_text:
                self._screen.set_input(text)

    def key_pressed(self) -> None:
        self._dialog.key_pressed()
        self._exit_was_armed, self._exit_armed = self._exit_armed, False

    def answer_key(self, key: str) -> bool:
        return self._dialog.accepts(key, self._open_approval)

    def answer_after_delay(self, key: str) -> None:
        if (pending := self._dialog.set_pending(key)) is not None:
            self._spawn(self._answer_pending(pending))

    async def _answer_pending(self, pending: PendingAnswer) -> None:
        if await self._dialog.takes_effect(pending) and pending.approval is self._open_approval:
            self.answer(pending.key)
        self._changed()

    def cancelled_key(self) -> str | None:
        return self._dialog.cancelled_key

    def confirm_cancelled_key(self) -> None:
        cancelled = self._dialog.take_cancelled()
        if cancelled is None or cancelled.approval is not self._open_approval:
            return
        self.answer(cancelled.key)
        if cancelled.key == DENY:
            self.submit("", queue=False)  # the key and Enter deny without a reason

    def answer(self, key: str) -> None:
        if (approval := self._dialog.answer(key)) is not None:
            self._decide(approval, key, None)

    def _decide(self, approval: Approval, key: str, reason: str | None) -> None:
        async def decide() -> None:
            try:
                await self._approvals.answer(approval, ANSWERS[key], reason)
            except AlreadyDecided:
                self.note("this approval was already decided or withdrawn")

        self._spawn(decide())

    def _approvals_changed(self) -> None:
        approval = self._open_approval
        if self._dialog.stop_denying(unless=approval):
            self.set_input("")
        if approval is not None:
            self._spawn(self._show_request(approval))
        self._changed()

    async def _show_request(self, approval: Approval) -> None:
        """Show the action that an approval allows, unless the event that describes the action has already been
        shown. The event has not been shown if, for example, it is older than the turns on the screen.
        """
        await asyncio.sleep(SETTLE_SECONDS)
        if approval is self._open_approval:
            self._view.show_approval(approval)
            self._changed()

    def escape(self) -> None:
        if self._dialog.stop_denying():
            self.set_input("")
        elif self.conversation is not None and self.state != "idle":
            self._spawn(self.conversation.interrupt())

    def interrupt_key(self, *, is_empty: bool) -> None:
        if self._dialog.stop_denying():
            return
        if is_empty and self._exit_was_armed:
            self.exit()
        elif is_empty:
            self._exit_armed = True

    def leave(self) -> None:
        self.exit()

    def expand(self) -> None:
        if not self._view.expand():
            self.note("nothing is folded")
        self._changed()


_PLACEHOLDER: Final = "/help lists the commands"
_EXIT_HINT: Final = "Ctrl-C again exits, and a running turn continues. Esc interrupts the turn."


def _hidden_events(snapshot: Sequence[Event]) -> int:
    """Return the number of events in `snapshot` that precede its last `SHOWN_TURNS` turns."""
    starts = [number for number, event in enumerate(snapshot) if isinstance(event, events.TaskStarted)]
    return starts[-SHOWN_TURNS] if len(starts) > SHOWN_TURNS else 0


def _reason(error: ClientError) -> str:
    return error.message or "no reason given" if isinstance(error, ToolFailed) else str(error)
