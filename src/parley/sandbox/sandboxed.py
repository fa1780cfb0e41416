"""Runs commands under their sandbox policy. A command whose policy cannot be enforced is not run.

The module chooses one of the sandbox mechanisms of this system, and runs the self-test of a mechanism before the
mechanism is used. The modules of the mechanisms are imported when they are needed, so that a server that uses no
sandbox starts quickly.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from parley.common.paths import is_below_any
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy, Starter

if TYPE_CHECKING:
    from parley.sandbox.mechanisms import Name, ProbeResult
    from parley.sandbox.protected_files import ProtectedFiles
    from parley.sandbox.self_test import ConfinementMechanism

__all__ = ["MechanismStatus", "Report", "Sandboxed"]

_MECHANISMS: Final[Mapping[str, tuple[Name, ...]]] = {"linux": ("bubblewrap", "landlock"), "darwin": ("seatbelt",)}
"""The sandbox mechanisms of each operating system, keyed by `sys.platform`. The strongest mechanism is first."""

_WARNINGS: Final[Mapping[Name, str]] = {
    "landlock": "Landlock confines commands. Landlock does not prevent changes to files that control Git and "
    "coding agents; the server undoes these changes when the commands have ended. bubblewrap prevents them"
}
"""The warnings for the operator of the server about mechanisms that protect less than the strongest mechanism of
the operating system.
"""


def _ignore(sentence: str) -> None:
    """Discard a warning. This is the default of `warn`."""


def _load_nothing() -> None:
    """Do nothing. This is the default of `preload`, for callers that have already imported all modules of
    Parley.
    """


class MechanismStatus(Struct, frozen=True, kw_only=True):
    """The state of one sandbox mechanism, for display."""

    name: str
    fault: str | None
    """The reason why the mechanism cannot be used; None if the mechanism works."""
    facts: tuple[tuple[str, str], ...]
    """Facts about the mechanism for display, each as a name and a value."""


class Report(Struct, frozen=True, kw_only=True):
    """The sandbox mechanism that confines commands on this system, and the state of all mechanisms."""

    used: str | None
    """The name of the mechanism that is used; None if no mechanism can be used."""
    why_none: str | None
    """The reason why no mechanism can be used; None if a mechanism is used."""
    tried: tuple[MechanismStatus, ...]
    """The states of all mechanisms of the operating system."""
    hidden: tuple[str, ...]
    """The hidden paths that exist."""


class Sandboxed:
    """Runs commands, each under its sandbox policy.

    A command with a policy runs in a sandbox. A command without a policy has all rights of the user.
    """

    def __init__(
        self,
        starter: Callable[[], Starter],
        *,
        home: Callable[[], str | None] = lambda: None,
        warn: Callable[[str], object] = _ignore,
        preload: Callable[[], object] = _load_nothing,
        platform: str = sys.platform,
    ) -> None:
        """Create the runner.

        `starter` creates the object that starts the commands, and is called when the first command runs. `home` is
        called for a self-test and returns Parley's home, which no command can write to. `warn` is called with a
        warning when a mechanism that protects less than another mechanism is used for the first time.

        `preload` is called in another thread before the first command with a root in which Parley is installed. The
        function imports all modules of Parley, so that no module is imported later from a directory that a command
        may have changed.
        """
        self._make_starter, self._home, self._warn, self._preload = starter, home, warn, preload
        self._loading = asyncio.Lock()
        self._is_loaded = False
        self._made_starter: Starter | None = None
        self._platform = platform
        self._results: dict[str, ProbeResult] = {}
        self._warned: set[Name] = set()
        self._protected: ProtectedFiles | None = None
        self._probing = asyncio.Lock()

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        if command.policy is None:
            return await self._starter.start(_plain(command), output=output)
        mechanism = await self._chosen(command.policy)
        if isinstance(mechanism, str):
            raise SandboxUnavailable(f"no sandbox is available on this system: {mechanism}")
        await self._load_all(command.policy)
        return await mechanism.run(command, command.policy, output=output)

    async def _load_all(self, policy: SandboxPolicy) -> None:
        if self._is_loaded or not _surrounds_installation(policy):
            return
        from parley.sandbox.threads import in_thread

        async with self._loading:
            if not self._is_loaded:
                await in_thread(self._preload)
                self._is_loaded = True

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        mechanism = await self._chosen(policy)
        return mechanism if isinstance(mechanism, str) else None

    async def unrestored(self, policy: SandboxPolicy) -> tuple[str, ...]:
        if self._protected is None:
            return ()
        return await self._protected.unrestored_files([root.path for root in policy.writable])

    def confine_thread(self, policy: SandboxPolicy) -> bool:
        if self._platform != "linux":
            return False
        from parley.sandbox.landlock import confine_thread

        return confine_thread(policy)

    async def report(self, policy: SandboxPolicy) -> Report:
        """Probe all mechanisms of this system. Return which mechanism is used for `policy`, and the state of each
        mechanism.
        """
        from parley.sandbox.resolved_policy import resolve

        choice = self._choice(policy)
        tried = [await self._probe(name) for name in _MECHANISMS.get(self._platform, ())]
        wanted = [found for found in tried if found.name in choice]
        decisive = next((found for found in wanted if found.mechanism is not None or not found.is_known), None)
        used = None if decisive is None or decisive.mechanism is None else decisive.name
        return Report(
            used=used,
            why_none=None if used else self._reason(policy, wanted),
            tried=tuple(MechanismStatus(name=each.name, fault=each.fault, facts=each.facts) for each in tried),
            hidden=resolve(SandboxPolicy(hidden=policy.hidden)).hidden,
        )

    async def close(self) -> None:
        """Kill all running commands. No command can be started afterwards."""
        if self._made_starter is not None:
            await self._made_starter.close()

    @property
    def _starter(self) -> Starter:
        if self._made_starter is None:
            self._made_starter = self._make_starter()
        return self._made_starter

    def _choice(self, policy: SandboxPolicy) -> Sequence[Name]:
        known = _MECHANISMS.get(self._platform, ())
        return [name for name in known if policy.mechanism in ("auto", name)]

    async def _chosen(self, policy: SandboxPolicy) -> ConfinementMechanism | str:
        """Return the strongest working mechanism that the policy allows. If no such mechanism works, return the
        reason.

        If the probe of a stronger mechanism has no final result, return the reason instead of a weaker mechanism.
        """
        tried: list[ProbeResult] = []
        for name in self._choice(policy):
            found = await self._probe(name)
            if found.mechanism is not None:
                self._warn_once(name)
                return found.mechanism
            tried.append(found)
            if not found.is_known:
                break
        return self._reason(policy, tried)

    def _warn_once(self, name: Name) -> None:
        if name in _WARNINGS and name not in self._warned:
            self._warned.add(name)
            self._warn(_WARNINGS[name])

    async def _probe(self, name: Name) -> ProbeResult:
        """Return the result of probing a mechanism. A final result is cached. If the result is not final, the next
        call of this method probes the mechanism again.
        """
        async with self._probing:
            if name not in self._results:
                from parley.sandbox import mechanisms
                from parley.sandbox.protected_files import ProtectedFiles

                if self._protected is None:
                    self._protected = ProtectedFiles()
                try:
                    found = await mechanisms.probe(name, self._starter, self._protected, home=self._home())
                    self._results[name] = found
                except CommandNotStarted as error:
                    return mechanisms.not_probed(name, error.detail)
            return self._results[name]

    def _reason(self, policy: SandboxPolicy, tried: Sequence[ProbeResult]) -> str:
        if tried:
            return "; ".join(f"{found.title}: {found.fault}" for found in tried)
        if self._platform in _MECHANISMS:
            return f"{policy.mechanism} does not exist on this system"
        return "no mechanism for this system; run Parley inside WSL2"


def _surrounds_installation(policy: SandboxPolicy) -> bool:
    roots = [root.path for root in policy.writable]
    return any(is_below_any(path, roots) for path in policy.installed)


def _plain(command: Command) -> LaunchSpec:
    return LaunchSpec(
        argv=command.argv,
        cwd=command.cwd,
        env=command.env,
        files=command.files,
        approved=command.approved,
        timeout_seconds=command.timeout_seconds,
    )
