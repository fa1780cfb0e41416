"""Starts commands, each with a supervisor process.

The executor owns the fork server, and limits how many commands are started at the same time. The executor does not
change the output of commands. `running_command.py` follows one command. `forkserver.py` and `supervisor.py` run in
separate processes, which start the command, and kill its remaining processes when it ends.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Final

from parley.common.os_errors import os_detail
from parley.common.shield import run_to_completion
from parley.errors import CommandNotStarted
from parley.ports.commands import CommandResult, LaunchSpec, Output
from parley.tools.commands.fork_server_link import ForkServerLink
from parley.tools.commands.launch_request import encode_request
from parley.tools.commands.outcome import result
from parley.tools.commands.running_command import RunningCommand

__all__ = ["Executor"]

STARTS_AT_ONCE: Final = 16
"""The maximum number of requests to start a command that are unanswered at the same time. The number is small
enough for the buffer of the fork server's socket and for the kernel's limit on descriptors in transit. It is larger
than the number of processes that can be forked at the same time, so it does not delay the start of commands.
"""
START_SECONDS: Final = 10.0
"""The maximum time, in seconds, between a request to start a command and the supervisor's report that it is about
to run the command. The time is long because the first supervisor also waits for the fork server, whose start can be
slow on a busy computer.
"""


class Executor:
    """A `Starter` that starts all commands through one fork server. The fork server is started when the first
    command is started.
    """

    def __init__(self, *, root: str = "/", max_commands: int = 0) -> None:
        """Create an executor. The executor looks for systemd below the directory `root`, because systemd can limit
        the memory and the number of processes of commands.

        At most `max_commands` commands run at the same time, and further commands wait. If `max_commands` is 0, the
        number of commands is not limited.
        """
        self._root = root
        self._slots = asyncio.Semaphore(max_commands) if max_commands else nullcontext()
        self._fork_server: ForkServerLink | None = None
        self._running: set[RunningCommand] = set()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._closed = False

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        request = encode_request(start)
        async with self._slots:  # the timeout of the command begins only after this wait
            return await self._start_twice(start, request, output)

    async def _start_twice(self, start: LaunchSpec, request: bytes, output: Output) -> CommandResult:
        # If the fork server or the spare supervisor died before the command started, try once more.
        for _ in range(2):
            ended = await self._run(start, request, RunningCommand(output, start.mounts))
            if ended is not None:
                return ended
        raise CommandNotStarted("the process that starts commands has ended")

    async def close(self) -> None:
        """Kill all commands, and end the fork server. Later calls of `start` raise `CommandNotStarted`."""
        self._closed = True
        for command in self._running:
            command.stop()
        if self._fork_server is not None:
            await run_to_completion(asyncio.ensure_future(self._fork_server.close()))

    async def _run(self, start: LaunchSpec, request: bytes, command: RunningCommand) -> CommandResult | None:
        """Run a command to its end, and return its result. Return None if the fork server or the supervisor ended
        before the command ran; a second attempt may succeed. `request` is the encoded form of `start`.

        Raises:
            CommandNotStarted: the command could not be started.
            Exception: the command's output callback raised this exception.
        """
        self._running.add(command)
        try:
            async with self._starts:
                await self._start(command, request)
            await asyncio.wait([command.ended], timeout=start.timeout_seconds)
            ended_at = asyncio.get_running_loop().time()
        finally:
            timed_out = not command.ended.done()
            try:
                if not command.finished:
                    await run_to_completion(asyncio.create_task(command.end()))
            finally:
                self._running.discard(command)
                command.close()
        if command.start_error is not None:
            raise command.start_error
        if not command.was_ready:
            return None
        if command.output_error is not None:
            raise command.output_error
        return result(command.status, timed_out=timed_out, seconds=ended_at - command.started_at)

    async def _start(self, command: RunningCommand, request: bytes) -> None:
        """Send `request`, which starts the command, to the fork server. Return when the command is about to run, or
        when it is certain that the command will not run.

        Raises:
            CommandNotStarted: the server is shutting down, or the fork server cannot be started or does not
                respond.
        """
        fork_server = self._live_fork_server()
        try:
            async with asyncio.timeout(START_SECONDS):
                await command.begin(fork_server, request)
        except TimeoutError:
            fork_server.abandon()
            raise CommandNotStarted("the process that starts commands does not answer") from None
        except OSError as error:
            raise CommandNotStarted(os_detail(error)) from error

    def _live_fork_server(self) -> ForkServerLink:
        if self._closed:
            raise CommandNotStarted("Server is shutting down")
        if self._fork_server is None or self._fork_server.lost.done():
            try:
                self._fork_server = ForkServerLink(self._root)
            except OSError as error:
                why = f"the process that starts commands cannot be started: {os_detail(error)}"
                raise CommandNotStarted(why) from error
        return self._fork_server
