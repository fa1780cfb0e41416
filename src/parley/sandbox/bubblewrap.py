"""Confinement by bubblewrap: a command sees the files through mounts of its own, most of them read-only.

Makes words for the launcher out of policy. What these are is found in `places`; system calls
are the business of `seccomp`.
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
from parley.errors import CommandNotStarted
from parley.ports.commands import Command, CommandResult, LaunchSpec, Mount, Output, SandboxPolicy, Starter
from parley.sandbox.git_placeholders import GitPlaceholder, add_placeholders, release_all
from parley.sandbox.installed import Denials
from parley.sandbox.paths import depth, parents
from parley.sandbox.protected_files import ProtectedFiles
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.sandbox.seccomp import program
from parley.sandbox.threads import in_thread

__all__ = [
    "OLDEST",
    "Bubblewrap",
    "arguments",
    "is_trustworthy",
    "knows_sizes",
    "laid",
    "launcher",
    "limiter",
    "mounts",
]

OLDEST: Final = (0, 4)
"""Older versions may not tell what became of the command (`--json-status-fd`)."""
_SIZES_SINCE: Final = (0, 7)

_LAUNCHERS: Final = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
_LIMITERS: Final = ("/usr/bin/prlimit", "/bin/prlimit")
_DEFAULT_PATH: Final = "/bin:/usr/bin"
"""Where programs are looked for when the command's environment has no PATH."""

_PROCESSES: Final = 512
"""More than a parallel build of a large project has, and few enough for the computer to stay usable. Does
not hold for root, for whom the kernel makes an exception."""
_SHARED_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""As much as containers have by default. It is in memory, and goes with the command."""
_FIRST_DESCRIPTOR: Final = 3

_MOST_WORDS: Final = 9000
"""The launcher takes no more of them, its own and the command's together."""
_LONGEST_WORD: Final = 128 * 1024
"""The system takes no word or variable of so many bytes, the NUL at its end counted."""
_MOST_BYTES: Final = 6 * 1024 * 1024
"""The system takes no more for all words and variables of a program, however large its stack may become."""
_POINTER_BYTES: Final = 8
"""What each of them costs besides."""

_NAMESPACES: Final = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)


# --- what is installed -------------------------------------------------------------------


def launcher() -> str | None:
    """Where bubblewrap is; never looked for in `PATH`, which may lead into the project."""
    return next(filter(is_trustworthy, _LAUNCHERS), None)


def limiter() -> str | None:
    """The program that limits how many processes there can be: run inside, where only the command's own count."""
    return next(filter(is_trustworthy, _LIMITERS), None)


def is_trustworthy(path: str) -> bool:
    """Whether a program is there that nobody but root could have put there."""
    try:
        found = [os.stat(place) for place in (path, os.path.dirname(path))]
    except OSError:
        return False
    is_program = stat.S_ISREG(found[0].st_mode) and os.access(path, os.X_OK)
    return is_program and all(each.st_uid == 0 and not each.st_mode & 0o022 for each in found)


def knows_sizes(path: str, version: tuple[int, ...]) -> bool:
    """Whether a launcher can limit how much a file system in memory holds: not when it has the rights of root."""
    return version >= _SIZES_SINCE and not os.stat(path).st_mode & stat.S_ISUID


# --- its words ---------------------------------------------------------------------------


def mounts(policy: ResolvedPolicy) -> Iterator[tuple[str, ...]]:
    """What is laid over what, outer directories first."""
    fenced = policy.git_directories + policy.protected + policy.missing_git + policy.installed
    hidden_directories, hidden_files = _seen(policy.hidden_directories, policy), _seen(policy.hidden_files, policy)
    words: dict[str, tuple[str, ...]] = {}
    # A directory that something fenced lies in could be renamed, and another one with a `.git` of its own
    # be put in its place; a mount point cannot.
    for place in fenced + hidden_directories + hidden_files:
        for folder in parents(place):
            if folder not in policy.roots and policy.is_writable(folder) and not _is_its_own(folder):
                words[folder] = ("--bind", folder, folder)
    words |= {path: ("--bind", path, path) for path in policy.roots}
    words |= {path: ("--ro-bind", path, path) for path in fenced}
    words |= {path: ("--tmpfs", path) for path in hidden_directories}
    words |= {path: ("--ro-bind", "/dev/null", path) for path in hidden_files}
    for path in sorted(words, key=depth):
        yield words[path]
    for path in hidden_directories:
        yield ("--remount-ro", path)


def _seen(hidden: Iterable[str], policy: ResolvedPolicy) -> tuple[str, ...]:
    """Without what is in the `/dev` of the computer, where a command has one of its own: nothing of it is there."""
    return tuple(
        path
        for path in hidden
        if path == "/dev"
        or not is_below(path, "/dev")
        or is_below(path, "/dev/shm")
        or any(root != "/" and is_below(path, root) for root in policy.roots)
    )


def _is_its_own(folder: str) -> bool:
    """Whether a command has a directory of its own there, which must not give way to that of the computer."""
    return folder in ("/dev", "/dev/shm") or is_below(folder, "/proc")


def laid(policy: ResolvedPolicy) -> Iterator[Mount]:
    """What that comes to, upon what is always there."""
    words = [each for each in mounts(policy) if each[0] != "--remount-ro" and each[-1] != "/"]
    # There nobody can put a link, and the launcher has covered some of it itself.
    words = [each for each in words if not each[-1].startswith("/proc/")]
    yield Mount(place="/", source="/", writable="/" in policy.roots)
    yield Mount(place="/dev", source=None, writable=False)
    if all(place != "/dev" for *_, place in words):
        yield Mount(place="/dev/shm", source=None, writable=True)
    yield Mount(place="/proc", source=None, writable=False)
    for how, *sources, place in words:
        yield Mount(place=place, source=next(iter(sources), None), writable=how == "--bind")


