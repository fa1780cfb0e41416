"""Which places on disk bounds come to now: where may be written, what of it is protected, and what is hidden.

Looks, and changes nothing. How commands are kept from a place is for each mechanism to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.common.git_files import common_dir, git_dir
from parley.common.paths import is_below
from parley.config.protected import AGENTS, GIT
from parley.errors import SandboxUnavailable
from parley.ports.commands import Bounds, Root
from parley.wire.text import quoted

__all__ = ["Places", "above", "depth", "find", "is_anothers", "is_below", "opened", "refuse_hidden"]

_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_THE_WAY: Final = _FOLDER | os.O_PATH
"""A directory that may be gone through and not be listed will do."""

_OBEYED: Final = ("config", "config.worktree", "hooks", "info")
"""What git obeys and runs in a `.git` also where it finds it behind a link."""

_MOST_LINKS: Final = 40
"""The system follows no more of them on its way to one path."""


class Places(Struct, frozen=True, kw_only=True):
    """Absolute paths without links, each sorted by how deep it lies. The deepest that a path lies below counts."""

    roots: tuple[str, ...] = ()
    """Directories that may be written to."""
    git_folders: tuple[str, ...] = ()
    """Where git has its configuration and hooks."""
    protected: tuple[str, ...] = ()
    """Other files and directories within the roots that must stay as they are."""
    vacant: tuple[str, ...] = ()
    """Each would be a `.git`: it is not there, or an empty directory."""
    installed: tuple[str, ...] = ()
    """Files and directories within the roots in which Parley itself is installed."""
    refused: tuple[str, ...] = ()
    """Directories that are no roots because Parley is installed in them and could not be protected."""
    links: tuple[str, ...] = ()
    """Links within the roots that lead to something protected or hidden. Nothing can be laid over one: whether it
    is still the same can only be seen afterwards."""
    hidden_folders: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.hidden_folders + self.hidden_files

    def hides(self, path: str) -> bool:
        """Whether a path is out of sight."""
        return _innermost(path, self.roots + self.hidden) in self.hidden

    def is_writable(self, path: str) -> bool:
        """Whether a path may be written to."""
        fenced = self.git_folders + self.protected + self.vacant + self.installed + self.hidden
        return _innermost(path, self.roots + fenced) in self.roots


def above(path: str) -> Iterator[str]:
    """All directories that a path lies in, from the nearest on."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def depth(path: str) -> tuple[int, str]:
    """To sort by: a directory comes before what is in it."""
    return len([part for part in path.split("/") if part]), path


def is_anothers(found: os.stat_result, folder: os.stat_result) -> bool:
    """Whether another user has put something into a directory that all may write to."""
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid != os.geteuid()


