"""Running one command, from its start to the end of everything it started, within bounds or without.

`CommandRunner` is what the tools use. `Starter` is beneath it: whoever starts processes and knows no
bounds, only how a command is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from parley.config.types import Mechanism
from parley.wire.events import OutputStream
from parley.wire.text import listed, quoted

__all__ = [
    "Approved",
    "Command",
    "CommandResult",
    "CommandRunner",
    "LaunchSpec",
    "Mount",
    "Output",
    "Restriction",
    "Rule",
    "SandboxPolicy",
    "Starter",
    "WritableRoot",
    "unrestored_reason",
]

Output = Callable[[OutputStream, bytes], None]
"""Called with what a command says, as it is read."""


# --- what may be done ------------------------------------------------------------------


class WritableRoot(Struct, frozen=True, kw_only=True):
    """A directory in which may be written, as it was when it was chosen."""

    path: str
    """Absolute, without links."""
    device: int
    inode: int


class SandboxPolicy(Struct, frozen=True, kw_only=True):
    """What a confined command may do. It may read, run programs and compute; what else, is said here."""

    writable: tuple[WritableRoot, ...] = ()
    """All that is in them, but not what is protected there, such as `.git`."""
    network: bool = False
    unix_sockets: bool = False
    """Whether it may use named sockets of this computer, and so whoever listens there."""
    hidden: tuple[str, ...] = ()
    """Absolute paths that it cannot read, as far as they are there."""
    installed: tuple[str, ...] = ()
    """Absolute paths where Parley itself is installed: they stay read-only, also within the roots."""
    mechanism: Mechanism = "auto"
    """What is to keep it within them."""


class Approved(Struct, frozen=True, kw_only=True):
    """The directory and the program with which a person approved a command, as device and inode; (0, 0): none."""

    directory: tuple[int, int]
    """The working directory."""
    program: tuple[int, int]
    """The file that its first word leads to."""


class Command(Struct, frozen=True, kw_only=True):
    """A program with its words; no shell stands in between."""

    argv: tuple[str, ...]
    cwd: str
    """Absolute."""
    env: Mapping[str, str]
    """All of it: nothing is added."""
    timeout_seconds: float
    bounds: SandboxPolicy | None = None
    """None: it may do what the user may."""
    files: tuple[bytes, ...] = ()
    """What the program finds in the descriptors 3, 4, ..., each to be read from its beginning."""
    approved: Approved | None = None
    """For a command without bounds: the only directory and program that it may start with."""
    accepted: tuple[str, ...] = ()
    """Paths that `CommandRunner.unrestored` returned and that a person has accepted as they are."""


class CommandResult(Struct, frozen=True, kw_only=True):
    """How a command ended; exactly one of the first three says so."""

    exit_code: int | None = None
    signal: int | None = None
    """What killed it, when that was not us."""
    timed_out: bool = False
    seconds: float
    remarks: tuple[str, ...] = ()
    """Sentences on what it did to something protected, and what became of that; its stderr ends with them."""


class CommandRunner(Protocol):
    """Whatever can run commands, and keep them within bounds."""

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        """Run it to its end; `output` is called with what it says, as it is read, and not after the return.

        When this returns or raises, no process of the command is left, unless an unconfined command acted against
        its supervisor. A process outside that holds its pipes delays the return by half a second at most.
        Cancelling kills all of it and raises within that time too, or when the protected files are restored.

        Raises:
            CommandNotStarted: there was nothing to run, or the system refused.
            CommandReplaced: its directory or program is not the approved one; nothing of it has run.
            SandboxUnavailable: it could not be kept within its bounds; nothing of it has run.
        """
        ...

    async def why_unconfined(self, bounds: SandboxPolicy) -> str | None:
        """Why this system cannot keep a command within these bounds; None: it can.

        A part of a sentence, for whoever has to do without. The first call tries it out, which takes
        a moment.
        """
        ...

    async def unrestored(self, bounds: SandboxPolicy) -> tuple[str, ...]:
        """Return the protected files in the roots that an earlier command changed and that could not be restored.

        A command in these roots does not start until a person has accepted them (`Command.accepted`).
        """
        ...

    def confine_thread(self, bounds: SandboxPolicy) -> bool:
        """From here on the calling thread, and what it starts, writes only where the bounds allow.

        False: this system has no means for that. To be called in a thread that ends soon after.

        Raises:
            SandboxUnavailable: it has, and they failed.
        """
        ...


def unrestored_reason(paths: Sequence[str]) -> str:
    """Say why a command that may write to these paths needs the approval of a person."""
    return f"an earlier command changed protected files that could not be restored: {listed([*map(quoted, paths)])}"


# --- how it is started -----------------------------------------------------------------


class Rule(Struct, frozen=True):
    """What Landlock allows below a path, or to a path that is a file."""

    path: str
    rights: int


class Restriction(Struct, frozen=True, kw_only=True):
    """What a process gives up for good before it becomes the command. A right that is handled and
    granted by no rule is gone."""

    handled_files: int
    handled_network: int
    scoped: int
    rules: tuple[Rule, ...]
    """For paths that are there; one that is gone by then is left out."""
    seccomp: bytes
    """A program of the kernel's packet filter, as `struct sock_filter`s; empty: none."""


class Mount(Struct, frozen=True, kw_only=True):
    """What a launcher lays over a place. Paths are absolute, and have no links in them."""

    place: str
    source: str | None
    """What is seen there, with all that is mounted in it; None: a file system of the launcher's own."""
    writable: bool


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """How a command is started: by its own words, or by those of a launcher around it."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    files: tuple[bytes, ...] = ()
    """What the program finds in the descriptors 3, 4, ..., each to be read from its beginning."""
    reports: bool = False
    """It is a launcher: in the descriptor behind those it says, in the words of bubblewrap's
    `--json-status-fd`, that it has started the command and with which code that has ended."""
    mounts: tuple[Mount, ...] = ()
    """All that such a launcher mounts, outer places first, `/` and `/dev` among them; empty: that is not looked
    at. Behind these mounts it reads from the next descriptor, as with `--block-fd`, before it starts the
    command. It finds something there when they have been looked at, and all are what they are to be."""
    restriction: Restriction | None = None
    approved: Approved | None = None
    timeout_seconds: float


class Starter(Protocol):
    """Whatever can start a process and see to the end of all that comes of it."""

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        """As `CommandRunner.run`, without a thought to what the process may do.

        Raises:
            CommandNotStarted: there was nothing to run, or the system refused.
            CommandReplaced: its directory or program is not the approved one; nothing of it has run.
            SandboxUnavailable: the restriction could not be laid on, the launcher has mounted something else,
                or has ended without having started the command; nothing of it has run.
        """
        ...

    async def close(self) -> None:
        """Kill all that runs, and run nothing more."""
        ...