def arguments(
    policy: ResolvedPolicy, *, cwd: str, env: Mapping[str, str], network: bool, has_proc: bool, has_sizes: bool
) -> tuple[str, ...]:
    """All words but those that name descriptors or the command."""
    first, *others = ("--ro-bind", "/", "/"), *mounts(policy)
    if "/" in policy.roots:
        first = ("--bind", "/", "/")
        others.remove(first)
    if not has_proc:
        others = [each for each in others if not each[-1].startswith("/proc/")]
    # Read-only: where the user is root, the settings of the kernel are his files. Without a `/proc` of its own
    # the command must not see the one in which all other processes are.
    proc = ("--proc", "/proc") if has_proc else ("--tmpfs", "/proc")
    size = ("--size", str(_SHARED_MEMORY_BYTES)) if has_sizes else ()
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
    """The words as `--args` reads them."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _refuse_unsayable(command: Command) -> None:
    """See that nothing can be taken for a word of the launcher's own.

    Raises:
        CommandNotStarted: something cannot be said, or there is nothing to run.
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
                raise CommandNotStarted(f"{what} holds a NUL character")
        except UnicodeEncodeError:
            raise CommandNotStarted(f"{what} holds a character that cannot be encoded") from None


def _refuse_missing(command: Command) -> None:
    """Check that the program exists and is executable: inside the sandbox, the error would not reach us.

    Raises:
        CommandNotStarted: it is not, with the error of the system.
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
        if stat.S_ISREG(mode) and os.access(program, os.X_OK):
            return
        number = errno.EACCES
    raise _refused(number)


def _refuse_too_long(command: Command, words: int) -> None:
    """See that neither the launcher nor the system finds so many words too many.

    Raises:
        CommandNotStarted: they would, in the words of the system.
    """
    texts = [*command.argv, *(f"{name}={value}" for name, value in command.env.items())]
    sizes = [len(os.fsencode(text)) + 1 for text in texts]
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    most = _MOST_BYTES if stack == resource.RLIM_INFINITY else max(_LONGEST_WORD, min(_MOST_BYTES, stack // 4))
    if words > _MOST_WORDS or max(sizes) > _LONGEST_WORD or sum(sizes) + len(sizes) * _POINTER_BYTES > most:
        raise _refused(errno.E2BIG)


def _refused(number: int) -> CommandNotStarted:
    return CommandNotStarted(os_detail(OSError(number, os.strerror(number))))


def _most_processes() -> int:
    """As many as we may allow: nobody may allow more than he is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    return _PROCESSES if most == resource.RLIM_INFINITY else min(_PROCESSES, most)


# --- running a command -------------------------------------------------------------------


class Bubblewrap:
    """Starts commands by way of the launcher."""

    def __init__(
        self,
        starter: Starter,
        protected: ProtectedFiles,
        *,
        launcher: str,
        limiter: str | None,
        has_proc: bool,
        has_sizes: bool,
    ) -> None:
        self._starter = starter
        self._protected = protected
        self._launcher = launcher
        self._limits = () if limiter is None else (limiter, f"--nproc={_most_processes()}", "--core=0", "--")
        self._has_proc = has_proc
        self._has_sizes = has_sizes

    async def run(self, command: Command, bounds: SandboxPolicy, *, output: Output) -> CommandResult:
        """As `Commands.run`."""
        taken: list[GitPlaceholder] = []
        denials = Denials(output)
        try:
            ended = await self._protected.run(
                self._starter,
                lambda: self._prepared(command, bounds, taken, denials),
                output=denials,
                roots=[root.path for root in bounds.writable],
                accepted=command.accepted,
            )
            return denials.explained(ended)
        finally:
            if taken:
                await in_thread(lambda: release_all(taken), needs_one=False)

    def _prepared(
        self, command: Command, bounds: SandboxPolicy, taken: list[GitPlaceholder], denials: Denials
    ) -> LaunchSpec:
        _refuse_unsayable(command)
        policy = resolve(bounds)
        refuse_hidden_cwd(policy, command.cwd)
        denials.begin(policy)
        _refuse_missing(command)
        policy = add_placeholders(policy, taken)
        # No mount can cover a link, so links are restored after the command.
        self._protected.protect(policy, policy.links)
        return self.start(command, bounds, policy)

    def start(self, command: Command, bounds: SandboxPolicy, policy: ResolvedPolicy) -> LaunchSpec:
        """How the command is started."""
        words = arguments(
            policy,
            cwd=command.cwd,
            env=command.env,
            network=bounds.network,
            has_proc=self._has_proc,
            has_sizes=self._has_sizes,
        )
        filtered = program(
            os.uname().machine,
            writable=bool(policy.roots),
            network=bounds.network,
            unix_sockets=bounds.unix_sockets,
            namespaces=True,
        )
        first = _FIRST_DESCRIPTOR + len(command.files)
        options = ("--args", "--seccomp", "--json-status-fd", "--block-fd")
        descriptors = (word for place, option in enumerate(options, first) for word in (option, str(place)))
        argv = (self._launcher, *descriptors, "--", *self._limits, *command.argv)
        _refuse_too_long(command, words=len(argv) + len(words))
        return LaunchSpec(
            argv=argv,
            cwd=command.cwd,
            # What else the command has would reach into the launcher: there is no sandbox around that yet.
            env={"PATH": "/usr/bin:/bin"},
            files=(*command.files, _as_file(words), filtered),
            reports=True,
            mounts=tuple(laid(policy)),
            timeout_seconds=command.timeout_seconds,
        )
