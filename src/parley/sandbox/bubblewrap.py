"""Confines commands with bubblewrap: a command has its own mount namespace, in which most mounts are read-only.

This module builds the command line of bubblewrap from a resolved policy. `seccomp` builds the system call filter.
In the names in this module, `launcher` means bubblewrap.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from parley.common.os_errors import os_detail
from parley.common.paths import is_below
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, LaunchSpec, Mount, Output, SandboxPolicy, Starter
from parley.sandbox.git_placeholders import GitPlaceholder, add_placeholders, release_all
from parley.sandbox.installed import Denials
from parley.sandbox.launcher_output import LauncherOutput
from parley.sandbox.paths import depth, parents
from parley.sandbox.protected_files import ProtectedFiles
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.sandbox.seccomp import program
from parley.sandbox.threads import in_thread

__all__ = [
    "OLDEST",
    "Bubblewrap",
    "arguments",
    "expected_mounts",
    "is_trustworthy",
    "launcher",
    "mounts",
    "supports_size",
]

OLDEST: Final = (0, 4)
"""The oldest supported version of bubblewrap: the first version that reports how the command ended
(`--json-status-fd`).
"""
_SIZES_SINCE: Final = (0, 7)
"""The first version of bubblewrap that can limit the size of a tmpfs (`--size`)."""

_LAUNCHERS: Final = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
_DEFAULT_PATH: Final = "/bin:/usr/bin"
"""The PATH that is used if the command's environment has no PATH."""

_PROCESSES: Final = 512
"""The maximum number of processes of a command. A parallel build of a large project needs fewer processes, and the
computer stays usable with this number of processes. The kernel does not apply this limit to root.
"""
_SHARED_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""The size of a command's `/dev/shm`, in bytes. Containers use the same size by default. The memory is freed when
the command ends.
"""
_FIRST_DESCRIPTOR: Final = 3

_MAX_ARGUMENTS: Final = 9000
"""The maximum number of arguments that bubblewrap accepts, including the arguments of the command."""
_MAX_ARGUMENT_BYTES: Final = 128 * 1024
"""The kernel's limit, in bytes, for one argument or environment variable, including the NUL at its end."""
_MAX_TOTAL_BYTES: Final = 6 * 1024 * 1024
"""The kernel's limit, in bytes, for all arguments and environment variables of a program. This limit applies
regardless of the stack limit.
"""
_POINTER_BYTES: Final = 8
"""The size, in bytes, of the pointer to each argument or variable. The kernel's limit for all arguments and
variables includes these pointers.
"""

_NAMESPACES: Final = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)


# --- what is installed -------------------------------------------------------------------


def launcher() -> str | None:
    """Return the path of bubblewrap; None if bubblewrap is not installed.

    `PATH` is not searched, because it may contain a directory of the project.
    """
    return next(filter(is_trustworthy, _LAUNCHERS), None)


def is_trustworthy(path: str) -> bool:
    """Return whether a path is an executable file that only root can replace."""
    try:
        found = [os.stat(place) for place in (path, os.path.dirname(path))]
    except OSError:
        return False
    is_program = stat.S_ISREG(found[0].st_mode) and os.access(path, os.X_OK)
    return is_program and all(each.st_uid == 0 and not each.st_mode & 0o022 for each in found)


def supports_size(path: str, version: tuple[int, ...]) -> bool:
    """Return whether the bubblewrap at `path` can limit the size of a tmpfs. A set-user-id bubblewrap cannot."""
    return version >= _SIZES_SINCE and not os.stat(path).st_mode & stat.S_ISUID


# --- arguments ---------------------------------------------------------------------------


def mounts(resolved: ResolvedPolicy) -> Iterator[tuple[str, ...]]:
    """Yield the bubblewrap options that create each mount, outer directories first."""
    hidden_directories = _to_cover(resolved.hidden_directories, resolved)
    hidden_files = _to_cover(resolved.hidden_files, resolved)
    words: dict[str, tuple[str, ...]] = {}
    # A command could rename a directory that contains a protected path, and create another directory in its place.
    # A mount point cannot be renamed.
    for place in resolved.read_only + hidden_directories + hidden_files:
        for folder in parents(place):
            if folder not in resolved.roots and resolved.is_writable(folder) and not _is_its_own(folder):
                words[folder] = ("--bind", folder, folder)
    words |= {path: ("--bind", path, path) for path in resolved.roots}
    words |= {path: ("--ro-bind", path, path) for path in resolved.read_only}
    words |= {path: ("--tmpfs", path) for path in hidden_directories}
    words |= {path: ("--ro-bind", "/dev/null", path) for path in hidden_files}
    for path in sorted(words, key=depth):
        yield words[path]
    for path in hidden_directories:
        yield ("--remount-ro", path)


