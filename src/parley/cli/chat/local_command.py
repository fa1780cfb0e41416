"""Handles lines that begin with `!`: the user's own commands, which run on this computer without a sandbox.

The command, its output and its exit code become part of the next message.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from parley.cli.chat.context import ChatContext
from parley.cli.command_lines import CommandLines
from parley.common.os_errors import os_detail
from parley.wire.items import TextItem
from parley.wire.text import replace_surrogates

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

__all__ = ["LocalCommands"]

PREFIX: Final = "!"
READ_BYTES: Final = 64 * 1024
SHOWN_LINES: Final = 500
LAST_SHOWN_LINES: Final = 20
"""The maximum number of lines that the chat shows from the end of a long output, in addition to the first
`SHOWN_LINES` lines.
"""
SENT_LINES: Final = 100
"""The maximum number of lines that the next message contains from the beginning of the output. The next message
contains at most the same number of lines from the end of the output.
"""
MAX_SENT: Final = 20_000
"""The maximum number of characters of the output in the next message. The middle of a longer output is left out."""
PAUSE_SECONDS: Final = 0.005
"""The pause, in seconds, between two reads of a long output. During the pause, the chat can handle keys."""
DRAIN_SECONDS: Final = 0.5
"""The maximum number of seconds for which the output is read after the command has ended, if a background process
keeps the output open.
"""

_STREAM: Final = "output"


class LocalCommands:
    """Runs the user's own commands, one at a time."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_interrupted = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    async def handle(self, context: ChatContext, line: str) -> bool:
        """Run the command in a line, and wait until the command ends. If the command cannot run now, put the line
        back into the input. Always return True, because this method handles every line that begins with `!`.

        A line that contains only `!` removes all attachments, such as earlier outputs, from the next message.
        """
        command = line.strip().removeprefix(PREFIX).strip()
        if not command:
            removed = len(context.attachments)
            context.attachments.clear()
            context.note("the next message includes no attachments" + (" any more" if removed else ""))
        elif context.local_cwd is None:
            context.note("! is off, because the working directory does not exist on this computer")
            context.set_input(line)
        elif self.is_running:
            context.note("a command is still running; Ctrl-C stops it")
            context.set_input(line)
        else:
            await self._run(context, command, context.local_cwd)
        return True

    def stop(self) -> None:
        """Interrupt the running command. If the command has already been interrupted, kill it."""
        if self._process is not None:
            _signal(self._process, signal.SIGKILL if self._is_interrupted else signal.SIGINT)
            self._is_interrupted = True

    def key_bindings(self) -> KeyBindings:
        """Return a key binding for Ctrl-C, which stops the running command. The binding is active only while a
        command is running.
        """
        from prompt_toolkit.filters import Condition  # imported here: the chat starts without prompt_toolkit
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        keys = KeyBindings()

        @keys.add("c-c", filter=Condition(lambda: self.is_running), eager=True)
        def _stop(event: KeyPressEvent) -> None:
            self.stop()

        return keys

    async def _run(self, context: ChatContext, command: str, cwd: str) -> None:
        place = f"  (on this computer, in {cwd}, not on the server)" if context.is_remote else ""
        context.print(f"! {command}{place}")
        sent = CommandLines(head=SENT_LINES, tail=SENT_LINES)
        kept: list[str] = []
        try:
            async with _started(command, cwd) as (process, stream):
                self._process, self._is_interrupted = process, False
                await self._show_output(context, process, stream, sent, kept)
        except (OSError, ValueError) as error:
            detail = os_detail(error) if isinstance(error, OSError) else str(error)
            context.note(f"the command cannot be started: {detail}")
            return
        finally:
            self._process = None
        ending = _ending(process.returncode)
        last, hidden = sent.end()
        output = _cut("\n".join([*kept, *([f"... {hidden} more lines"] if hidden else []), *last]))
        text = f"\n\nI ran this command in {cwd}:\n\n$ {command}\n{output}\n[{ending}]\n"
        context.attachments.append(TextItem(text=replace_surrogates(text)))
        context.note(f"{ending}; the next message includes this output")

    async def _show_output(
        self,
        context: ChatContext,
        process: Process,
        stream: asyncio.StreamReader,
        sent: CommandLines,
        kept: list[str],
    ) -> None:
        """Show the output of a command from `stream` until the command has ended. Collect the output for the next
        message: add its first lines to `kept`, and its last lines to `sent`.
        """
        shown = CommandLines(head=SHOWN_LINES, tail=LAST_SHOWN_LINES)

        async def read() -> None:
            is_long = False
            while chunk := await stream.read(READ_BYTES):
                kept.extend(sent.add(_STREAM, chunk))
                lines = shown.add(_STREAM, chunk)
                if lines:
                    context.print("\n".join(f"  {line}" for line in lines))
                is_long = is_long or not lines
                if is_long:
                    await asyncio.sleep(PAUSE_SECONDS)

        reading = asyncio.create_task(read())
        try:
            await process.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await asyncio.shield(reading)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        last, hidden = shown.end()
        if hidden:
            context.print(f"  ... {hidden} more lines")
        if last:
            context.print("\n".join(f"  {line}" for line in last))


@asynccontextmanager
async def _started(command: str, cwd: str) -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
    """Start a command in a shell in the directory `cwd`, and yield its process and its output.

    If the command is still running at the end of the `async with` block, kill it.

    Raises:
        OSError, ValueError: the command cannot be started.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ours, "rb"))
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                _shell(),
                "-c",
                command,
                stdin=DEVNULL,
                stdout=theirs,
                stderr=STDOUT,
                cwd=cwd,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        try:
            yield process, stream
        finally:
            if process.returncode is None:
                _signal(process, signal.SIGKILL)
    finally:
        transport.close()  # a background process may still have the other end of the pipe open


def _shell() -> str:
    """Return the path of the user's shell, the value of the environment variable SHELL. If SHELL is not the
    absolute path of a program, return `/bin/sh`.
    """
    shell = os.environ.get("SHELL", "")
    return shell if os.path.isabs(shell) and os.access(shell, os.X_OK) else "/bin/sh"


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a command and to the processes that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _cut(text: str) -> str:
    if len(text) <= MAX_SENT:
        return text
    half = MAX_SENT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} more characters\n{text[-half:]}"
