"""Commands within their bounds, or not at all.

Chooses among the mechanisms of this system, each tried out before the first command relies on it.
Does not know how any of them works: they are loaded when they are needed, so that a server that
confines nothing has nothing to pay.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy, Starter

if TYPE_CHECKING:
    from parley.sandbox.mechanisms import Name, ProbeResult
    from parley.sandbox.protected_files import ProtectedFiles
    from parley.sandbox.self_test import ConfinementMechanism

__all__ = ["Report", "Sandboxed", "Tried"]

_MECHANISMS: Final[Mapping[str, tuple[Name, ...]]] = {"linux": ("bubblewrap", "landlock"), "darwin": ("seatbelt",)}
"""Of each system, the best one first."""

_DETECTS_ONLY: Final[Mapping[Name, str]] = {
    "landlock": "Landlock confines commands: it does not prevent changes to files that Git and agents obey; they "
    "are undone when the commands have ended. bubblewrap prevents them"
}
"""What whoever runs the server has to know of a mechanism."""


def _say_nothing(sentence: str) -> None:
    """Nobody wants to know."""


def _load_nothing() -> None:
    """Do nothing: for callers that have loaded all modules."""


class Tried(Struct, frozen=True, kw_only=True):
    """A mechanism that this system may have, for a person to read."""

    name: str
    fault: str | None
    """Why it cannot be used; None: it works."""
    facts: tuple[tuple[str, str], ...]
    """What was found, by name."""


class Report(Struct, frozen=True, kw_only=True):
    """What keeps commands within their bounds here, and why."""

    used: str | None
    why_none: str | None
    tried: tuple[Tried, ...]
    hidden: tuple[str, ...]
    """Of what is to be hidden, what is there."""


class Sandboxed:
    """Runs commands. With bounds, something keeps them there; without, they may do what the user may."""

    def __init__(
        self,
        starter: Callable[[], Starter],
        *,
        home: Callable[[], str | None] = lambda: None,
        warn: Callable[[str], object] = _say_nothing,
        preload: Callable[[], object] = _load_nothing,
        platform: str = sys.platform,
    ) -> None:
        """`starter` is called when the first command is run; `home` when a mechanism is tried out: Parley's own
        directory, in which no command can write; `warn` when one is used for the first time that prevents less
        than another would; `preload` in another thread, before the first command that could write where Parley is
        installed if its sandbox had a hole: it loads all modules that are not loaded yet."""
        self._make_starter, self._home, self._warn, self._preload = starter, home, warn, preload
        self._loading = asyncio.Lock()
        self._is_loaded = False
        self._made_starter: Starter | None = None
        self._platform = platform
        self._found: dict[str, ProbeResult] = {}
        self._said: set[Name] = set()
        self._protected: ProtectedFiles | None = None
        self._trying = asyncio.Lock()

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        if command.bounds is None:
            return await self._starter.start(_plain(command), output=output)
        mechanism = await self._chosen(command.bounds)
        if isinstance(mechanism, str):
            raise SandboxUnavailable(f"no sandbox is available on this system: {mechanism}")
        await self._load_all(command.bounds)
        return await mechanism.run(command, command.bounds, output=output)

    async def _load_all(self, bounds: SandboxPolicy) -> None:
        if self._is_loaded or not _surrounds_installation(bounds):
            return
        from parley.sandbox.threads import in_thread

        async with self._loading:
            if not self._is_loaded:
                await in_thread(self._preload)
                self._is_loaded = True

    async def why_unconfined(self, bounds: SandboxPolicy) -> str | None:
        mechanism = await self._chosen(bounds)
        return mechanism if isinstance(mechanism, str) else None

    async def unrestored(self, bounds: SandboxPolicy) -> tuple[str, ...]:
        if self._protected is None:
            return ()
        return await self._protected.unrestored_files([root.path for root in bounds.writable])

    def confine_thread(self, bounds: SandboxPolicy) -> bool:
        if self._platform != "linux":
            return False
        from parley.sandbox.landlock import confine_thread

        return confine_thread(bounds)

    async def report(self, bounds: SandboxPolicy) -> Report:
        """What there is for these bounds; tries out everything."""
        from parley.sandbox.resolved_policy import resolve

        choice = self._choice(bounds)
        tried = [await self._find(name) for name in _MECHANISMS.get(self._platform, ())]
        wanted = [found for found in tried if found.name in choice]
        decisive = next((found for found in wanted if found.mechanism is not None or not found.is_known), None)
        used = None if decisive is None or decisive.mechanism is None else decisive.name
        return Report(
            used=used,
            why_none=None if used else self._complaint(bounds, wanted),
            tried=tuple(Tried(name=each.name, fault=each.fault, facts=each.facts) for each in tried),
            hidden=resolve(SandboxPolicy(hidden=bounds.hidden)).hidden,
        )

    async def close(self) -> None:
        """Kill all that runs, and run nothing more."""
        if self._made_starter is not None:
            await self._made_starter.close()

    @property
    def _starter(self) -> Starter:
        if self._made_starter is None:
            self._made_starter = self._make_starter()
        return self._made_starter

    def _choice(self, bounds: SandboxPolicy) -> Sequence[Name]:
        known = _MECHANISMS.get(self._platform, ())
        return [name for name in known if bounds.mechanism in ("auto", name)]

    async def _chosen(self, bounds: SandboxPolicy) -> ConfinementMechanism | str:
        """The first that works, or why there is none: not a lesser one because nothing is known of a better."""
        tried: list[ProbeResult] = []
        for name in self._choice(bounds):
            found = await self._find(name)
            if found.mechanism is not None:
                self._say_what_it_lacks(name)
                return found.mechanism
            tried.append(found)
            if not found.is_known:
                break
        return self._complaint(bounds, tried)

    def _say_what_it_lacks(self, name: Name) -> None:
        if name in _DETECTS_ONLY and name not in self._said:
            self._said.add(name)
            self._warn(_DETECTS_ONLY[name])

    async def _find(self, name: Name) -> ProbeResult:
        """The mechanism, tried out until it is known whether it works."""
        async with self._trying:
            if name not in self._found:
                from parley.sandbox import mechanisms
                from parley.sandbox.protected_files import ProtectedFiles

                if self._protected is None:
                    self._protected = ProtectedFiles()
                try:
                    found = await mechanisms.probe(name, self._starter, self._protected, home=self._home())
                    self._found[name] = found
                except CommandNotStarted as error:
                    return mechanisms.not_probed(name, error.detail)
            return self._found[name]

    def _complaint(self, bounds: SandboxPolicy, tried: Sequence[ProbeResult]) -> str:
        if tried:
            return "; ".join(f"{found.title}: {found.fault}" for found in tried)
        if self._platform in _MECHANISMS:
            return f"{bounds.mechanism} is not for this system"
        return "there is none for this system; run inside WSL2"


def _surrounds_installation(bounds: SandboxPolicy) -> bool:
    roots = [root.path.rstrip("/") + "/" for root in bounds.writable]
    return any(path.startswith(root) for path in bounds.installed for root in roots)


def _plain(command: Command) -> LaunchSpec:
    return LaunchSpec(
        argv=command.argv,
        cwd=command.cwd,
        env=command.env,
        files=command.files,
        approved=command.approved,
        timeout_seconds=command.timeout_seconds,
    )
