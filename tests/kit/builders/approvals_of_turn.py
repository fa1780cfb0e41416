"""Builds the approvals of a turn without a turn runner."""

from __future__ import annotations

from kit.builders.records import turn_started
from kit.servers.local_server import StandingClock
from parley.agent.sandbox_policy import Roots
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.ports.commands import CommandRunner
from parley.ports.store import Store
from parley.runtime.approvals import OpenApprovals
from parley.runtime.durable_log import DurableLog
from parley.runtime.grants import SessionGrants
from parley.runtime.permissions import PermissionGate
from parley.runtime.recipients import Recipients
from parley.runtime.settings import SettingsResolver
from parley.wire.ids import ConversationId

__all__ = ["approvals_in", "gate_of", "new_trust"]


def new_trust() -> SessionGrants:
    """Build the session grants of a conversation that has no approvals."""

    def choose(wanted: SettingsOverrides, before: ResolvedSettings | None) -> ResolvedSettings:
        raise AssertionError("no settings are resolved")

    return SessionGrants(Roots(), SettingsResolver(choose))


async def approvals_in(store: Store, clock: StandingClock) -> OpenApprovals:
    """Build the open approvals of a conversation in the middle of a turn."""
    durable_log = DurableLog(ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8"), store, clock)
    await durable_log.create(turn_started())
    await durable_log.acquire(address="")
    return OpenApprovals(durable_log, Recipients(), clock=clock)


def gate_of(
    approvals: OpenApprovals, commands: CommandRunner, grants: SessionGrants | None = None
) -> PermissionGate:
    """Build the permission gate of a conversation with these approvals."""
    return PermissionGate(approvals._log, approvals, commands, grants or new_trust(), clock=StandingClock())
