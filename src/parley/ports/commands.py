"""The interface for running a command, with or without a sandbox, until all its processes have ended.

The tools use a `CommandRunner`, which applies sandbox policies. The runner uses a `Starter`, which only starts and
ends processes.
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
"""A function that receives the output of a command. It is called with the stream and the bytes of each piece of
output as soon as the piece is read.
"""


# --- policies and commands --------------------------------------------------------------


class WritableRoot(Struct, frozen=True, kw_only=True):
    """A writable directory, with the device and inode numbers that it had when the sandbox policy was created. If
    the directory was replaced after that, commands with this policy do not start.
    """

    path: str
    """The absolute path, without symbolic links."""
    device: int
    inode: int


class SandboxPolicy(Struct, frozen=True, kw_only=True):
    """The rights of a sandboxed command. Reading files and running programs is always allowed, except for the paths
    in `hidden`.
    """

    writable: tuple[WritableRoot, ...] = ()
    """The directories whose contents are writable, except protected files such as `.git`."""
    network: bool = False
    unix_sockets: bool = False
    """True if the command may connect to Unix sockets in the file system, and thus use the services that listen on
    them.
    """
    hidden: tuple[str, ...] = ()
    """Absolute paths of files and directories whose contents the command cannot read. The paths need not exist."""
    installed: tuple[str, ...] = ()
    """Absolute paths where Parley is installed. They are read-only, even inside a writable root."""
    mechanism: Mechanism = "auto"
    """The sandbox mechanism, such as bubblewrap or Landlock; `auto` selects one that works on this system."""


class Approved(Struct, frozen=True, kw_only=True):
    """The working directory and the program of a command at the time when a person approved the command. Each is
    identified by its device and inode numbers; (0, 0) means that it did not exist.
    """

    directory: tuple[int, int]
    """The device and inode numbers of the command's working directory."""
    program: tuple[int, int]
    """The device and inode numbers of the executable file that the first word of the command names."""


class Command(Struct, frozen=True, kw_only=True):
    """A program and its arguments, which no shell interprets."""

    argv: tuple[str, ...]
    cwd: str
    """The absolute path of the working directory."""
    env: Mapping[str, str]
    """The complete environment of the command."""
    timeout_seconds: float
    policy: SandboxPolicy | None = None
    """The sandbox policy; None means no sandbox."""
    files: tuple[bytes, ...] = ()
    """The contents of files that the command can read from the descriptors 3, 4, and so on. The offset of each
    descriptor is at the beginning of its file.
    """
    approved: Approved | None = None
    """The working directory and the program that a person approved, for a command that runs without a sandbox. If
    the directory or the program was replaced after the approval, the command does not start. None means that the
    directory and the program are not checked.
    """
    accepted: tuple[str, ...] = ()
    """The protected files that could not be restored (`CommandRunner.unrestored`) but that a person has accepted in
    their current state, so that the command can start.
    """


class CommandResult(Struct, frozen=True, kw_only=True):
    """The result of a command. Exactly one of the fields `exit_code`, `signal` and `timed_out` is set."""

    exit_code: int | None = None
    signal: int | None = None
    """The number of the signal that killed the command; None if no signal killed the command, or if the server
    killed it because of the timeout.
    """
    timed_out: bool = False
    seconds: float
    remarks: tuple[str, ...] = ()
    """Sentences that report which protected files the command changed, and whether the files were restored; empty
    if the command changed no protected files. The same sentences are appended to the command's stderr.
    """


