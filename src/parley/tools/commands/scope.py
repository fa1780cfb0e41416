"""Limits of memory and processes for all commands together, where systemd can set them.

Needs the standard library alone. The fork server asks systemd to move it into a scope, a unit around
processes that somebody else has started; whatever it forks from then on is in there as well. Knows nothing of
commands, and is only ever a help: where there is no such systemd, or it refuses or does not
answer, nothing is limited and everything else is as before.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # the word of `typing`, whose import would take a third of the time to start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Final

__all__ = ["enter", "limits_in", "why_none"]

MEMORY_SHARE: Final = 0.75
"""Of the computer's memory and of its swap: the rest is enough for the server, an editor and a desktop to go on."""
TASKS: Final = 4096
"""Processes and threads of all commands: eight that each use all that bubblewrap allows, and no more than systems
have room for that allow few."""
PATIENCE_SECONDS: Final = 2.0
"""How long systemd may take, which needs some milliseconds. The first command waits for it."""
LOOK_SECONDS: Final = 0.002

ASKER: Final = "usr/bin/busctl"
"""By its full name: nobody but root can put it there."""
CONTROLLERS: Final = ("memory", "pids")
SET_BY_OTHERS: Final = ("memory.max", "memory.high", "memory.swap.max", "cpu.max", "io.max")
"""Limits that nobody has unless somebody gave them to him."""
UNITS: Final = (".service", ".scope", ".slice")
"""How the names of control groups end that systemd has made for a unit."""
MANAGERS: Final = "user@"
"""How the names of the services begin in which systemd manages the processes of a user."""
UNIT: Final = "parley-commands-"
"""How the names of our scopes begin."""


def why_none(root: str) -> str | None:
    """Why systemd is not asked on the computer whose files are below `root`; None: it is."""
    # Who it is decides what a process id means to it: within a container, nobody else's would be ours.
    if _read(root, "proc/1/comm") != "systemd":
        return "systemd is not the first process here"
    if not os.access(os.path.join(root, ASKER), os.X_OK):
        return f"there is no /{ASKER}"
    bus, managed = _manager()
    if not os.path.exists(os.path.join(root, bus)):
        return f"there is no message bus at /{bus}"
    controllers = _read(root, f"sys/fs/cgroup/{managed}cgroup.controllers").split()
    if missing := [name for name in CONTROLLERS if name not in controllers]:
        return f"systemd has no controller of {' and '.join(missing)} in /sys/fs/cgroup/{managed}"
    groups = list(_groups(_own_group(root)))
    unit = next((group for group in groups if group.endswith(UNITS)), "")
    if unit.endswith(".service") and not os.path.basename(unit).startswith(MANAGERS):
        return f"{unit} is a service, and they stay there"
    for group in groups:
        if name := _limit_of(root, group):
            return f"{name} of {group} is set already, and they stay there"
    return None


def enter(root: str) -> bool:
    """Have this process moved into a scope with limits; whether it is there."""
    amounts = _amounts(root)
    if why_none(root) is not None or not amounts.get("MemTotal"):
        return False
    until = time.monotonic() + PATIENCE_SECONDS
    unit = f"{UNIT}{os.getpid()}-{os.urandom(4).hex()}.scope"
    properties = (
        ("Description", "s", "Commands of Parley"),
        ("MemoryMax", "t", _share(amounts["MemTotal"])),
        ("MemorySwapMax", "t", _share(amounts.get("SwapTotal", 0))),
        ("TasksMax", "t", str(TASKS)),
        ("CollectMode", "s", "inactive-or-failed"),
        ("PIDs", "au", "1", str(os.getpid())),
    )
    # A newer systemd ends the whole scope when one of its processes was out of memory, unless it is told not
    # to; an older one does not know the word.
    for more in ((("OOMPolicy", "s", "continue"),), ()):
        if _asked(root, unit, (*properties, *more), until):
            return _happens(lambda: _own_group(root).endswith(f"/{unit}"), until)
    return False


def limits_in(group: str, root: str = "/") -> tuple[int, int] | None:
    """The bytes of memory and the number of processes that such a control group allows; None: it is not ours."""
    if not os.path.basename(group).startswith(UNIT):
        return None
    memory, tasks = (_read(root, f"sys/fs/cgroup{group}/{name}") for name in ("memory.max", "pids.max"))
    return (int(memory), int(tasks)) if memory.isdigit() and tasks.isdigit() else None


# --- asking ------------------------------------------------------------------------------


def _manager() -> tuple[str, str]:
    """Where the systemd listens that we may ask, and where the control groups are that it manages.

    That is the one of the user. Root has none of his own as a rule, and may ask the one of the system.
    """
    user = os.geteuid()
    if user == 0:
        return "run/dbus/system_bus_socket", ""
    return f"run/user/{user}/bus", f"user.slice/user-{user}.slice/user@{user}.service/"


def _asked(root: str, unit: str, properties: Sequence[Sequence[str]], until: float) -> bool:
    """Ask for the scope; whether systemd has said yes in time."""
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
        pid = os.posix_spawn(os.path.join(root, ASKER), words, {}, file_actions=quiet)
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
    """What the computer has of memory and the like, in bytes."""
    lines = [line.split() for line in _read(root, "proc/meminfo").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def _share(amount: int) -> str:
    return str(int(amount * MEMORY_SHARE))


def _happens(what: Callable[[], bool], until: float) -> bool:
    """Whether it is so before that moment, or then."""
    while not (so := what()) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return so


# --- control groups ----------------------------------------------------------------------


def _own_group(root: str) -> str:
    """Our place among the control groups of version 2."""
    return _read(root, "proc/self/cgroup").rpartition("0::")[2]


def _groups(group: str) -> Iterator[str]:
    """This one and all around it."""
    while group.strip("/"):
        yield group
        group = os.path.dirname(group)


def _limit_of(root: str, group: str) -> str | None:
    """What somebody has limited in a control group."""
    for name in SET_BY_OTHERS:
        if _read(root, f"sys/fs/cgroup{group}/{name}").split()[:1] not in ([], ["max"]):
            return name
    # Some set it to all processors that there are, which limits nothing.
    used, there = (_read(root, f"sys/fs/cgroup{each}/cpuset.cpus.effective") for each in (group, ""))
    return "cpuset.cpus" if _read(root, f"sys/fs/cgroup{group}/cpuset.cpus") and used != there else None


def _read(root: str, path: str) -> str:
    """A short file of the system's, without the end of its line; nothing where it cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="ascii", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""
