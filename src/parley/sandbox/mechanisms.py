"""Checks whether each sandbox mechanism is available on this system, and whether it actually confines commands."""

from __future__ import annotations

import errno
import re
from typing import Final, Literal, assert_never

from msgspec import Struct
from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.ports.commands import LaunchSpec, Starter
from parley.sandbox.protected_files import ProtectedFiles
from parley.sandbox.self_test import ConfinementMechanism, run_self_test

__all__ = ["Name", "ProbeResult", "not_probed", "probe"]

Name = Literal["bubblewrap", "landlock", "seatbelt"]

_TIMEOUT_SECONDS: Final = 20.0

_TITLES: Final[dict[Name, str]] = {"bubblewrap": "bubblewrap", "landlock": "Landlock", "seatbelt": "Seatbelt"}

_NO_LANDLOCK: Final = {
    errno.ENOSYS: "the kernel does not have it",
    errno.EOPNOTSUPP: "it is disabled in the kernel",
}

_PROC_ERROR: Final = "mount proc"
"""Part of bubblewrap's error message if the kernel does not allow mounting `/proc`, as in many containers."""


class ProbeResult(Struct, frozen=True, kw_only=True):
    """The result of probing one mechanism."""

    name: Name
    title: str
    """The name of the mechanism, for use in a sentence."""
    mechanism: ConfinementMechanism | None = None
    """The mechanism; None if the mechanism does not work on this system."""
    fault: str | None = None
    """The reason why the mechanism does not work, as a part of a sentence; None if the mechanism works."""
    facts: tuple[tuple[str, str], ...] = ()
    """Facts about the mechanism for display, each as a name and a value."""
    is_known: bool = True
    """True if it is known whether the mechanism works; the result is then final. False if another attempt may give
    a different result.
    """


async def probe(name: Name, starter: Starter, protected: ProtectedFiles, *, home: str | None = None) -> ProbeResult:
    """Determine whether a mechanism works, and return the result. The self-test of the mechanism creates its files
    in Parley's `home` if possible.

    Raises:
        CommandNotStarted: the probe itself failed. Another attempt may succeed.
    """
    match name:
        case "bubblewrap":
            return await _bubblewrap(starter, protected, home)
        case "landlock":
            return await _landlock(starter, protected, home)
        case "seatbelt":
            return await _seatbelt(starter, home)
        case unknown:
            assert_never(unknown)


def not_probed(name: Name, why: str) -> ProbeResult:
    """Return the result for a mechanism whose probe failed for the reason `why`."""
    return ProbeResult(name=name, title=_TITLES[name], fault=f"the self-test failed: {why}", is_known=False)


async def _bubblewrap(starter: Starter, protected: ProtectedFiles, home: str | None) -> ProbeResult:
    from parley.sandbox.bubblewrap import OLDEST, Bubblewrap, launcher, supports_size

    found = ProbeResult(name="bubblewrap", title=_TITLES["bubblewrap"])
    path = launcher()
    if path is None:
        return replace(found, fault="it is not installed")
    version = await _version(starter, path)
    facts = (("path", path), ("version", version))
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    if numbers and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return replace(found, fault=f"version {version} of it is installed, and {oldest} is needed", facts=facts)
    has_size_option = supports_size(path, numbers)
    faults: list[str] = []
    for has_proc, proc in ((True, "its own"), (False, "none: the system does not allow mounting it")):
        mechanism = Bubblewrap(
            starter, protected, launcher=path, has_proc=has_proc, has_size_option=has_size_option
        )
        fault = await run_self_test(mechanism, home=home)
        if fault is None:
            return replace(found, mechanism=mechanism, facts=(*facts, ("proc", proc)))
        faults.append(fault)
        if _PROC_ERROR not in fault:
            break
    return replace(found, fault=faults[0], facts=facts)


async def _landlock(starter: Starter, protected: ProtectedFiles, home: str | None) -> ProbeResult:
    from parley.common.landlock import abi_version
    from parley.sandbox.landlock import Landlock
    from parley.sandbox.rights import OLDEST, SCOPES_SINCE

    found = ProbeResult(name="landlock", title=_TITLES["landlock"])
    try:
        abi = abi_version()
    except OSError as error:
        return replace(found, fault=_NO_LANDLOCK.get(error.errno or 0, os_detail(error)))
    signals = "its own" if abi >= SCOPES_SINCE else f"all of the user's: version {SCOPES_SINCE} would be needed"
    facts = (
        ("abi", str(abi)),
        ("processes it can end", signals),
        ("`.git`", "restored after each command: changes are detected, not prevented"),
    )
    if abi < OLDEST:
        return replace(found, fault=f"the kernel has version {abi} of it, and {OLDEST} is needed", facts=facts)
    mechanism = Landlock(starter, protected, abi=abi)
    fault = await run_self_test(mechanism, home=home)
    return replace(found, mechanism=None if fault else mechanism, fault=fault, facts=facts)


async def _seatbelt(starter: Starter, home: str | None) -> ProbeResult:
    from parley.sandbox.seatbelt import LAUNCHER, Seatbelt

    mechanism = Seatbelt(starter)
    fault = await run_self_test(mechanism, home=home)
    return ProbeResult(
        name="seatbelt",
        title=_TITLES["seatbelt"],
        mechanism=None if fault else mechanism,
        fault=fault,
        facts=(("path", LAUNCHER),),
    )


async def _version(starter: Starter, path: str) -> str:
    printed = bytearray()
    start = LaunchSpec(argv=(path, "--version"), cwd="/", env={}, timeout_seconds=_TIMEOUT_SECONDS)
    await starter.start(start, output=lambda _, data: printed.extend(data))
    return printed.decode(errors="replace").strip().removeprefix("bubblewrap ")
