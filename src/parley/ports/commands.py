"""The port of commands: runs a command, in a sandbox or without, until everything that it started has ended.

The tools use a `CommandRunner`. It uses a `Starter`, which starts processes and knows nothing of sandbox policies.
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
"""Called with the output of a command, as it is read."""


# --- policies and commands---------------------------------------------------------------


class WritableRoot(Struct, frozen=True, kw_only=True):
    """A writable directory, with its identity when it was chosen."""

    path: str
    """Absolute, without symbolic links."""
    device: int
    inode: int


class SandboxPolicy(Struct, frozen=True, kw_only=True):
    """What a sandboxed command may do besides reading, running programs and computing."""

    writable: tuple[WritableRoot, ...] = ()
    """Directories with writable contents, except protected files such as `.git`."""
    network: bool = False
    unix_sockets: bool = False
    """True if the command may connect to named Unix sockets, and so use the services that listen there."""
    hidden: tuple[str, ...] = ()
    """Absolute paths that the command cannot read, if they exist."""
    installed: tuple[str, ...] = ()
    """Absolute paths where Parley is installed. They are read-only, even below a writable root."""
    mechanism: Mechanism = "auto"
    """The sandbox mechanism."""


class Approved(Struct, frozen=True, kw_only=True):
    """The directory and the program with which a person approved a command, as device and inode; (0, 0): none."""

    directory: tuple[int, int]
    """The working directory."""
    program: tuple[int, int]
    """The file of the program that its first word names."""


class Command(Struct, frozen=True, kw_only=True):
    """A program with its arguments, run without a shell."""

    argv: tuple[str, ...]
    cwd: str
    """Absolute."""
    env: Mapping[str, str]
    """The complete environment."""
    timeout_seconds: float
    bounds: SandboxPolicy | None = None
    """The sandbox policy; None for no sandbox."""
    files: tuple[bytes, ...] = ()
    """The contents of the descriptors 3, 4, ..., each positioned at its beginning."""
    approved: Approved | None = None
    """For a command without a sandbox: it may start only with this directory and program."""
    accepted: tuple[str, ...] = ()
    """Paths that `CommandRunner.unrestored` returned and that a person has accepted as they are."""


class CommandResult(Struct, frozen=True, kw_only=True):
    """How a command ended: exactly one of the first three fields is set."""

    exit_code: int | None = None
    signal: int | None = None
    """The signal that killed it, unless the server sent it."""
    timed_out: bool = False
    seconds: float
    remarks: tuple[str, ...] = ()
    """Sentences about changes to protected files and their restoration. They are also at the end of its stderr."""


class CommandRunner(Protocol):
    """Runs commands, in a sandbox if they have a policy."""

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        """Run a command to its end. `output` is called as its output is read, and not after the return.

        When this returns or raises, no process of the command is left, unless an unconfined command attacked its
        supervisor. Another process that holds its pipes delays the return by at most half a second. A cancellation
        kills all its processes; it is raised within half a second, or when protected files are restored.

        Raises:
            CommandNotStarted: the program does not exist, or the system refused to start it.
            CommandReplaced: its directory or program is not the approved one; nothing of it has run.
            SandboxUnavailable: the policy cannot be enforced; nothing of it has run.
        """
        ...

    async def why_unconfined(self, bounds: SandboxPolicy) -> str | None:
        """Return why this system cannot enforce a policy, as a part of a sentence; None if it can.

        The first call runs a self-test, which takes a moment.
        """
        ...

    async def unrestored(self, bounds: SandboxPolicy) -> tuple[str, ...]:
        """Return the protected files in the roots that an earlier command changed and that could not be restored.

        A command in these roots does not start until a person has accepted them (`Command.accepted`).
        """
        ...

    def confine_thread(self, bounds: SandboxPolicy) -> bool:
        """Restrict the calling thread, and the threads that it starts, to writing where the policy allows.

        Return False if this system cannot do that. The thread should end soon afterwards.

        Raises:
            SandboxUnavailable: the system supports this, but it failed.
        """
        ...


def unrestored_reason(paths: Sequence[str]) -> str:
    """Return why a command that may write to these paths needs the approval of a person."""
    return f"an earlier command changed protected files that could not be restored: {listed([*map(quoted, paths)])}"


# --- starting processes ----------------------------------------------------------------


class Rule(Struct, frozen=True):
    """The rights that Landlock grants below a directory, or to a file."""

    path: str
    rights: int


class Restriction(Struct, frozen=True, kw_only=True):
    """The rights that a process gives up irrevocably before it executes the command. It loses every handled
    right that no rule grants.
    """

    handled_files: int
    handled_network: int
    scoped: int
    rules: tuple[Rule, ...]
    """The rules of paths that exist; one that does not exist any more is skipped."""
    seccomp: bytes
    """A BPF program, as an array of `struct sock_filter`; empty for none."""


class Mount(Struct, frozen=True, kw_only=True):
    """A mount that a launcher makes. Paths are absolute, without symbolic links."""

    place: str
    source: str | None
    """The path that is mounted there, with the mounts below it; None for a new file system."""
    writable: bool


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """How a command is started: directly, or by a launcher."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    files: tuple[bytes, ...] = ()
    """The contents of the descriptors 3, 4, ..., each positioned at its beginning."""
    reports: bool = False
    """True for a launcher. On the descriptor after `files` it reports, as bubblewrap does with
    `--json-status-fd`, that it has started the command, and its exit code."""
    mounts: tuple[Mount, ...] = ()
    """All mounts of the launcher, outer ones first, with `/` and `/dev`; empty if they are not checked. After
    mounting, the launcher reads from the next descriptor, as with `--block-fd`, before it starts the command.
    There is data to read once all mounts are checked and correct."""
    restriction: Restriction | None = None
    approved: Approved | None = None
    timeout_seconds: float


class Starter(Protocol):
    """Starts a process, and ends all processes that descend from it."""

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        """Run a process as `CommandRunner.run` does, without a policy.

        Raises:
            CommandNotStarted: the program does not exist, or the system refused to start it.
            CommandReplaced: its directory or program is not the approved one; nothing of it has run.
            SandboxUnavailable: the restriction failed, a mount of the launcher is wrong, or the launcher ended
                without starting the command; nothing of it has run.
        """
        ...

    async def close(self) -> None:
        """Kill all processes, and start no more."""
        ...
