"""Limits the memory and the number of processes of all commands together, if systemd is available.

This module imports only the standard library, because the fork server loads it. The fork server asks systemd to
move the fork server itself into a scope. A scope is a systemd unit for processes that systemd has not started
itself. Processes that the fork server starts later are in the same scope. If systemd is missing, does not create
the scope or does not respond, commands run without these limits. The parameter `root` of the functions is the
directory below which the files of the system are read.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # set as in `typing`, because importing `typing` would take a third of the startup time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Final

__all__ = ["enter", "limits_in", "why_none"]

MEMORY_SHARE: Final = 0.75
"""The maximum share of the memory and of the swap space that all commands together may use. The remaining memory
keeps the server, an editor and a desktop usable.
"""
TASKS: Final = 4096
"""The maximum number of processes and threads of all commands together. The number is large enough for eight
commands that each reach the process limit of bubblewrap, and small enough for systems with low limits.
"""
SYSTEMD_SECONDS: Final = 2.0
"""The maximum time, in seconds, that systemd may take to create the scope. Systemd usually needs milliseconds. The
limit is short because the first command waits for systemd.
"""
POLL_SECONDS: Final = 0.002

BUSCTL: Final = "usr/bin/busctl"
"""The path of `busctl` below the root directory. The program is not looked up in PATH, so that only root can
replace it.
"""
CONTROLLERS: Final = ("memory", "pids")
LIMITS: Final = ("memory.max", "memory.high", "memory.swap.max", "cpu.max", "io.max")
"""Names of the control group files that contain a limit only if an administrator has set one. In a group with such
a limit, Parley creates no scope, because the commands would escape the limit.
"""
UNITS: Final = (".service", ".scope", ".slice")
"""Name suffixes of the control groups that belong to a unit of systemd."""
USER_MANAGER: Final = "user@"
"""The name prefix of the services in which systemd manages the processes of a user. In any other service, Parley
creates no scope, so that the limits and the shutdown of that service also apply to commands.
"""
UNIT: Final = "parley-commands-"
"""The name prefix of the scopes that Parley creates."""


def why_none(root: str) -> str | None:
    """Return the reason why no scope can be created for the commands; None if a scope can be created. The files of
    the system are read below the directory `root`.
    """
    # A systemd outside of this container would confuse the id of this process with the id of another process.
    if _read(root, "proc/1/comm") != "systemd":
        return "systemd is not the first process here"
    if not os.access(os.path.join(root, BUSCTL), os.X_OK):
        return f"there is no /{BUSCTL}"
    bus, managed = _manager()
    if not os.path.exists(os.path.join(root, bus)):
        return f"there is no message bus at /{bus}"
    controllers = _read(root, f"sys/fs/cgroup/{managed}cgroup.controllers").split()
    if missing := [name for name in CONTROLLERS if name not in controllers]:
        return f"systemd has no controller for {' and '.join(missing)} in /sys/fs/cgroup/{managed}"
    groups = list(_groups(_own_group(root)))
    unit = next((group for group in groups if group.endswith(UNITS)), "")
    if unit.endswith(".service") and not os.path.basename(unit).startswith(USER_MANAGER):
        return f"{unit} is a service, and commands stay in it"
    for group in groups:
        if name := _limit_of(root, group):
            return f"{name} of {group} is already set, and commands stay in that group"
    return None


def enter(root: str) -> bool:
    """Ask systemd to move the current process into a new scope with limits. Return whether the process is in the
    scope. The files of the system are read below the directory `root`.
    """
    amounts = _amounts(root)
    if why_none(root) is not None or not amounts.get("MemTotal"):
        return False
    until = time.monotonic() + SYSTEMD_SECONDS
    unit = f"{UNIT}{os.getpid()}-{os.urandom(4).hex()}.scope"
    properties = (
        ("Description", "s", "Commands of Parley"),
        ("MemoryMax", "t", _share(amounts["MemTotal"])),
        ("MemorySwapMax", "t", _share(amounts.get("SwapTotal", 0))),
        ("TasksMax", "t", str(TASKS)),
        ("CollectMode", "s", "inactive-or-failed"),
        ("PIDs", "au", "1", str(os.getpid())),
    )
    # Without OOMPolicy, a newer systemd ends the whole scope when the kernel kills one of its processes for lack of
    # memory. An older systemd does not know this property.
    for more in ((("OOMPolicy", "s", "continue"),), ()):
        if _asked(root, unit, (*properties, *more), until):
            return _happens(lambda: _own_group(root).endswith(f"/{unit}"), until)
    return False


def limits_in(group: str, root: str = "/") -> tuple[int, int] | None:
    """Return two limits of the control group `group`: the memory in bytes, and the number of processes. Return None
    if Parley did not create the group, or if one of the limits is missing. The limits are read below the directory
    `root`.
    """
    if not os.path.basename(group).startswith(UNIT):
        return None
    memory, tasks = (_read(root, f"sys/fs/cgroup{group}/{name}") for name in ("memory.max", "pids.max"))
    return (int(memory), int(tasks)) if memory.isdigit() and tasks.isdigit() else None


# --- requests to systemd -----------------------------------------------------------------


def _manager() -> tuple[str, str]:
    """Return the path of the D-Bus socket for requests to systemd, and the path of the control group below which
    systemd creates units. The first path is relative to the root directory, and the second path is relative to
    `/sys/fs/cgroup`.

    For root, the paths belong to the system bus and the system instance of systemd, because root usually has no
    user instance. For other users, the paths belong to the D-Bus user bus and the user instance of the user.
    """
    user = os.geteuid()
    if user == 0:
        return "run/dbus/system_bus_socket", ""
    return f"run/user/{user}/bus", f"user.slice/user-{user}.slice/user@{user}.service/"


def _asked(root: str, unit: str, properties: Sequence[Sequence[str]], until: float) -> bool:
    """Ask systemd to create the scope `unit` with the given properties. Return whether systemd has confirmed the
    request before the deadline `until`.
    """
    bus, _ = _manager()
    words = (
        *("busctl", f"--address=unix:path={os.path.join(root, bus)}", "call"),
        *("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
        *("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", str(len(properties))),
        *(word for each in properties for word in each),
        "0",
    )
    quiet = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in range(3)]
    try:
        pid = os.posix_spawn(os.path.join(root, BUSCTL), words, {}, file_actions=quiet)
    except OSError:
        return False
    status = -1

    def ended() -> bool:
        nonlocal status
        found, status = os.waitpid(pid, os.WNOHANG)
        return found == pid

    if _happens(ended, until):
        return status == 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _amounts(root: str) -> dict[str, int]:
    """Return the memory sizes in `/proc/meminfo`, in bytes, keyed by the names in the file."""
    lines = [line.split() for line in _read(root, "proc/meminfo").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def _share(amount: int) -> str:
    return str(int(amount * MEMORY_SHARE))


def _happens(condition: Callable[[], bool], until: float) -> bool:
    """Poll a condition until it is true or the deadline `until` passes. Return whether the condition is true.
    `until` is a monotonic time in seconds.
    """
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return met


# --- control groups ----------------------------------------------------------------------


def _own_group(root: str) -> str:
    """Return the path of the current process's control group (version 2)."""
    return _read(root, "proc/self/cgroup").rpartition("0::")[2]


def _groups(group: str) -> Iterator[str]:
    """Yield the path of a control group and the paths of all control groups that contain it."""
    while group.strip("/"):
        yield group
        group = os.path.dirname(group)


def _limit_of(root: str, group: str) -> str | None:
    """Return the file name of a limit that is set in a control group; None if no limit is set."""
    for name in LIMITS:
        if _read(root, f"sys/fs/cgroup{group}/{name}").split()[:1] not in ([], ["max"]):
            return name
    # A `cpuset` that allows all processors is not a limit.
    used, there = (_read(root, f"sys/fs/cgroup{each}/cpuset.cpus.effective") for each in (group, ""))
    return "cpuset.cpus" if _read(root, f"sys/fs/cgroup{group}/cpuset.cpus") and used != there else None


def _read(root: str, path: str) -> str:
    """Return the content of a short file without its final newline; an empty string if the file cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="ascii", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""
