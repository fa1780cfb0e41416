"""Puts the parts together: the only module that knows which adapters there are."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import Final

from parley.agent.bounds import Roots, bounds_for, read_only
from parley.config.load import Loader
from parley.config.types import Settings
from parley.errors import BadSetting, CannotConfine, MissingVariable
from parley.models import model_opener
from parley.models.http import Http
from parley.ports.commands import Bounds, Command, Ended, Output, Starter
from parley.runtime.conversations import Conversations
from parley.sandbox import Report, Sandboxed
from parley.server.host import Host
from parley.server.serve import serve
from parley.tools import AgentTools
from parley.tools.open_files import allow_many
from parley.tools.patch.threads import all_written
from parley.transports.stdio import Stdio

__all__ = ["SystemClock", "run_confined", "sandbox_report", "serve_stdio", "why_no_key"]

SECOND_INTERRUPT_SECONDS: Final = 2.0
"""Two Ctrl-C within this time mean the server, not the turn."""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

BY_HAND_SECONDS: Final = 7 * 24 * 3600.0
"""Long enough for whoever runs a command by hand, who can end it at any time."""


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
    commands = _commands()
    tools = AgentTools(environ=os.environ, commands=commands)
    conversations = Conversations(
        clock=clock,
        open_model=model_opener(http=http, environ=os.environ, clock=clock),
        tools=tools,
        commands=commands,
        environ=os.environ,
    )
    transport = Stdio()
    _take_signals(transport, conversations)
    try:
        await serve(transport, Host(conversations=conversations, loader=loader, on_initialized=http.warm_up))
    finally:
        await all_written()
        await tools.close()
        await commands.close()
        await http.close()
        # The loop gives the signals back when it closes: one that comes late must not turn an
        # orderly end into a kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


# --- by hand ---------------------------------------------------------------------------


async def run_confined(settings: Settings, argv: Sequence[str], *, output: Output) -> Ended:
    """Run one command as the agent's are run under these settings, for as long as it takes.

    Raises:
        CommandNotStarted: there was nothing to run, or the system refused.
        CannotConfine: it could not be kept within its bounds; nothing of it has run.
    """
    from parley.tools.commands.environment import command_environment

    bounds = bounds_for(settings, Roots(os.environ))
    if bounds is None:
        raise CannotConfine(f"{settings.sandbox_mode} has no bounds")
    command = Command(
        argv=tuple(argv),
        cwd=settings.cwd,
        env=command_environment(
            os.environ,
            settings.shell_environment,
            network=settings.network_access,
            keys=settings.key_variables,
        ),
        timeout_seconds=BY_HAND_SECONDS,
        bounds=bounds,
    )
    commands = _commands()
    try:
        return await commands.run(command, output=output)
    finally:
        await commands.close()


def _commands() -> Sandboxed:
    """What runs commands and keeps them within bounds; nothing is started before the first of them."""

    def executor() -> Starter:
        from parley.tools.commands.executor import Executor

        return Executor()

    return Sandboxed(executor)


async def sandbox_report(settings: Settings | None) -> Report:
    """What confines commands here; without settings, whatever the system has.

    Raises:
        CommandNotStarted: no command can be started at all.
    """
    commands = _commands()
    try:
        return await commands.report(Bounds() if settings is None else read_only(settings))
    finally:
        await commands.close()


def why_no_key(settings: Settings) -> str | None:
    """What is missing to ask the model of these settings; None: nothing. No part of a key is in it."""
    from parley.models.credentials import credentials

    try:
        credentials(settings, os.environ)
    except MissingVariable as missing:
        return str(missing)
    return None


def _server_dir() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None


def _take_signals(transport: Stdio, conversations: Conversations) -> None:
    """SIGTERM ends the server in order, and so does the end of its terminal. SIGINT interrupts the turns that run;
    without any, it ends too."""
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
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # or somebody has seen to it, as `nohup` does
        loop.add_signal_handler(signal.SIGHUP, transport.stop_reading)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
