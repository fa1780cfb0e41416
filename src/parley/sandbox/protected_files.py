"""Restores protected files that commands have changed, if the sandbox cannot prevent the change.

Before the server starts a command that may write to protected files, it takes a snapshot of these files. It
restores them when no command that may write to them is running any more. A change that is made while no command is
running is never undone. This module tracks which commands are running. `snapshot` finds the protected files and
restores them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from parley.common.paths import is_below_any
from parley.errors import SandboxUnavailable
from parley.ports.commands import CommandResult, LaunchSpec, Output, Starter, unrestored_reason
from parley.sandbox.resolved_policy import ResolvedPolicy
from parley.sandbox.snapshot import MissingGit, Restored, Snapshot
from parley.sandbox.threads import in_thread
from parley.wire.text import listed, quoted

__all__ = ["ProtectedFiles", "Running"]

log: Final = logging.getLogger(__name__)

_FAILED: Final = 1
"""The exit code that is reported for a command that exited with 0 but changed protected files."""
_LOCKS: Final = 64
"""The number of locks for reading and restoring files. The hash of a path selects its lock, so several paths can
share a lock.
"""


class Running:
    """A command that is running or about to start."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        """The directories that the command may write to."""


class _Unrestored(NamedTuple):
    """A file that a command has changed and that could not be restored."""

    snapshot: Snapshot | MissingGit
    state: tuple[int, ...] | None
    """The metadata of the file when restoring it failed; None if the file did not exist at that time."""


class ProtectedFiles:
    """The protected files of all roots to which running commands may write."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        """A lock that guards the other fields. The lock is never held while files are read."""
        self._running: list[Running] = []
        self._snapshots: dict[str, Snapshot | MissingGit] = {}
        self._unrestored: dict[str, _Unrestored] = {}
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        """Locks for paths. The hash of a path selects its lock, which is held while the files at the path are read
        or restored.
        """

    async def run(
        self,
        starter: Starter,
        prepare: Callable[[], LaunchSpec],
        *,
        output: Output,
        roots: Sequence[str],
        accepted: Collection[str] = (),
    ) -> CommandResult:
        """Run a command, restore protected files when it has ended, and return its result. A command that changed
        protected files counts as failed.

        The command may write to `roots`, and its output is passed to `output`. `accepted` are the paths of files
        that could not be restored and that the user has accepted as they are. `prepare` is called in another
        thread. It passes the protected files to `protect`, and then returns the specification of the command. Files
        are also restored if this method is cancelled.

        Raises:
            SandboxUnavailable: an earlier command has changed a file that could not be restored, and the user has
                not accepted the change.
        """
        if not roots:
            return await starter.start(await in_thread(prepare), output=output)
        running = Running(roots)
        results: list[Restored] = []
        ended: CommandResult | None = None
        try:
            start = await in_thread(lambda: self._prepared(prepare, running, accepted))
            ended = await starter.start(start, output=output)
        finally:
            is_reported = False
            try:
                if paths := self.unregister(running):
                    await in_thread(lambda: self.restore(paths, results), needs_one=False)
                is_reported = ended is not None
            finally:
                sentences = _sentences(results)
                if not is_reported:
                    for sentence in sentences:
                        log.warning("%s", sentence)
        if not sentences:
            return ended
        for sentence in sentences:
            output("stderr", f"{sentence}\n".encode())
        exit_code = _FAILED if ended.exit_code == 0 else ended.exit_code
        return replace(ended, exit_code=exit_code, remarks=sentences)

    def _prepared(
        self, prepare: Callable[[], LaunchSpec], running: Running, accepted: Collection[str]
    ) -> LaunchSpec:
        self.register(running, accepted)
        return prepare()

    def register(self, running: Running, accepted: Collection[str] = ()) -> None:
        """Register a command before it starts, so that the protected files that it may write to are not restored
        until `unregister` is called.

        If these files are being restored now, wait until they are restored. `accepted` are the paths of files that
        could not be restored and that the user has accepted as they are.

        Raises:
            SandboxUnavailable: an earlier command has changed a file that could not be restored, and the user has
                not accepted the change.
        """
        with self._mutex:
            self._running.append(running)
            known = [path for path in self._snapshots if is_below_any(path, running.roots)]
        for path in known:
            with self._lock(path), self._mutex:
                if (snapshot := self._snapshots.get(path)) is not None:
                    snapshot.roots.update(running.roots)
        if left := [path for path in self.unrestored(running.roots) if path not in accepted]:
            raise SandboxUnavailable(unrestored_reason(left))
        with self._mutex:
            for path in accepted:
                self._unrestored.pop(path, None)

    def protect(self, policy: ResolvedPolicy, paths: Iterable[str]) -> None:
        """Take a snapshot of each of the `paths`, unless a snapshot already exists because of another running
        command. The `policy` determines which of the paths are Git directories and which are missing `.git`
        directories.

        Raises:
            SandboxUnavailable: a file cannot be read, or the files exceed the limits.
        """
        for path in paths:
            with self._lock(path):
                with self._mutex:
                    if path in self._snapshots:
                        continue
                is_missing = path in policy.missing_git
                taken = MissingGit(path) if is_missing else Snapshot(path, is_git=path in policy.git_directories)
                with self._mutex:
                    taken.roots.update(root for each in self._running for root in each.roots)
                    self._snapshots[path] = taken

    def unregister(self, running: Running) -> list[str]:
        """Remove a command that has ended. Return the paths of the snapshots whose files the command may have
        changed.
        """
        with self._mutex:
            if running in self._running:
                self._running.remove(running)
            return [path for path in self._snapshots if is_below_any(path, running.roots)]

    def restore(self, paths: Iterable[str], results: list[Restored]) -> None:
        """Restore the files at the `paths` from their snapshots, unless a running command may write to them. Add
        the result for each restored snapshot to `results`.
        """
        for path in paths:
            with self._lock(path):
                with self._mutex:
                    is_in_use = any(is_below_any(path, other.roots) for other in self._running)
                    snapshot = None if is_in_use else self._snapshots.get(path)
                if snapshot is None:
                    continue
                left: dict[str, _Unrestored] = {}
                try:
                    result = snapshot.restore()
                    results.append(result)
                    left = {each: _Unrestored(snapshot, _state(each)) for each in result.left}
                finally:
                    with self._mutex:
                        del self._snapshots[path]
                        self._unrestored |= left

    async def unrestored_files(self, roots: Sequence[str]) -> tuple[str, ...]:
        """Call `unrestored` without blocking the event loop, and return the paths of the protected files in `roots`
        that a command has changed and that could not be restored.
        """
        return await in_thread(lambda: self.unrestored(roots)) if self._unrestored else ()

    def unrestored(self, roots: Sequence[str]) -> tuple[str, ...]:
        """Return the paths of the protected files in `roots` that a command has changed and that could not be
        restored.

        A path is no longer returned in two cases: its file has the content from before the command again, or the
        file has changed since the failed restoration.
        """
        with self._mutex:
            found = {path: each for path, each in self._unrestored.items() if is_below_any(path, roots)}
        handled = [
            path for path, each in found.items() if _state(path) != each.state or not each.snapshot.is_changed(path)
        ]
        with self._mutex:
            for path in handled:
                self._unrestored.pop(path, None)
            return tuple(path for path in found if path in self._unrestored)

    def _lock(self, path: str) -> threading.Lock:
        return self._locks[hash(path) % _LOCKS]


def _state(path: str) -> tuple[int, ...] | None:
    """Return metadata that differs after any change to the file at `path`; None if the path does not exist. For a
    directory, the metadata differs only if the directory was replaced or its mode was changed.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return None
    identity = (found.st_dev, found.st_ino, found.st_mode)
    # The times of a directory are left out, because programs that work in it change them.
    return identity if os.path.isdir(path) else (*identity, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _sentences(results: Iterable[Restored]) -> tuple[str, ...]:
    results = list(results)
    restored = [quoted(path) for result in results for path in result.restored]
    moved = [f"{quoted(path)} (now {quoted(new)})" for result in results for path, new in result.moved.items()]
    left = [f"{quoted(path)} ({why})" for result in results for path, why in result.left.items()]
    sentences = {
        "protected files were changed while the command ran, and were restored": restored,
        "protected files were added while the command ran, and were moved aside": moved,
        "protected files were changed while the command ran, and could not be restored": left,
    }
    return tuple(f"{what}: {listed(paths)}" for what, paths in sentences.items() if paths)
