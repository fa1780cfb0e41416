"""The ownership of one conversation.

The owner holds the lease, runs the turn and applies commands. Other processes follow the owner. Only the methods of
`Ownership`, which the mailbox calls, change the state. `TRANSITIONS` contains all state changes. The tables in
docs/architecture.md show them, and a test covers every transition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from parley.conversation.state import Phase
from parley.errors import (
    HomeLost,
    NotOwned,
    OwnedElsewhere,
    OwnerNotLinked,
    OwnerUnresponsive,
    StoreError,
    WriteLockHeld,
)
from parley.runtime.approvals import OpenApprovals
from parley.runtime.deadline import Deadline
from parley.runtime.durable_log import DurableLog
from parley.runtime.peer_registry import PeerRegistry
from parley.runtime.recipients import Recipients
from parley.runtime.remote_owner import RemoteOwner
from parley.runtime.turn_runner import RemoteTurn, TurnRunner
from parley.wire.ids import START, EventId, Seq

__all__ = ["TRANSITIONS", "Ownership", "OwnershipEvent", "OwnershipState"]

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
"""The delay in seconds before the next attempt to acquire the lease, after its holder could not be followed."""


class OwnershipState(Enum):
    """The ownership of a conversation from the point of view of this process."""

    IDLE = "idle"
    """This process knows no owner of the conversation."""
    ACQUIRING = "acquiring"
    """This process is acquiring the lease."""
    OWNER = "owner"
    """This process holds the lease: a turn is running or waiting for an approval here, or commands are being
    applied.
    """
    CONNECTING = "connecting"
    """Another process holds the lease, and this process is connecting to that process."""
    FOLLOWING = "following"
    """Another process holds the lease, and sends entries and deltas to this process."""
    GONE = "gone"
    """The conversation has been deleted, or the home directory has been lost."""


class OwnershipEvent(Enum):
    """An event that changes the ownership state."""

    ACQUIRE = "acquire"
    GRANTED = "granted"
    OWNED_ELSEWHERE = "owned elsewhere"
    FAILED = "failed"
    FOLLOWED = "followed"
    FOLLOWING_ENDED = "following ended"
    RELEASED = "released"
    LEASE_LOST = "lease lost"
    GONE = "gone"


_S, _E = OwnershipState, OwnershipEvent

TRANSITIONS: Final[Mapping[tuple[OwnershipState, OwnershipEvent], OwnershipState]] = {
    (_S.IDLE, _E.ACQUIRE): _S.ACQUIRING,
    (_S.ACQUIRING, _E.GRANTED): _S.OWNER,
    (_S.ACQUIRING, _E.OWNED_ELSEWHERE): _S.CONNECTING,
    (_S.ACQUIRING, _E.FAILED): _S.IDLE,
    (_S.CONNECTING, _E.FOLLOWED): _S.FOLLOWING,
    (_S.CONNECTING, _E.FAILED): _S.IDLE,  # the other process is not the owner, has ended, or does not respond
    (_S.FOLLOWING, _E.FOLLOWING_ENDED): _S.IDLE,  # the turn is over, the connection broke, or the owner changed
    (_S.OWNER, _E.RELEASED): _S.IDLE,
    (_S.OWNER, _E.LEASE_LOST): _S.IDLE,
    **{(state, _E.GONE): _S.GONE for state in _S},
}


class Ownership:
    """The ownership of one conversation. `take_over` makes this process the owner, or a follower of the owner."""

    def __init__(
        self,
        durable_log: DurableLog,
        runner: TurnRunner,
        approvals: OpenApprovals,
        recipients: Recipients,
        peers: PeerRegistry,
    ) -> None:
        self.state = OwnershipState.IDLE
        self.remote: RemoteOwner | None = None
        """The owner that this process follows; None if this process does not follow an owner."""
        self._log, self._runner, self._approvals, self._recipients = durable_log, runner, approvals, recipients
        self._peers = peers
        self._remote_turn: RemoteTurn | None = None
        self._connecting: asyncio.Timeout | None = None

    def _move(self, event: OwnershipEvent) -> None:
        if self.state is OwnershipState.GONE and event is not OwnershipEvent.GONE:
            return
        self.state = TRANSITIONS[self.state, event]

    @property
    def is_releasable(self) -> bool:
        """True if this process holds the lease and no turn of this process needs it."""
        return self.state is OwnershipState.OWNER and self._runner.turn is None

    # --- taking over -------------------------------------------------------------------

    async def read_new(self) -> None:
        """Load the entries that other processes have stored since the last call.

        Raises:
            UnknownConversation: the conversation does not exist or has been deleted.
            StoreError: the log cannot be read.
        """
        await self._log.load()
        self._applied()

    async def take_over(
        self, deadline: Deadline, *, on_lost: Callable[[], None], on_over: Callable[[], None]
    ) -> None:
        """Acquire the lease and recover an orphaned turn, or follow the process that holds the lease.

        If that process cannot be followed, for example because it is about to release the lease, the state becomes
        `IDLE`. The caller must then call this method again. `on_lost` is called when the lease is lost. `on_over`
        is called when following ends.

        Raises:
            OwnerNotLinked: the owner uses another home directory, and this process and the owner are not both
                nodes.
            OwnerUnresponsive: the owner did not respond before the deadline.
            WriteLockHeld: another process held the write lock until the deadline.
            StoreError: the lease cannot be acquired, or the end of an orphaned turn cannot be stored.
        """
        try:
            await self.acquire(deadline, on_lost=on_lost)
        except OwnedElsewhere as owner:
            self._move(OwnershipEvent.OWNED_ELSEWHERE)
            await self._follow(owner, deadline, on_over=on_over)

    async def acquire(self, deadline: Deadline, *, on_lost: Callable[[], None]) -> None:
        """Acquire the lease, then recover an orphaned turn. If the acquired lease is lost, `on_lost` is called.

        Raises:
            OwnedElsewhere: another process holds the lease; the state is `ACQUIRING`.
            StoreError: the lease cannot be acquired; the state is `IDLE`.
        """
        await self._runner.over()  # a turn that was handed over may still be stopping
        self._move(OwnershipEvent.ACQUIRE)
        try:
            await self._peers.listen()
            await self._log.acquire(address=self._peers.address, until=deadline.at)
        except OwnedElsewhere:
            raise
        except BaseException:
            self._move(OwnershipEvent.FAILED)
            raise
        self._move(OwnershipEvent.GRANTED)
        assert self._log.lease_lost is not None
        self._log.lease_lost.add_done_callback(lambda _: on_lost())
        self._applied()
        await self.recover(deadline)

    async def recover(self, deadline: Deadline) -> None:
        """End or resume an orphaned turn. If this fails, release the lease.

        Raises:
            StoreFailed: the end of the turn cannot be stored.
        """
        try:
            await self._runner.recover(deadline)
        except BaseException:
            await self.release()
            raise
        self.forget_remote_turn()

    def give_up(self) -> None:
        """Return to the state `IDLE` after `acquire` has found another owner."""
        self._move(OwnershipEvent.OWNED_ELSEWHERE)
        self._move(OwnershipEvent.FAILED)

    async def release(self) -> None:
        """Release the lease. The caller must not apply commands during the call."""
        if self.state is OwnershipState.OWNER:
            self._move(OwnershipEvent.RELEASED)
        await self._log.release()

    def lose_lease(self) -> None:
        """Stop the turn without storing its end, because another process has acquired the lease."""
        if self.state is OwnershipState.OWNER:
            self._move(OwnershipEvent.LEASE_LOST)
        self._runner.lose_lease()

    # --- following ---------------------------------------------------------------------

    async def _follow(self, owner: OwnedElsewhere, deadline: Deadline, *, on_over: Callable[[], None]) -> None:
        remote: RemoteOwner | None = None
        try:
            if deadline.is_past:
                raise TimeoutError
            async with asyncio.timeout_at(deadline.at) as self._connecting:
                try:
                    if self._log.log.last == START:
                        await self.read_new()  # the owner sends only later entries
                    connection = await self._peers.connect(owner.address)
                    remote = RemoteOwner(
                        self._log,
                        self._approvals,
                        self._recipients,
                        connection,
                        process=owner.process,
                        applied=self._applied,
                        over=on_over,
                    )
                    await remote.follow()
                except NotOwned:
                    remote = None
                    await asyncio.sleep(RETRY_SECONDS)  # a turn of the other process is about to begin or to end
                    await self.read_new()
        except TimeoutError:
            remote = None
            if owner.shares_database and not self._peers.can_reach(owner.address):
                raise OwnerNotLinked(owner.process) from None
            raise _unresponsive(owner) from None
        finally:
            self._connecting = None
            if remote is None or remote.is_over:
                self._move(OwnershipEvent.FAILED)
            else:
                self.remote = remote
                self._move(OwnershipEvent.FOLLOWED)

    def stop_connecting(self) -> None:
        """Stop trying to follow the owner, because the server is shutting down. Do nothing if this process is not
        connecting to an owner.
        """
        if self._connecting is not None and not self._connecting.expired():
            self._connecting.reschedule(asyncio.get_running_loop().time())

    def stop_following(self) -> None:
        """Stop following the owner. Do nothing if no owner is followed."""
        if self.remote is not None:
            self.remote.lost()

    def following_ended(self) -> None:
        """Return to the state `IDLE`, because following has ended."""
        if self.state is OwnershipState.FOLLOWING:
            self._move(OwnershipEvent.FOLLOWING_ENDED)
        self.remote = None
        self._log.readers.wake()

    def _applied(self) -> None:
        """Update the state of the open approval and of the remote turn after entries from another process were
        added to the log.
        """
        self._approvals.refresh()
        self.forget_remote_turn()

    # --- turns of other processes ------------------------------------------------------

    def remote_turn(self, event_id: EventId, first: Seq) -> RemoteTurn:
        """Return the turn `event_id`, which is running in another process and handles a message from this process.

        `first` is the position of the first entry of the message.
        """
        turn = self._remote_turn
        if turn is None or turn.event_id != event_id or turn.work.done():
            if turn is not None:
                turn.work.cancel()  # the earlier turn has ended if another one has begun
            turn = self._remote_turn = RemoteTurn(event_id, first)
        return turn

    def forget_remote_turn(self) -> None:
        """Mark the remote turn as over if the log contains its end."""
        if (turn := self._remote_turn) is None or self._log.log.durable < turn.first:
            return
        state = self._log.projections.state
        if state.phase is Phase.IDLE or state.event_id != turn.event_id:
            turn.work.cancel()
            self._remote_turn = None

    def leave_remote_turn(self, lost: HomeLost | None = None) -> None:
        """Stop waiting for the remote turn, because the server is shutting down or the home directory has been
        lost. `lost` is the error that describes the loss; None for a shutdown.
        """
        if self._remote_turn is not None:
            self._remote_turn.lost = lost
            self._remote_turn.handed_over = True
            self._remote_turn.work.cancel()

    def mark_gone(self) -> None:
        self._move(OwnershipEvent.GONE)


def _unresponsive(owner: OwnedElsewhere) -> StoreError:
    return OwnerUnresponsive(owner.process) if owner.lock_holder is None else WriteLockHeld(owner.lock_holder)