def opened(path: str, how: int = os.O_PATH) -> int:
    """A descriptor of a directory, on the way to which no link is followed.

    Raises:
        OSError: it is not there, or behind a link.
    """
    folder = os.open("/", _ON_THE_WAY)
    *way, last = [part for part in path.split("/") if part] or ["."]
    try:
        for part in way:
            inner = os.open(part, _ON_THE_WAY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(last, _FOLDER | how, dir_fd=folder)
    finally:
        os.close(folder)


def find(bounds: Bounds, *, protects_installed: bool = True) -> Places:
    """What there is. Without `protects_installed`, a root in which Parley is installed is none.

    Raises:
        SandboxUnavailable: a root is not what it was, or something in it cannot be protected.
    """
    names = {path: real for path in bounds.hidden if (real := _real(path))}
    hidden = {real: mode for real in names.values() if (mode := _mode(real)) is not None}
    if "/" in hidden:
        raise SandboxUnavailable("`/` cannot be hidden")
    roots = _sorted(root.path for root in bounds.writable if _is_there(root) and root.path not in hidden)
    roots = tuple(root for root in roots if not _is_left_out(root, roots))
    installed = _installed(bounds.installed, roots)
    surrounding = tuple(root for root in roots if any(is_below(path, root) for path in installed))
    refused = () if protects_installed else surrounding
    roots = tuple(root for root in roots if root not in refused)
    marks = roots + _sorted(hidden)
    hidden = {path: mode for path, mode in hidden.items() if not _is_inside(path, hidden, marks)}
    git_folders, protected, vacant = set[str](), set[str](), set[str]()
    linked = [path for path, real in names.items() if path != real]
    linked += [path for path in bounds.installed if _is_below_any(path, roots)]
    for root in roots:
        git, folder = os.path.join(root, GIT), _status(root)
        mode = _mode(git)
        if git in roots:
            pass  # who names it as a root wants it written to
        elif mode is None or _is_vacant(git, mode):
            vacant.add(git)
        elif _is_of_another(git, folder):
            pass  # nobody else can replace it, and git obeys no repository of another user
        elif stat.S_ISLNK(mode):
            raise SandboxUnavailable(f"{quoted(git)} is a symbolic link, and what it leads to cannot be protected")
        elif stat.S_ISDIR(mode):
            git_folders.add(git)
        else:
            protected.add(git)
            git_folders |= set(_named_by(git, roots))
        there = filter(os.path.lexists, (os.path.join(root, name) for name in AGENTS))
        agents = [path for path in there if not _is_of_another(path, folder)]
        protected |= set(_behind(agents, roots))
        linked += filter(os.path.islink, agents)
    obeyed = [path for git in git_folders for name in _OBEYED if os.path.islink(path := os.path.join(git, name))]
    found = Places(
        roots=roots,
        hidden_folders=_sorted(path for path, mode in hidden.items() if stat.S_ISDIR(mode)),
        hidden_files=_sorted(path for path, mode in hidden.items() if not stat.S_ISDIR(mode)),
    )
    behind_links = {path for path in _led_to(obeyed, roots) if not found.hides(path)}
    # What is hidden, or lies in what is protected already, needs no protection of its own.
    marks = roots + _sorted(git_folders | protected | vacant)

    def outermost(paths: set[str]) -> tuple[str, ...]:
        inner = git_folders | protected
        return _sorted(path for path in paths if not found.hides(path) and not _is_inside(path, inner, marks))

    found = Places(
        roots=roots,
        git_folders=outermost(git_folders),
        # Of a `.git`, only what git is known to obey is watched: what it obeys by way of a link is not among that.
        protected=_sorted({*outermost(protected - git_folders), *behind_links} - git_folders),
        vacant=outermost(vacant),
        hidden_folders=found.hidden_folders,
        hidden_files=found.hidden_files,
    )
    found = replace(
        found,
        installed=_sorted(path for path in installed if _is_below_any(path, roots) and not found.hides(path)),
        refused=refused,
    )
    links = {link for path in (*linked, *obeyed) for link in _links_to(path)} if roots else set[str]()
    return replace(found, links=_sorted(link for link in links if found.is_writable(os.path.dirname(link))))


def refuse_hidden(places: Places, cwd: str) -> None:
    """See that a command can be in its working directory.

    Raises:
        SandboxUnavailable: that is out of its sight, or is moved about just now.
    """
    try:
        real = os.path.realpath(cwd)
    except ValueError:
        return  # no directory has such a name, and whoever starts the command says so
    except OSError as error:
        raise SandboxUnavailable(
            f"the working directory {quoted(cwd)} cannot be looked at: {error.strerror}"
        ) from None
    if places.hides(real):
        raise SandboxUnavailable(f"the working directory {quoted(cwd)} is hidden from commands")


# --- roots -------------------------------------------------------------------------------


def _is_there(root: Root) -> bool:
    """Whether a root is there. Without one there is nothing to write to.

    Raises:
        SandboxUnavailable: something else has taken its place.
    """
    try:
        found = os.lstat(root.path)
        real = os.path.realpath(root.path, strict=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(root.path)} cannot be looked at: {error.strerror}") from None
    is_same = stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) == (root.device, root.inode)
    if real != root.path or not is_same:
        raise SandboxUnavailable(f"{quoted(root.path)} may not be written to any more: another has taken its place")
    return True


def _is_left_out(root: str, roots: Iterable[str]) -> bool:
    """Whether a root is not to be written to because of a `.git` that another user has put there, and that a
    command could replace by its own.

    Raises:
        SandboxUnavailable: it lies in another root.
    """
    git, folder = os.path.join(root, GIT), _status(root)
    is_safe_from_us = folder.st_mode & stat.S_ISVTX and folder.st_uid != os.geteuid()
    if is_safe_from_us or not _is_of_another(git, folder) or _is_vacant(git, _mode(git)):
        return False
    if any(root != other and is_below(root, other) for other in roots):
        raise SandboxUnavailable(f"{quoted(git)} belongs to another user, and cannot be protected")
    return True


def _is_of_another(path: str, folder: os.stat_result) -> bool:
    try:
        return bool(folder.st_mode & stat.S_IWOTH) and is_anothers(os.lstat(path), folder)
    except OSError:
        return False


# --- Parley itself -----------------------------------------------------------------------


