"""Restricts a thread of the server with Landlock. Commands are restricted by their supervisors instead."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from parley.common import landlock
from parley.errors import SandboxUnavailable
from parley.ports.commands import Rule, WritableRoot
from parley.sandbox.rights import WRITE
from parley.wire.text import quoted

__all__ = ["confine"]


def confine(rules: Iterable[Rule], roots: Iterable[WritableRoot]) -> None:
    """Permanently prevent the calling thread, and every process that it starts, from writing to any path for which
    the `rules` grant no right. If the path of a rule is one of the `roots`, the path must still have the device and
    inode numbers of this root.

    Raises:
        SandboxUnavailable: the kernel cannot apply the restriction, or one of the `roots` was replaced.
    """
    known = {root.path: (root.device, root.inode) for root in roots}
    try:
        ruleset = landlock.create_ruleset(WRITE)
        try:
            for rule in rules:
                _add(ruleset, rule, known.get(rule.path))
            landlock.prctl(landlock.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict_self(ruleset)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise SandboxUnavailable(f"Landlock: {error.strerror}") from error


def _add(ruleset: int, rule: Rule, expected: tuple[int, int] | None) -> None:
    try:
        place = os.open(rule.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # the path is missing or unreachable; a rule only grants rights, so leaving it out is safe
    try:
        found = os.fstat(place)
        if expected is not None and (found.st_dev, found.st_ino) != expected:
            raise SandboxUnavailable(
                f"{quoted(rule.path)} is no longer writable: it was replaced by another directory"
            )
        if not stat.S_ISLNK(found.st_mode):
            landlock.add_rule(ruleset, place, rule.rights & WRITE)
    finally:
        os.close(place)
