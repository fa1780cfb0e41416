"""A server and all that it is made of, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from parley.app.available_memory import why_too_large
from parley.app.commands import sandboxed_commands
from parley.app.memory import (
    give_back_memory,
    look_only_at_what_is_new,
    return_large_blocks,
    skip_final_collection,
)
from parley.app.signals import SIGNALS, ignore_signals
from parley.common.threads import checked_pool, start_thread
from parley.config.load import Loader
from parley.errors import BadSetting, ConfigError
from parley.models import model_opener
from parley.models.http import Http
from parley.peers import UnixPeers
from parley.runtime.conversations import Conversations
from parley.server.context import ServerContext
from parley.server.peering import serve_peer
from parley.server.serve import Transport, serve
from parley.stores.memory import MemoryStore
from parley.stores.sqlite.store import SqliteStore
from parley.tools import AgentTools
from parley.tools.patch.threads import all_written
from parley.tools.rlimits import raise_own_limit
from parley.transports.descriptors import DescriptorTransport

__all__ = ["SystemClock", "serve_stdio"]

log = logging.getLogger(__name__)

_MOST_REPORTED: Final = 20
"""Unknown keys of config.toml that are logged: the file may be that of another program."""

SECOND_INTERRUPT_SECONDS: Final = 2.0
"""Two Ctrl-C within this time mean the server, not the turn."""


class SystemClock:
    """The computer's own time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def serve_stdio(overrides: Sequence[str] = (), *, is_ephemeral: bool = False) -> None:
    """Be an MCP server on stdin and stdout until the client leaves or a signal comes.

    One that is ephemeral keeps nothing, and shares its conversations with nobody.

    Raises:
        ConfigError: the overrides or the home cannot be used; nothing was read or written.
    """
    raise_own_limit()
    clock = SystemClock()
    loader = Loader(environ=os.environ, server_dir=_server_dir(), overrides=overrides)
    http = Http()
    commands = sandboxed_commands(lambda: _home(loader), warns=True)
    tools = AgentTools(environ=os.environ, commands=commands)

    async def serve_other(transport: Transport) -> None:
        await serve_peer(transport, host)

    conversations = Conversations(
        peers=None if is_ephemeral else UnixPeers(lambda: loader.home, serve_other),
        store=MemoryStore() if is_ephemeral else SqliteStore(lambda: loader.home),
        choose=loader.choose,
        keeping=loader.store_settings,
        clock=clock,
        open_model=model_opener(http=http, environ=os.environ, clock=clock),
        tools=tools,
        commands=commands,
        environ=os.environ,
        give_back_memory=give_back_memory,
    )

    def on_initialized() -> None:
        """What the first answer need not wait for."""
        _use_checked_pool()
        http.warm_up()
        with suppress(MemoryError, RuntimeError):  # no thread can be started; it works without
            start_thread(return_large_blocks, name="return-large-blocks")
        _report_unknown_keys(loader)

    host = ServerContext(conversations=conversations, loader=loader, on_initialized=on_initialized)
    transport = DescriptorTransport(why_too_large=why_too_large)
    _take_signals(transport, conversations)
    look_only_at_what_is_new()
    try:
        await serve(transport, host)
    finally:
        await all_written()
        await tools.close()
        await commands.close()
        await http.close()
        ignore_signals()
        skip_final_collection()


def _use_checked_pool() -> None:
    """Let the event loop run blocking work in a pool that starts no thread without memory for it."""
    asyncio.get_running_loop().set_default_executor(checked_pool(name="asyncio"))


def _server_dir() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None


def _report_unknown_keys(loader: Loader) -> None:
    """Log the keys of config.toml that no setting has: one that is misspelt has no effect."""
    try:
        unknown = loader.unknown_keys()
    except ConfigError:
        return  # the first call that needs the settings fails, and says why
    for sentence in islice(unknown, _MOST_REPORTED):
        log.warning("%s", sentence)
    if next(unknown, None) is not None:
        log.warning("config.toml has more unknown settings; `parley doctor` lists them")


def _home(loader: Loader) -> str | None:
    """Parley's home; None where that is gone by now."""
    try:
        return loader.home
    except ConfigError:
        return None


def _take_signals(transport: DescriptorTransport, conversations: Conversations) -> None:
    """Take the signals. SIGTERM and SIGHUP end the server in order.

    So does SIGINT where stdin is not a terminal: it is how Claude Code ends its servers. On a terminal it
    interrupts the turns that run; without any, it ends the server too.
    """
    loop = asyncio.get_running_loop()
    on_terminal = os.isatty(0)
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
    loop.add_signal_handler(signal.SIGINT, interrupt if on_terminal else transport.stop_reading)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # or somebody has seen to it, as `nohup` does
        loop.add_signal_handler(signal.SIGHUP, transport.stop_reading)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