def _installed(paths: Iterable[str], roots: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost of these paths that lie in a root, without those that only lead there through a link.

    Raises:
        SandboxUnavailable: a root is or lies in one of them, or a command could make one that is missing.
    """
    for root in roots:
        if (place := next((path for path in paths if is_below(root, path) and path != "/"), None)) is not None:
            why = f"Parley, or the Python that runs it, loads its modules from {quoted(place)}"
            raise SandboxUnavailable(f"{quoted(root)} may not be written to: {why}")
    within = _sorted(path for path in paths if _is_below_any(path, roots))
    found = [path for path in within if _real(path) == path]
    outermost = tuple(path for path in found if not any(path != other and is_below(path, other) for other in found))
    for path in within:
        if _real(path) is None and not any(is_below(path, place) for place in outermost):
            why = f"the Python that runs Parley loads modules from {quoted(path)}, which is not there"
            raise SandboxUnavailable(f"{quoted(_innermost(path, roots) or path)} may not be written to: {why}")
    return outermost


def _is_below_any(path: str, roots: Iterable[str]) -> bool:
    return any(is_below(path, root) for root in roots)


# --- what is protected -------------------------------------------------------------------


def _behind(paths: Iterable[str], roots: tuple[str, ...]) -> Iterator[str]:
    """Of what is there, that which could be written to, by where it is behind all links."""
    for path in paths:
        real = _real(path)
        if real is not None and real not in roots and any(is_below(real, root) for root in roots):
            yield real


def _led_to(links: Iterable[str], roots: tuple[str, ...]) -> Iterator[str]:
    """Where links of a `.git` lead to, as far as that could be written to.

    Raises:
        SandboxUnavailable: a command could put something else there, or has taken it away just now.
    """
    for link in links:
        try:
            real = os.path.realpath(link)
        except OSError as error:
            raise SandboxUnavailable(f"{quoted(link)} cannot be looked at: {error.strerror}") from None
        if any(is_below(real, root) for root in roots):
            if real in roots or not os.path.lexists(real):
                raise SandboxUnavailable(f"{quoted(link)} leads to {quoted(real)}, which cannot be protected")
            yield real


def _links_to(path: str) -> Iterator[str]:
    """The links that are followed on the way to a path, each by where it is itself."""
    here, waiting, followed = "/", path.split("/")[::-1], 0
    while waiting and followed < _MOST_LINKS:
        part = waiting.pop()
        if part == "..":
            here = os.path.dirname(here)
        if part in ("", ".", ".."):
            continue
        place = os.path.join(here, part)
        try:
            target = os.readlink(place)
        except (OSError, ValueError):
            here = place
            continue
        yield place
        followed += 1
        waiting += target.split("/")[::-1]
        here = "/" if target.startswith("/") else here


def _named_by(git: str, roots: tuple[str, ...]) -> Iterator[str]:
    """The directories that a `.git` file leads to, as far as they could be written to.

    Raises:
        SandboxUnavailable: a command could put something else there.
    """
    named = git_dir(git)
    folder = None if named is None else _followed(named, git, roots)
    if folder is None:
        return
    shared = common_dir(folder)
    common = None if shared is None else _followed(shared, git, roots)
    for place in (folder, common):
        if place is not None and place not in roots and any(is_below(place, root) for root in roots):
            yield place


def _followed(path: str, git: str, roots: tuple[str, ...]) -> str | None:
    """Where a path leads, None if there is nothing and nothing can be put there."""
    path = os.path.normpath(path)
    real = _real(path)
    is_ours_to_change = any(is_below(place, root) for place in (path, real or path) for root in roots)
    goes_through_links = any(
        os.path.islink(place) for place in (path, *above(path)) if any(is_below(place, root) for root in roots)
    )
    if is_ours_to_change and (real is None or goes_through_links):
        why = "which is not there" if real is None else "through a symbolic link"
        raise SandboxUnavailable(f"{quoted(git)} leads to {quoted(path)}, {why}, and cannot be protected")
    return real


# --- paths -------------------------------------------------------------------------------


def _real(path: str) -> str | None:
    """The path behind all links; None if nothing is there, or nothing that we could reach."""
    if not os.path.lexists(path):  # one look, where following it takes one at each directory
        return None
    try:
        return os.path.realpath(path, strict=True)
    except (OSError, ValueError):
        return None


def _status(root: str) -> os.stat_result:
    try:
        return os.stat(root)
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(root)} cannot be looked at: {error.strerror}") from None


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SandboxUnavailable(f"{quoted(path)} cannot be looked at: {error.strerror}") from None


def _is_vacant(git: str, mode: int | None) -> bool:
    """Whether a `.git` is not there, or is nothing but an empty directory."""
    return mode is None or (stat.S_ISDIR(mode) and _is_empty(git))


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True  # it was somebody's mount point, and is gone by now
    except OSError:
        return False


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(paths), key=depth))


def _innermost(path: str, marks: Iterable[str]) -> str | None:
    """The deepest of the marks that a path is or lies below."""
    return max((mark for mark in marks if is_below(path, mark)), key=depth, default=None)


def _is_inside(path: str, others: Iterable[str], marks: Iterable[str]) -> bool:
    """Whether the next of the marks above a path is one of these."""
    return _innermost(os.path.dirname(path), marks) in set(others) if path != "/" else False