class CommandRunner(Protocol):
    """Runs commands. A command with a policy runs in a sandbox that enforces the policy; a command without a policy
    runs without a sandbox.
    """

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        """Run a command until all its processes have ended, and return its result. `output` is called with each
        piece of output as soon as it is read, but never after this call has returned.

        When the call returns or raises, all processes of the command are dead, unless a command without a sandbox
        has attacked its supervisor process. If another process keeps the command's pipes open, the output is read
        for at most half a second after the command's processes are dead.

        A cancellation kills all processes of the command and restores protected files. The call then raises
        `CancelledError`, usually within half a second of the cancellation.

        Raises:
            CommandNotStarted: the program does not exist, or the operating system could not start it.
            CommandReplaced: the directory or the program is not the approved one; the command has not run.
            SandboxUnavailable: the policy cannot be enforced; the command has not run.
        """
        ...

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        """Return the reason why this system cannot enforce `policy`, as a clause for use in a longer sentence; None
        if the system can enforce it. The first call takes longer, because it runs a self-test of the sandbox.
        """
        ...

    async def unrestored(self, policy: SandboxPolicy) -> tuple[str, ...]:
        """Return the protected files that an earlier command changed and that could not be restored. Only files in
        the writable roots of `policy` are returned.

        A command with these writable roots does not start until a person has accepted the files
        (`Command.accepted`).
        """
        ...

    def confine_thread(self, policy: SandboxPolicy) -> bool:
        """Allow the calling thread, and the threads that it starts, to write only where `policy` allows it.

        Return True if the restriction was applied. It is permanent, so the thread should end soon afterwards.
        Return False, and restrict nothing, if this system does not support such a restriction.

        Raises:
            SandboxUnavailable: the system supports the restriction, but applying it failed.
        """
        ...


def unrestored_reason(paths: Sequence[str]) -> str:
    """Return the reason why a command that may write to `paths` needs a person's approval. `paths` are protected
    files that could not be restored (`CommandRunner.unrestored`).
    """
    return f"an earlier command changed protected files that could not be restored: {listed([*map(quoted, paths)])}"


# --- starting processes ----------------------------------------------------------------


class Rule(Struct, frozen=True):
    """A Landlock rule: the rights that a process keeps on a file, or on everything below a directory."""

    path: str
    rights: int


class Restriction(Struct, frozen=True, kw_only=True):
    """The rights that a process gives up permanently before it executes a command.

    The process loses every right in `handled_files` and `handled_network` that no rule grants. `scoped` is the set
    of Landlock scopes. These three fields are bit masks as in the Landlock system calls.
    """

    handled_files: int
    handled_network: int
    scoped: int
    rules: tuple[Rule, ...]
    """The rules that grant rights. A rule whose path no longer exists is ignored."""
    seccomp: bytes
    """A seccomp filter: a BPF program as an array of `struct sock_filter`; empty if no filter is applied."""


class Mount(Struct, frozen=True, kw_only=True):
    """A mount that a launcher makes. Its paths are absolute and without symbolic links."""

    place: str
    """The mount point."""
    source: str | None
    """The path that is mounted, together with the mounts below it; None for a new, empty file system."""
    writable: bool


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """The specification for starting a command, either directly or through a launcher, which is a program such as
    bubblewrap that starts the command.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    files: tuple[bytes, ...] = ()
    """The contents of files that the command can read from the descriptors 3, 4, and so on. The offset of each
    descriptor is at the beginning of its file.
    """
    reports: bool = False
    """True if `argv` is a launcher that reports the start of the command and its exit code on the descriptor after
    those of `files`, as bubblewrap does with `--json-status-fd`. False if the command is started directly.
    """
    mounts: tuple[Mount, ...] = ()
    """All mounts that the launcher must make, including `/` and `/dev`; empty if the mounts are not checked. Each
    mount comes after the mounts that contain it.

    After mounting, the launcher waits for data on the descriptor after the one for its reports, as bubblewrap does
    with `--block-fd`. `Starter.start` writes this data when it has checked that all mounts are correct.
    """
    max_processes: int | None = None
    """The maximum number of processes of the command; None if there is no limit.

    The limit has an effect only if `mounts` is not empty, because it is set while the launcher waits for the
    check of its mounts. The limit counts only the processes in the user namespace of the launcher. If this
    field is not None, the command also writes no core files.
    """
    restriction: Restriction | None = None
    approved: Approved | None = None
    timeout_seconds: float


class Starter(Protocol):
    """Starts processes, and ends each of them together with all its descendants."""

    async def start(self, start: LaunchSpec, *, output: Output) -> CommandResult:
        """Run the process that `start` describes, as `CommandRunner.run` does, and return the result of the
        command. The sandbox policy is already part of `start`, as a launcher and a restriction.

        Raises:
            CommandNotStarted: the program does not exist, or the operating system could not start it.
            CommandReplaced: the directory or the program is not the approved one; the command has not run.
            SandboxUnavailable: the restriction could not be applied, a mount of the launcher is wrong, or the
                launcher exited without starting the command; the command has not run.
        """
        ...

    async def close(self) -> None:
        """Kill all processes that this object has started. No further process can be started afterwards."""
        ...
