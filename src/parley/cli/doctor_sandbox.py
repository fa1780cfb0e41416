"""The part of `parley doctor` that checks the sandbox."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from parley.cli.doctor_report import DoctorReport
from parley.config.types import Settings
from parley.errors import CommandNotStarted

__all__ = ["check_sandbox"]

PROBLEM: Final = "commands cannot be confined"


class _KernelSetting(NamedTuple):
    """A kernel setting that determines whether bubblewrap can create its namespaces."""

    name: str
    blocking_value: str
    """The value that prevents bubblewrap from creating its namespaces."""
    advice: str
    """What the user can do if the setting has this value."""

    def value(self) -> str | None:
        """Return the current value of the kernel setting; None if this system does not have the setting."""
        try:
            with open(f"/proc/sys/{self.name.replace('.', '/')}", encoding="ascii") as file:
                return file.read().strip()
        except (OSError, ValueError):
            return None


KERNEL_SETTINGS: Final = (
    _KernelSetting(
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "give bubblewrap an AppArmor profile that allows user namespaces (Ubuntu from 23.10 on): the package "
        "apparmor-profiles has one, bwrap-userns-restrict in /usr/share/apparmor/extra-profiles; copy it to "
        "/etc/apparmor.d and load it with `apparmor_parser -r`",
    ),
    _KernelSetting(
        "kernel.unprivileged_userns_clone",
        "0",
        "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`",
    ),
    _KernelSetting(
        "user.max_user_namespaces", "0", "allow user namespaces: `sysctl user.max_user_namespaces=15000`"
    ),
)

OTHER_ADVICE: Final = (
    "let bubblewrap create user namespaces: in a container this needs a seccomp profile with unshare and mount"
)
"""The advice if bubblewrap does not work although no kernel setting prevents it."""


async def check_sandbox(report: DoctorReport, settings: Settings | None) -> None:
    """Check the mechanisms that confine commands, with the sandbox policy of `settings`, or with the default policy
    if `settings` is None.
    """
    from parley.app.standalone import sandbox_report

    try:
        found, limits = await sandbox_report(settings)
    except CommandNotStarted as error:
        report.fail("sandbox", f"none: no command can be started: {error}", problem=PROBLEM)
        return
    for tried in found.tried:
        facts = ", ".join(f"{name}: {value}" for name, value in tried.facts)
        state = "works" if tried.fault is None else f"does not work: {tried.fault}"
        report.info(tried.name, f"{state}; {facts}" if facts else state)
    for setting in KERNEL_SETTINGS:
        if (value := setting.value()) is not None:
            report.info("namespaces", f"{setting.name} is {value}")
    report.info("limits", limits)
    if settings is not None:
        _report_hidden(report, found.hidden, settings.sandbox.hidden_paths)
    chosen = "auto" if settings is None else settings.sandbox.mechanism
    because = "the first that works" if chosen == "auto" else "chosen by the settings"
    if found.used:
        report.ok("sandbox", f"{found.used}, {because}")
    else:
        report.fail("sandbox", f"none: {found.why_none}", problem=PROBLEM)
    faults = {tried.name: tried.fault for tried in found.tried if tried.fault is not None}
    for advice in _advice(faults, is_installed=any("path" in dict(tried.facts) for tried in found.tried)):
        report.advise(advice)


def _report_hidden(report: DoctorReport, hidden: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [path for path in wanted if not os.path.exists(path)]
    if hidden:
        report.info("hidden", f"commands cannot read: {', '.join(hidden)}")
    if missing:
        report.info("missing", f"hidden paths that do not exist: {', '.join(missing)}")


def _advice(faults: Mapping[str, str], *, is_installed: bool) -> Iterator[str]:
    if sys.platform not in ("linux", "darwin"):
        yield "run Parley inside WSL2: Windows itself cannot confine commands"
        return
    if platform.release().endswith("-Microsoft"):
        yield "use WSL2: this is WSL1, whose kernel cannot confine commands (`wsl --set-version NAME 2`)"
        return
    if "bubblewrap" in faults and (not is_installed or "is needed" in faults["bubblewrap"]):
        yield (
            "install bubblewrap, 0.4 or newer: `apt install bubblewrap`, `dnf install bubblewrap` or "
            "`apk add bubblewrap`"
        )
    elif "bubblewrap" in faults:
        advice = [one.advice for one in KERNEL_SETTINGS if one.value() == one.blocking_value]
        yield from advice or [OTHER_ADVICE]
    if "landlock" in faults:
        yield "for Landlock: use kernel 6.2 or newer, with `landlock` in /sys/kernel/security/lsm"
