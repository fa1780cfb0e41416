"""Executes the commands of one conversation in the order of their arrival.

Commands are executed in the process that owns the conversation. A command that does not have to wait is executed
immediately. Other commands are executed by a task, which exists only while there are commands. If following the
owner ends, the commands to which the owner has not responded return to the front of the queue, in their original
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from parley.conversation.state import Phase
from parley.errors import (
    HomeLost,
    NotOwned,
    OutcomeUnknown,
    OwnedElsewhere,
    ParleyError,
    ShuttingDown,
    StoreError,
    StoreFailed,
    UnknownConversation,
)
from parley.ports.clock import Clock
from parley.ports.store import CALL_SECONDS, TURN_SECONDS
from parley.runtime.commands import Command, Delete, Interrupt, LocalConversation, MoveTurn, Observe
from parley.runtime.deadline import Deadline
from parley.runtime.errors import NoNodeForDirectory, TurnIsRunning
from parley.runtime.ownership import RETRY_SECONDS, Ownership, OwnershipState
from parley.runtime.queue_commands import BeginQueued
from parley.runtime.remote_owner import FOLLOW_SECONDS
from parley.runtime.sent_commands import SentCommands
from parley.runtime.turn_placer import TurnPlacer
from parley.runtime.turn_runner import LocalTurn

__all__ = ["LAST_ANSWERS_SECONDS", "Mailbox"]

log = logging.getLogger(__name__)

LAST_ANSWERS_SECONDS: Final = 1.0
"""The maximum time, in seconds, for which `Mailbox.stop` waits for responses from other processes. The server needs
the remaining time of the shutdown to respond to its clients.
"""

FIRST_RETRY_SECONDS: Final = 1.0
"""The delay after the first failed attempt to begin a turn with a queued message, in seconds. Each further failure
doubles the delay.
"""

SILENCE_SECONDS: Final = 0.25
"""A grace period in seconds: a command fails if the store still does not respond this long after the deadline of
the command. While the store responds, the command continues to wait, and the store is checked again at intervals of
the same length.
"""

MAX_RETRY_SECONDS: Final = 30.0
"""The maximum delay between two attempts to begin a turn with a queued message, in seconds."""


class Mailbox:
    """The command queue of one conversation. Its loop acquires and releases the lease through `Ownership`."""

    def __init__(
        self,
        ownership: Ownership,
        local: LocalConversation,
        *,
        placer: TurnPlacer | None,
        continues_queue: bool,
        clock: Clock,
        is_store_silent: Callable[[], bool] | None,
        draining: asyncio.Event,
        closing: asyncio.Event,
    ) -> None:
        """Create an empty mailbox.

        `placer` finds the node that runs a turn; None if this process is not a node. `continues_queue` is True if
        loading the conversation begins a turn with the next queued message. `is_store_silent` returns whether the
        store has stopped responding; None if the store is on this computer. After `draining` is set, this process
        begins no more turns. `closing` is set when the server begins to shut down.
        """
        self._ownership, self._local, self._clock = ownership, local, clock
        self._draining, self._closing = draining, closing
        self._placer, self._is_store_silent = placer, is_store_silent
        self.continues_queue = continues_queue
        """True if this process begins turns with queued messages. A process that only reads the conversation does
        not begin turns, because the process may end soon and interrupt the turns.
        """
        self._queue: deque[Command] = deque()
        self._sent = SentCommands(ownership, local, closing=closing)
        self._preparing: set[asyncio.Task[None]] = set()
        """The tasks that read the files of messages."""
        self._task: asyncio.Task[None] | None = None
        self._watched: LocalTurn | None = None
        """The turn whose end makes this mailbox check its commands again; None if the mailbox is not waiting for
        the end of a turn.
        """
        self._has_tried_queue = False
        """True if this process is beginning a turn with the next queued message, or failed to begin the turn and
        waits for the next attempt.
        """
        self._retry: asyncio.Task[None] | None = None
        """The task that tries again to begin a turn with the next queued message; None if no retry is scheduled."""
        self._retry_seconds = FIRST_RETRY_SECONDS
        """The delay after the next failed attempt to begin a turn with a queued message, in seconds."""
        self._last_error = ""
        """The error message of the last failure of an `Observe` command; empty if no such command has failed. A
        failure with the same message as the previous failure is not logged again.
        """
        self._lost: HomeLost | None = None

    @property
    def is_empty(self) -> bool:
        """True if no command is queued, being executed, waiting for the owner's response or about to be retried."""
        return not (self._queue or self._sent or self._preparing or self._task or self._retry)

    @property
    def has_commands(self) -> bool:
        return bool(self._queue or self._sent or self._preparing)

    def post(self, command: Command) -> asyncio.Future[None]:
        """Add a command. Return a future that is done when the command is executed and its effects are durable. If
        the server is shutting down, the future fails with `ShuttingDown`, unless the command is applied even during
        a shutdown.

        Cancelling the future withdraws the command, unless it has already been executed.
        """
        if self._closing.is_set() and not command.applies_while_closing:
            command.done.set_exception(ShuttingDown())
        else:
            if not isinstance(command, Observe):  # the registry posts `Observe` commands periodically
                self._has_tried_queue = False
            self.continues_queue = self.continues_queue or command.starts_turn
            if self._is_store_silent is not None:
                self._check_at(command, command.deadline.at + SILENCE_SECONDS, self._is_store_silent)
            self._queue.append(command)
            self._wake()
        return command.done

    def _check_at(self, command: Command, at: float, is_silent: Callable[[], bool]) -> None:
        timer = asyncio.get_running_loop().call_at(at, self._check_silence, command, is_silent)
        command.done.add_done_callback(lambda _: timer.cancel())

    def _check_silence(self, command: Command, is_silent: Callable[[], bool]) -> None:
        """If the store does not respond, set an error on the future of a command whose deadline has passed. If the
        command has not been executed, it is withdrawn.

        If the store responds, the command continues to wait, and the check is repeated after `SILENCE_SECONDS`.
        `is_silent` returns whether the store has stopped responding.
        """
        if command.done.done():
            return
        if not is_silent():
            self._check_at(command, asyncio.get_running_loop().time() + SILENCE_SECONDS, is_silent)
        elif command.is_executed or isinstance(command, Delete):
            self._fail(command, OutcomeUnknown())
        else:
            self._fail(command, command.unanswered or StoreFailed("the database does not answer"))

    def reconcile(self) -> asyncio.Future[None]:
        """Add an `Observe` command, and return its future. The command loads the entries that other processes
        have stored, and follows or recovers an unfinished turn.
        """
        return self.post_unawaited(Observe(Deadline(CALL_SECONDS)))

    def post_unawaited(self, command: Command) -> asyncio.Future[None]:
        """Add a command whose future may not be awaited. asyncio then logs no error if the command fails."""
        done = self.post(command)
        done.add_done_callback(_retrieve)
        return done

    def _wake(self) -> None:
        """Execute the commands that do not have to wait.

        If commands remain, or if the lease can be released, start the task that executes the commands and releases
        the lease.
        """
        self._drain()
        if self._task is None and (self._queue or self._ownership.is_releasable):
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                self._drain()
                if self._queue:
                    await self._advance(self._queue[0])
                elif not self._ownership.is_releasable:
                    return
                elif self._local.log.is_writing:
                    await self._local.log.durable()
                elif self._may_begin_queued and self._local.queue.is_pending and not self._has_tried_queue:
                    self._begin_queued()
                else:
                    await self._release()
        finally:
            self._task = None

    @property
    def _may_begin_queued(self) -> bool:
        """True if this process may begin a turn with a queued message, or let another node begin it."""
        return self.continues_queue and not (self._draining.is_set() and self._placer is None)

    def _begin_queued(self) -> None:
        """Begin a turn with the next message of the queue.

        If the turn cannot begin, the next attempt is made after a delay, or earlier if another command arrives.
        """
        self._has_tried_queue = True
        begin = BeginQueued(Deadline(TURN_SECONDS))
        begin.done.add_done_callback(self._queue_begun)
        self._queue.append(begin)

    def _queue_begun(self, done: asyncio.Future[None]) -> None:
        if (error := done.exception()) is None:
            self._has_tried_queue = False
            self._retry_seconds = FIRST_RETRY_SECONDS
            self._cancel_retry()
        elif not self._closing.is_set() and self._ownership.state is not OwnershipState.GONE:
            log.warning("%s: the next queued message has not begun a turn: %s", self._local.log.id, error)
            if self._retry is None:
                self._retry = asyncio.create_task(self._retry_queue(self._retry_seconds))
                self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)

    async def _retry_queue(self, seconds: float) -> None:
        """Wait for `seconds` seconds. Then try again to begin a turn with the next message of the queue."""
        await self._clock.sleep(seconds)
        self._retry = None
        self._begin_queued()
        self._wake()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _release(self) -> None:
        try:
            await self._ownership.release()
        except StoreError as error:  # this process loses the lease when it exits
            log.warning("%s: the lease was not released: %s", self._local.log.id, error)

    # --- executing ---------------------------------------------------------------------

    def _drain(self) -> None:
        """Execute commands from the front of the queue until one has to wait."""
        while self._queue and (self._queue[0].done.done() or self._is_ready(self._queue[0])):
            command = self._queue.popleft()
            if not command.done.done():
                self._execute(command)
        turn = self._local.runner.turn
        if turn is not None and turn is not self._watched:
            self._watched = turn
            turn.over.add_done_callback(partial(self._turn_over, turn))

    def _is_ready(self, command: Command) -> bool:
        match self._ownership.state:
            case OwnershipState.GONE:
                return True
            case _ if isinstance(command, Delete | MoveTurn):
                return False
            case OwnershipState.FOLLOWING | OwnershipState.OWNER if command.needs_lookup(self._local):
                return False
            case OwnershipState.FOLLOWING:
                return True
            case OwnershipState.OWNER:
                runner = self._local.runner
                if command.is_repeated(self._local):
                    return not self._local.log.is_writing
                if command.starts_turn and runner.is_ending:
                    return False
                if self._needs_place(command):
                    return False
                return command.is_writable or not (command.waits_for_write_lock and runner.turn is not None)
            case OwnershipState.IDLE:
                if command.is_from_peer:
                    return True  # the command fails immediately
                return self._is_without_turn(command) and not command.needs_lookup(self._local)
            case OwnershipState.ACQUIRING | OwnershipState.CONNECTING:
                return False

    def _execute(self, command: Command) -> None:
        state = self._ownership.state
        try:
            if state is OwnershipState.GONE:
                raise self._lost or UnknownConversation(self._local.log.id)
            if command.is_from_peer and state is not OwnershipState.OWNER:
                raise NotOwned
            if state is OwnershipState.FOLLOWING:
                self._sent.send(command)
                return
            if self._begins_while_draining(command):
                raise ShuttingDown
            if self._set_aside(command):
                return
            written = command.apply(self._local)
            command.is_executed = True
        except Exception as error:
            self._fail(command, error)
            return
        if written is None:
            command.succeed()
        else:
            written.add_done_callback(partial(self._written, command))

    def _begins_while_draining(self, command: Command) -> bool:
        """Return whether a command would begin a turn in this process although this process is draining.

        Return False if this process is a node, because another node then begins the turn.
        """
        begins = command.starts_turn and self._local.runner.turn is None and not command.is_repeated(self._local)
        return begins and self._placer is None and self._draining.is_set()

    def _written(self, command: Command, written: asyncio.Future[None]) -> None:
        if (error := written.exception()) is None:
            command.succeed()
        else:
            self._fail(command, error)

    def _fail(self, command: Command, error: BaseException) -> None:
        """Set `error` on the future of a command, so that the caller of the command gets the error.

        An `Observe` command that has made the log current succeeds instead, and `error` is only logged. During a
        shutdown, the caller may get an error about the shutdown or the owner instead of `error`.
        """
        if command.done.done():
            return
        if isinstance(command, Observe) and command.is_fresh and isinstance(error, ParleyError):
            # The log is current. Only the unfinished turn of another process cannot be followed or recovered.
            if str(error) != self._last_error and not self._closing.is_set():
                log.warning(
                    "%s: an unfinished turn is neither followed nor recovered: %s", self._local.log.id, error
                )
            self._last_error = str(error)
            command.succeed()
        else:
            command.fail(error, is_closing=self._closing.is_set())

    # --- waiting -----------------------------------------------------------------------

    async def _advance(self, command: Command) -> None:
        """Execute the next step that `command`, the first command of the queue, needs before it can be applied or
        sent to the owner: for example, load entries, or acquire the lease.
        """
        try:
            if self._closing.is_set() and self._ownership.state is not OwnershipState.OWNER:
                raise ShuttingDown
            if isinstance(command, Delete):
                await self._delete(command)
            elif isinstance(command, MoveTurn):
                await self._move_turn(command)
            elif self._is_log_current and command.needs_lookup(self._local):
                await command.look_up(self._local)
            elif self._ownership.state is OwnershipState.OWNER:
                await self._advance_here(command)
            elif command.needs_turn and not command.is_fresh:
                await self._read_for_waiting()
            elif self._is_without_turn(command) and command.needs_lookup(self._local):
                await command.look_up(self._local)
            else:
                await self._take_over(command)
        except Exception as error:
            self._remove(command)
            self._fail(command, error)

    @property
    def _is_log_current(self) -> bool:
        """True if the log in this process is kept current, because this process owns the conversation or follows
        the owner.
        """
        return self._ownership.state in (OwnershipState.OWNER, OwnershipState.FOLLOWING)

    def _is_without_turn(self, command: Command) -> bool:
        """Return whether a command needs no lease. This is the case if the command affects only an unfinished turn,
        the log was read after the command arrived, and the log contains neither an unfinished turn nor a queued
        message that is about to begin a turn.
        """
        is_queue_due = self._local.queue.is_pending and not self._has_tried_queue
        is_idle = self._local.log.projections.state.phase is Phase.IDLE and not is_queue_due
        return command.needs_turn and command.is_fresh and is_idle

    async def _advance_here(self, command: Command) -> None:
        if command.is_repeated(self._local):
            await self._local.log.durable()
        elif command.starts_turn and self._local.runner.is_ending:
            await self._local.runner.ended(command.deadline)
        elif self._needs_place(command):
            await self._place(command)
        else:
            await self._local.log.writable(until=command.deadline.at)
            command.is_writable = True

    async def _read_for_waiting(self) -> None:
        """Load new entries for the queued commands that need a current log."""
        waiting = [one for one in self._queue if one.needs_turn]
        await self._ownership.read_new()
        for one in waiting:
            one.is_fresh = True

    async def _take_over(self, command: Command) -> None:
        if self._placer is not None and not command.is_placed:
            if not command.is_fresh:
                await self._ownership.read_new()
            phase = self._local.log.projections.state.phase
            if phase is Phase.IDLE and self._needs_place(command) and not command.is_repeated(self._local):
                await self._place(command)
                if not command.is_placed:
                    return
            elif phase is Phase.ASKING and not isinstance(command, Interrupt):
                await self._let_resume(self._placer, command)
        await self._ownership.take_over(command.deadline, on_lost=self._lease_lost, on_over=self._following_ended)

    async def _delete(self, command: Delete) -> None:
        """Acquire the lease and delete the conversation. If another process is about to release the lease, wait
        until it has done so.

        Raises:
            TurnIsRunning: a turn is unfinished, or another process has not released the lease within
                `FOLLOW_SECONDS`.
            ShuttingDown: the server is shutting down.
            StoreError: the conversation cannot be deleted.
        """
        release_deadline = Deadline(FOLLOW_SECONDS)
        while self._ownership.state is not OwnershipState.OWNER:
            if self._ownership.state is OwnershipState.FOLLOWING or self._closing.is_set():
                raise ShuttingDown if self._closing.is_set() else TurnIsRunning
            await self._ownership.read_new()
            try:
                await self._ownership.acquire(command.deadline, on_lost=self._lease_lost)
            except OwnedElsewhere:
                self._ownership.give_up()
                if self._local.log.projections.state.phase is not Phase.IDLE or release_deadline.is_past:
                    raise TurnIsRunning from None
                await asyncio.sleep(RETRY_SECONDS)
        if self._local.log.projections.state.phase is not Phase.IDLE or self._local.runner.turn is not None:
            raise TurnIsRunning
        try:
            await self._local.log.delete()
        except BaseException:
            await self._ownership.release()
            raise
        self.mark_gone()
        self._remove(command)
        command.succeed()

    def _remove(self, command: Command) -> None:
        with suppress(ValueError):
            self._queue.remove(command)

    # --- nodes -------------------------------------------------------------------------

    def _needs_place(self, command: Command) -> bool:
        """Return whether a command would begin a turn whose node must still be chosen."""
        is_new = command.starts_turn and not command.is_placed
        return self._placer is not None and is_new and self._local.runner.turn is None

    async def _place(self, command: Command) -> None:
        """Find the node that must run the turn of a command. If this node must run it, set `is_placed` of the
        command. Otherwise, send the command to the other node.

        If the other node does not execute the command, the caller must call this method again.

        Raises:
            NoNodeForDirectory: no node can run the turn.
            ParleyError: the command has failed on the other node, or the nodes cannot be listed.
        """
        assert self._placer is not None
        node = await self._placer.node_for(command)
        if node is None:
            command.is_placed = True
            return
        if self._ownership.state is OwnershipState.OWNER:
            await self._local.log.durable()
            await self._release()
        answer = await self._placer.send(node, command, takes_over=False)
        if answer is None:
            await asyncio.sleep(RETRY_SECONDS)
            return
        self._remove(command)
        if isinstance(command, BeginQueued):
            self.continues_queue = False  # the other node continues the queue
        if not command.done.done():
            command.answered(answer, self._ownership.remote_turn)
        command.succeed()
        self.reconcile()

    async def _let_resume(self, placer: TurnPlacer, command: Command) -> None:
        """Let the node that has the working directory resume a turn that waits for an approval and has no owner.

        Raises:
            NoNodeForDirectory: no node can run the turn.
            StoreFailed: the database cannot be reached.
        """
        if await self._local.log.has_owner():
            return
        if (node := await placer.node_for(command)) is not None:
            await placer.send(node, command, takes_over=True)

    async def _move_turn(self, command: MoveTurn) -> None:
        """Let another node continue the turn that waits for an approval, if another node can run the turn."""
        runner = self._local.runner
        try:
            is_waiting = runner.turn is not None and self._local.approvals.open is not None
            node = await self._placer.node_for(command) if self._placer is not None and is_waiting else None
            if self._placer is not None and node is not None and self._ownership.state is OwnershipState.OWNER:
                runner.hand_over()
                await runner.over()
                await self._release()
                while node is not None and await self._placer.send(node, command, takes_over=True) is None:
                    node = await self._placer.node_for(command)
        except NoNodeForDirectory as error:
            log.info("%s: the turn that waits for an approval is not moved: %s", self._local.log.id, error)
        self._remove(command)
        command.succeed()
        self.reconcile()

    # --- messages that name files ------------------------------------------------------

    def _set_aside(self, command: Command) -> bool:
        """If `command`, which was just taken from the queue, names files that have not been read, begin to read the
        files and return True. Otherwise return False.

        When the files have been read, the command is added to the queue again.
        """
        if not command.needs_files(self._local):
            return False
        task = asyncio.create_task(self._read_files(command))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return True

    async def _read_files(self, command: Command) -> None:
        try:
            await command.read_files(self._local)
        except Exception as error:
            self._fail(command, error)
            return
        if self._closing.is_set():
            self._fail(command, ShuttingDown())
            return
        self._queue.append(command)
        self._wake()

    # --- the owner ---------------------------------------------------------------------

    def _following_ended(self) -> None:
        """Move the commands to which the owner has not responded back to the front of the queue, because this
        process no longer follows the owner. Then schedule a check of the unfinished turn, unless the server is
        shutting down.
        """
        remote = self._ownership.remote
        self._ownership.following_ended()
        self._queue.extendleft(reversed(self._sent.take_unanswered(None if remote is None else remote.process)))
        if self._closing.is_set():
            self._wake()
        else:
            self.reconcile()

    def _lease_lost(self) -> None:
        self._ownership.lose_lease()
        self._wake()

    def _turn_over(self, turn: LocalTurn, over: asyncio.Future[None]) -> None:
        self._watched = None
        self.continues_queue = True
        if turn.task is not None:  # the task is None if the start of the turn could not be stored
            self._has_tried_queue = False
        self._ownership.forget_remote_turn()
        if turn.handed_over and not self._closing.is_set():
            self.reconcile()  # another process continues the turn
        else:
            self._wake()

    # --- shutdown ----------------------------------------------------------------------

    def mark_gone(self) -> None:
        """Make all current and later commands fail, because the conversation has been deleted or the home directory
        has been lost.
        """
        self._ownership.mark_gone()
        self._cancel_retry()

    def lose(self, lost: HomeLost) -> None:
        """Make all current and later commands fail with `HomeLost`, because the home directory has been lost."""
        self._lost = lost
        self.mark_gone()
        self._ownership.leave_remote_turn(lost)
        self._ownership.stop_following()
        self._wake()

    async def stop(self) -> None:
        """Wait until all commands have succeeded or failed, because the server is shutting down.

        The call waits at most `LAST_ANSWERS_SECONDS` for other processes that do not respond.
        """
        self._cancel_retry()
        self._ownership.stop_connecting()
        if self._placer is not None:
            self._placer.stop_waiting()
        self._ownership.leave_remote_turn()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_SECONDS):
                await self._sent.all_answered()
        self._ownership.stop_following()
        await self.at_rest()

    def stop_waiting_for_owner(self) -> None:
        """Stop following the owner. The commands to which the owner has not responded return to the queue, where
        they fail if the server is shutting down.
        """
        self._ownership.stop_connecting()
        self._ownership.stop_following()

    async def at_rest(self) -> None:
        """Wait until no command is being executed. When the call returns, the lease has been released, unless a
        turn needs the lease.
        """
        while working := {*self._preparing, *(() if self._task is None else (self._task,))}:
            await asyncio.wait(working)


def _retrieve(done: asyncio.Future[None]) -> None:
    """Retrieve the exception of a future, so that asyncio does not log an error if no caller awaits the future."""
    if not done.cancelled():
        done.exception()