def _to_cover(hidden: Iterable[str], resolved: ResolvedPolicy) -> tuple[str, ...]:
    """Return the `hidden` paths that a mount must cover. Each command has its own `/dev`. A path below `/dev`
    therefore needs a mount only if it lies in `/dev/shm` or in a writable root other than `/`.
    """
    return tuple(
        path
        for path in hidden
        if path == "/dev"
        or not is_below(path, "/dev")
        or is_below(path, "/dev/shm")
        or any(root != "/" and is_below(path, root) for root in resolved.roots)
    )


def _is_its_own(folder: str) -> bool:
    """Return whether bubblewrap creates a new directory in place of `folder` for each command."""
    return folder in ("/dev", "/dev/shm") or is_below(folder, "/proc")


def expected_mounts(resolved: ResolvedPolicy) -> Iterator[Mount]:
    """Yield the mounts that the command must have, in the order in which they are mounted. The supervisor compares
    the actual mounts with these mounts before the command runs. Mounts below `/proc` are omitted, because no
    command can create a symbolic link there.
    """
    words = [each for each in mounts(resolved) if each[0] != "--remount-ro" and each[-1] != "/"]
    # No command can create a symbolic link in `/proc`, and bubblewrap itself mounts over parts of `/proc`.
    words = [each for each in words if not each[-1].startswith("/proc/")]
    yield Mount(place="/", source="/", writable="/" in resolved.roots)
    yield Mount(place="/dev", source=None, writable=False)
    if all(place != "/dev" for *_, place in words):
        yield Mount(place="/dev/shm", source=None, writable=True)
    yield Mount(place="/proc", source=None, writable=False)
    for how, *sources, place in words:
        yield Mount(place=place, source=next(iter(sources), None), writable=how == "--bind")


def arguments(
    resolved: ResolvedPolicy,
    *,
    cwd: str,
    env: Mapping[str, str],
    network: bool,
    has_proc: bool,
    has_size_option: bool,
) -> tuple[str, ...]:
    """Return the options of bubblewrap, except the options that take a file descriptor. `cwd` and `env` are the
    working directory and the environment of the command. `network` is True if the command has network access.
    `has_proc` is True if bubblewrap can mount `/proc`. `has_size_option` is True if bubblewrap can limit the size
    of a tmpfs.
    """
    first, *others = ("--ro-bind", "/", "/"), *mounts(resolved)
    if "/" in resolved.roots:
        first = ("--bind", "/", "/")
        others.remove(first)
    if not has_proc:
        others = [each for each in others if not each[-1].startswith("/proc/")]
    # `/proc` is read-only, because root could change kernel settings there. If `/proc` cannot be mounted, an
    # empty directory covers the `/proc` of the computer, in which all other processes can be seen.
    proc = ("--proc", "/proc") if has_proc else ("--tmpfs", "/proc")
    size = ("--size", str(_SHARED_MEMORY_BYTES)) if has_size_option else ()
    return (
        "--die-with-parent",
        "--new-session",
        *_NAMESPACES,
        *(() if network else ("--unshare-net",)),
        *first,
        *("--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *(*proc, "--remount-ro", "/proc"),
        *(word for mount in others for word in mount),
        *("--cap-drop", "ALL", "--chdir", cwd, "--unsetenv", "PATH"),
        *(word for name, value in env.items() for word in ("--setenv", name, value)),
    )


def _as_file(words: Iterable[str]) -> bytes:
    """Return arguments in the format of the file from which the option `--args` reads them."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _refuse_unencodable(command: Command) -> None:
    """Check that each string of the command can be encoded as one argument of bubblewrap.

    Raises:
        CommandNotStarted: a string cannot be encoded, or the command is empty.
    """
    if not command.argv:
        raise CommandNotStarted("command args are empty")
    for name in command.env:
        if not name or "=" in name:
            raise CommandNotStarted(f"{name!r} cannot be the name of a variable")
    texts = [
        *(("a word of the command", word) for word in command.argv),
        ("the working directory", command.cwd),
        *((f"the variable {name!r}", f"{name}={value}") for name, value in command.env.items()),
    ]
    for what, text in texts:
        try:
            if b"\0" in os.fsencode(text):
                raise CommandNotStarted(f"{what} contains a NUL character")
        except UnicodeEncodeError:
            raise CommandNotStarted(f"{what} contains a character that cannot be encoded") from None


def _refuse_missing(command: Command, resolved: ResolvedPolicy) -> None:
    """Check that the program exists and is executable, because bubblewrap reports such an error only as text on
    stderr.

    A program in a hidden directory counts as missing.

    Raises:
        CommandNotStarted: the program does not exist or is not executable. The message contains the error text of
            the operating system.
    """
    name = command.argv[0]
    folders = [""] if "/" in name else command.env.get("PATH", _DEFAULT_PATH).split(":")
    number = errno.ENOENT
    for folder in folders if name else ():
        program = os.path.join(command.cwd, folder, name)
        try:
            mode = os.stat(program).st_mode
        except (OSError, ValueError):
            continue
        if resolved.conceals(program):
            continue
        if stat.S_ISREG(mode) and os.access(program, os.X_OK):
            return
        number = errno.EACCES
    raise _refused(number)


def _refuse_too_long(command: Command, arguments: int) -> None:
    """Check the limits of bubblewrap and of the kernel on arguments and environment variables. `arguments` is the
    number of arguments that bubblewrap would get.

    Raises:
        CommandNotStarted: a limit is exceeded. The message contains the error text of the operating system.
    """
    texts = [*command.argv, *(f"{name}={value}" for name, value in command.env.items())]
    sizes = [len(os.fsencode(text)) + 1 for text in texts]
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    limit = max(_MAX_ARGUMENT_BYTES, min(_MAX_TOTAL_BYTES, stack // 4))
    if stack == resource.RLIM_INFINITY:
        limit = _MAX_TOTAL_BYTES
    total = sum(sizes) + len(sizes) * _POINTER_BYTES
    if arguments > _MAX_ARGUMENTS or max(sizes) > _MAX_ARGUMENT_BYTES or total > limit:
        raise _refused(errno.E2BIG)


def _refused(number: int) -> CommandNotStarted:
    return CommandNotStarted(os_detail(OSError(number, os.strerror(number))))


def _max_processes() -> int:
    """Return the maximum number of processes of a command: `_PROCESSES`, or the server's own hard limit on
    processes if that is lower.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NPROC)
    return _PROCESSES if limit == resource.RLIM_INFINITY else min(_PROCESSES, limit)


