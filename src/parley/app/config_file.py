"""Writes config.toml in a home. `config/editing.py` changes its text.

The file can be a link, for example into a repository with the user's dotfiles. The link then stays, and the target
of the link is replaced.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from parley.common.os_errors import os_detail
from parley.config.sources import parse_table, read_config
from parley.errors import BadHome, BadSetting
from parley.stores.sqlite.files import AtomicFile, directory_of, prepare_home, sync_directory

__all__ = ["CONFIG_FILE", "ConfigExists", "change_config", "config_path", "create_config"]

CONFIG_FILE: Final = "config.toml"
BACKUP: Final = "config.toml.bak"


class ConfigExists(Exception):
    """Raised when config.toml exists and must not be overwritten."""


def config_path(home: str) -> str:
    return os.path.join(home, CONFIG_FILE)


def change_config(home: str, change: Callable[[str], str | None]) -> str:
    """Replace the text of config.toml with the result of `change`, which gets the current text. The text is empty
    if the file does not exist. If the result is None, do nothing. Return the path of the file that was written.

    Two commands that change the file at the same time change it one after the other.

    Raises:
        BadHome: the home cannot be created.
        BadSetting: the file is not TOML, or cannot be read or written.
    """
    prepare_home(home)
    path = config_path(home)
    with _locked(home), _write_errors(path):
        target = _target(path)
        text = read_config(path)
        parse_table(path, text)
        changed = change(text)
        if changed is not None and changed != text:
            _write(target, changed, overwrite=True)
    return target


def create_config(home: str, text: str, *, overwrite: bool) -> str | None:
    """Create config.toml. With `overwrite`, replace an existing file, and keep a copy of it. Return the path of the
    copy; None if there was no file.

    Raises:
        ConfigExists: the file exists, and `overwrite` is false.
        BadHome: the home cannot be created.
        BadSetting: the file cannot be written.
    """
    prepare_home(home)
    path = config_path(home)
    with _locked(home), _write_errors(path):
        if not os.path.lexists(path):
            _write(path, text, overwrite=False)
            return None
        if not overwrite:
            raise ConfigExists
        target = _target(path)
        with open(target, "rb") as file:
            copy = _write_backup(home, file.read())
        _write(target, text, overwrite=True)
        return copy


def _write_backup(home: str, content: bytes) -> str:
    """Write a copy of the old file under a name that no file has, and return the path of the copy."""
    number = 0
    while True:
        path = os.path.join(home, BACKUP if not number else f"{BACKUP}.{number}")
        try:
            with AtomicFile(path) as file:
                with open(file.name, "wb") as copy:
                    copy.write(content)
                file.commit(overwrite=False)
            return path
        except FileExistsError:
            number += 1


def _target(path: str) -> str:
    """Return the path of the file that `path` names, without symbolic links.

    Raises:
        BadSetting: the link leads nowhere, or to something that must not be replaced.
    """
    if not os.path.lexists(path):
        return path
    target = os.path.realpath(path)
    is_link = os.path.islink(path)
    try:
        status = os.stat(target)
    except OSError as error:
        raise BadSetting(f"is a link to {target}: {os_detail(error)}", source=path) from None
    if not stat.S_ISREG(status.st_mode):
        raise BadSetting("not a regular file", source=path)
    if is_link and status.st_uid != os.geteuid():
        raise BadSetting(f"is a link to {target}, which belongs to another user", source=path)
    return target


def _write(path: str, text: str, *, overwrite: bool) -> None:
    """Write a file atomically. A new file is readable only for the user; an existing file keeps its mode."""
    with AtomicFile(path) as file:
        with open(file.name, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        if overwrite and os.path.exists(path):
            os.chmod(file.name, stat.S_IMODE(os.stat(path).st_mode))
        file.commit(overwrite=overwrite)
    sync_directory(directory_of(path))


@contextmanager
def _locked(home: str) -> Iterator[None]:
    """Hold a lock on the home in this block, so that no other command changes config.toml."""
    try:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadHome(home, f"the home cannot be read: {os_detail(error)}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    """Convert an error of the operating system in this block to an error that names the file."""
    try:
        yield
    except OSError as error:
        raise BadSetting(f"cannot be written: {os_detail(error)}", source=path) from None
