"""Lists the files of a working directory for completion, without running Git."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from parley.cli.chat.ignore_rules import IgnoreRules
from parley.common.files import read_file
from parley.wire.text import replace_surrogates

__all__ = ["list_files"]

MAX_ENTRIES: Final = 400_000
"""The number of directory entries after which no further directory is read."""

MAX_PATHS: Final = 200_000
"""The maximum number of paths that `list_files` returns."""

RULES_BYTES: Final = 64 * 1024
"""The maximum number of bytes that are read from a file with ignore rules."""

GENERATED: Final = frozenset({"node_modules", "__pycache__", "venv"})
"""The names of directories that are never listed. They contain generated files or files of other projects."""

_SECRET: Final = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)|([\w-]+[._-])?(secrets?|credentials?)(\.(json|ya?ml|toml|ini|env|txt|xml|csv))?"
    r"|.+\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk)",
    re.IGNORECASE,
)
"""Matches the names of files that usually contain secrets and are therefore not listed."""


class _Rules(NamedTuple):
    """The ignore rules of one file, and the number of directories between its directory and the top of the
    repository.
    """

    rules: IgnoreRules
    depth: int


def list_files(root: str, *, is_stopped: Callable[[], bool] = lambda: False) -> list[str]:
    """Return the paths of the files and directories below `root`. Symbolic links are listed as files.

    The paths are relative to `root`. The paths of directories end in `/`. Paths with fewer directories come first.
    The list does not contain hidden files, files that Git ignores, files that usually contain secrets, or the
    content of directories that cannot be read. The list contains at most `MAX_PATHS` paths. The listing ends early
    when `is_stopped` returns True.
    """
    root = os.path.realpath(root)
    base, rules = _rules_above(root)
    start = [name for name in os.path.relpath(root, base).split(os.sep) if name != os.curdir]
    paths: list[str] = []
    entries = 0
    waiting = deque([("", _with_rules(root, rules, len(start)))])
    while waiting and not is_stopped():
        folder, rules = waiting.popleft()
        above = [*start, *folder.split("/")[:-1]]
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                listed = sorted((one.name, one.is_dir(follow_symlinks=False)) for one in found)
        except OSError:
            continue
        entries += len(listed)
        for name, is_directory in listed:
            if name.startswith(".") or _is_left_out(name, above, rules, is_directory=is_directory):
                continue
            path = folder + name
            if is_directory:
                paths.append(f"{path}/")
                inner = _with_rules(os.path.join(root, path), rules, len(above) + 1)
                waiting.append((f"{path}/", inner))
            else:
                paths.append(path)
        if entries >= MAX_ENTRIES or len(paths) >= MAX_PATHS:
            break
    return [replace_surrogates(path) for path in paths[:MAX_PATHS]]


def _is_left_out(name: str, above: list[str], rules: tuple[_Rules, ...], *, is_directory: bool) -> bool:
    if is_directory and name in GENERATED:
        return True
    if not is_directory and _SECRET.fullmatch(name):
        return True
    for one in reversed(rules):
        decision = one.rules.decide([*above[one.depth :], name], is_directory=is_directory)
        if decision is not None:
            return decision
    return False


def _rules_above(root: str) -> tuple[str, tuple[_Rules, ...]]:
    """Return the top directory of the repository that contains `root`, and the ignore rules of the directories
    above `root`.

    If `root` is not in a repository, the top directory is `root`.
    """
    top = root
    while not os.path.lexists(os.path.join(top, ".git")):
        parent = os.path.dirname(top)
        if parent == top:
            return root, _global_rules()
        top = parent
    rules = _global_rules()
    rules = _added(rules, os.path.join(top, ".git", "info", "exclude"), 0)
    names = [name for name in os.path.relpath(root, top).split(os.sep) if name != os.curdir]
    for depth in range(len(names)):
        rules = _with_rules(os.path.join(top, *names[:depth]), rules, depth)
    return top, rules


def _global_rules() -> tuple[_Rules, ...]:
    """Return the rules in the user's global Git ignore file at its default path; an empty tuple if the file cannot
    be read.
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return _added((), os.path.join(folder, "git", "ignore"), 0)


def _with_rules(folder: str, rules: tuple[_Rules, ...], depth: int) -> tuple[_Rules, ...]:
    return _added(rules, os.path.join(folder, ".gitignore"), depth)


def _added(rules: tuple[_Rules, ...], path: str, depth: int) -> tuple[_Rules, ...]:
    try:
        text = read_file(path, limit=RULES_BYTES).decode(errors="replace")
    except OSError:
        return rules
    return (*rules, _Rules(IgnoreRules(text), depth))