# --- running a command -------------------------------------------------------------------


class Bubblewrap:
    """Runs commands in a bubblewrap sandbox."""

    def __init__(
        self,
        starter: Starter,
        protected: ProtectedFiles,
        *,
        launcher: str,
        has_proc: bool,
        has_size_option: bool,
    ) -> None:
        self._starter = starter
        self._protected = protected
        self._launcher = launcher
        self._has_proc = has_proc
        self._has_sizes = has_size_option

    async def run(self, command: Command, policy: SandboxPolicy, *, output: Output) -> CommandResult:
        """Run a command in a sandbox that enforces `policy`, and return its result. The command's output is passed
        to `output`.
        """
        placeholders: list[GitPlaceholder] = []
        denials = Denials(output)
        _refuse_unencodable(command)
        launched = LauncherOutput(denials, os.fsencode(command.argv[0]))
        try:
            ended = await self._protected.run(
                self._starter,
                lambda: self._prepared(command, policy, placeholders, denials),
                output=launched,
                roots=[root.path for root in policy.writable],
                accepted=command.accepted,
            )
            launched.release()
            return denials.explained(ended)
        except SandboxUnavailable:
            if (number := launched.error_number) is not None:
                raise _refused(number) from None
            launched.release()
            raise
        finally:
            if placeholders:
                await in_thread(lambda: release_all(placeholders), needs_one=False)

    def _prepared(
        self, command: Command, policy: SandboxPolicy, placeholders: list[GitPlaceholder], denials: Denials
    ) -> LaunchSpec:
        resolved = resolve(policy)
        refuse_hidden_cwd(resolved, command.cwd)
        denials.begin(resolved)
        _refuse_missing(command, resolved)
        resolved = add_placeholders(resolved, placeholders)
        # No mount can cover a symbolic link, so symbolic links are restored after the command.
        self._protected.protect(resolved, resolved.links)
        return self.start(command, policy, resolved)

    def start(self, command: Command, policy: SandboxPolicy, resolved: ResolvedPolicy) -> LaunchSpec:
        """Return the specification that starts the command with bubblewrap. `resolved` is the resolved form of
        `policy`, with placeholders.

        Raises:
            CommandNotStarted: the arguments and variables of the command exceed a limit.
        """
        words = arguments(
            resolved,
            cwd=command.cwd,
            env=command.env,
            network=policy.network,
            has_proc=self._has_proc,
            has_size_option=self._has_sizes,
        )
        filtered = program(
            os.uname().machine,
            writable=bool(resolved.roots),
            network=policy.network,
            unix_sockets=policy.unix_sockets,
            namespaces=True,
        )
        first = _FIRST_DESCRIPTOR + len(command.files)
        options = ("--args", "--seccomp", "--json-status-fd", "--block-fd")
        descriptors = (word for place, option in enumerate(options, first) for word in (option, str(place)))
        argv = (self._launcher, *descriptors, "--", *command.argv)
        _refuse_too_long(command, arguments=len(argv) + len(words))
        return LaunchSpec(
            argv=argv,
            cwd=command.cwd,
            # Bubblewrap is not confined, so it must not get the command's variables, such as LD_PRELOAD.
            env={"PATH": "/usr/bin:/bin"},
            files=(*command.files, _as_file(words), filtered),
            reports=True,
            mounts=tuple(expected_mounts(resolved)),
            max_processes=_max_processes(),
            timeout_seconds=command.timeout_seconds,
        )
