"""Puts the parts together: the only module that knows which adapters there are."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import Final

from parley.config.load import Loader
from parley.errors import BadSetting
from parley.models import model_opener
from parley.models.http import Http
from parley.runtime.conversations import Conversations
from parley.server.host import Host
from parley.server.serve import serve
from parley.tools import AgentTools
from parley.tools.open_files import allow_many
from parley.transports.stdio import Stdio

__all__ = ["SystemClock", "serve_stdio"]

SECOND_INTERRUPT_SECONDS: Final = 2.0
"""Two Ctrl-C within this time mean the server, not the turn."""


class SystemClock:
    """The computer's own time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def serve_stdio(overrides: Sequence[str] = ()) -> None:
    """Be an MCP server on stdin and stdout until the client leaves or a signal comes.

    Raises:
        ConfigError: the overrides or the home cannot be used; nothing was read or written.
    """
    allow_many()
    clock = SystemClock()
    loader = Loader(environ=os.environ, server_dir=_server_dir(), overrides=overrides)
    http = Http()
    tools = AgentTools(environ=os.environ)
    conversations = Conversations(
        clock=clock, open_model=model_opener(http=http, environ=os.environ, clock=clock), tools=tools
    )
    transport = Stdio()
    _take_signals(transport, conversations)
    try:
        await serve(transport, Host(conversations=conversations, loader=loader, on_initialized=http.warm_up))
    finally:
        await tools.close()
        await http.close()
        # The loop gives the signals back when it closes: one that comes late must not turn an
        # orderly end into a kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


def _server_dir() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None


def _take_signals(transport: Stdio, conversations: Conversations) -> None:
    """SIGTERM ends the server in order. SIGINT interrupts the turns that run; without any, it ends too."""
    loop = asyncio.get_running_loop()
    last_interrupt = -SECOND_INTERRUPT_SECONDS

    def interrupt() -> None:
        nonlocal last_interrupt
        again = loop.time() - last_interrupt < SECOND_INTERRUPT_SECONDS
        last_interrupt = loop.time()
        running = conversations.running
        if again or not running:
            transport.stop_reading()  # what still runs is told that the server was stopped
            return
        for conversation in running:
            conversation.interrupt()

    loop.add_signal_handler(signal.SIGTERM, transport.stop_reading)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
