"""Writes config.toml and auth.json in a home. `config/editing.py` changes the text of config.toml.

Each file can be a symbolic link, for example to a file in a repository of configuration files. The symbolic link is
kept, and its target is replaced.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from parley.common.files import read_file
from parley.common.os_errors import os_detail
from parley.config.provider_keys import AUTH_FILE
from parley.config.sources import parse_table, read_config
from parley.errors import BadHome, BadSetting
from parley.stores.sqlite.files import AtomicFile, directory_of, prepare_home, sync_directory

__all__ = ["CONFIG_FILE", "ConfigExists", "change_config", "config_path", "create_config", "store_key"]

CONFIG_FILE: Final = "config.toml"


class ConfigExists(Exception):
    """Raised when config.toml exists and must not be overwritten."""


def config_path(home: str) -> str:
    return os.path.join(home, CONFIG_FILE)


def change_config(home: str, change: Callable[[str], str | None]) -> str:
    """Replace the text of config.toml with the text that `change` returns. The argument of `change` is the current
    text, which is empty if the file does not exist. If `change` returns None, leave the file unchanged. Return the
    path of the file, with symbolic links resolved.

    If another command is changing the file, wait until that command has finished.

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


def create_config(home: str, text: str) -> str:
    """Create config.toml, and return its path.

    Raises:
        ConfigExists: the file exists.
        BadHome: the home cannot be created.
        BadSetting: the file cannot be written.
    """
    prepare_home(home)
    path = config_path(home)
    with _locked(home), _write_errors(path):
        try:
            _write(path, text, overwrite=False)
        except FileExistsError:
            raise ConfigExists from None
    return path


def store_key(home: str, variable: str, key: str) -> str:
    """Store an API key in auth.json, under the name of the environment variable that could contain the key instead.

    Only the user can read the file. The other members of the file are kept. Return the path of the file that was
    written.

    Raises:
        BadHome: the home cannot be created.
        BadSetting: the file is not a JSON object, or cannot be read or written.
    """
    prepare_home(home)
    path = os.path.join(home, AUTH_FILE)
    with _locked(home), _write_errors(path):
        target = _target(path)
        members = _members(path)
        members[variable] = key
        _write(
            target, msgspec.json.format(msgspec.json.encode(members)).decode() + "\n", overwrite=True, mode=0o600
        )
    return target


def _members(path: str) -> dict[str, Any]:
    """Return the members of the JSON object in a file; an empty dict if the file does not exist.

    Raises:
        BadSetting: the file is not a JSON object.
        OSError: the file cannot be read.
    """
    try:
        return msgspec.json.decode(read_file(path), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except ValueError:
        raise BadSetting("not a JSON object, so no key can be stored in it", source=path) from None


def _target(path: str) -> str:
    """Return `path` with symbolic links resolved.

    Raises:
        BadSetting: `path` exists and is not a regular file, or `path` is a symbolic link whose target does not
            exist or belongs to another user.
    """
    if not os.path.lexists(path):
        return path
    target = os.path.realpath(path)
    is_link = os.path.islink(path)
    try:
        status = os.stat(target)
    except OSError as error:
        raise BadSetting(f"is a symbolic link to {target}: {os_detail(error)}", source=path) from None
    if not stat.S_ISREG(status.st_mode):
        raise BadSetting("not a regular file", source=path)
    if is_link and status.st_uid != os.geteuid():
        raise BadSetting(f"is a symbolic link to {target}, which belongs to another user", source=path)
    return target


def _write(path: str, text: str, *, overwrite: bool, mode: int | None = None) -> None:
    """Write a file atomically. An existing file is replaced only if `overwrite` is True.

    `mode` contains the permissions of the file. If `mode` is None, only the user can read a new file, and an
    existing file keeps its permissions.

    Raises:
        FileExistsError: the file exists and `overwrite` is False.
    """
    with AtomicFile(path) as file:
        with open(file.name, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        if mode is None and overwrite and os.path.exists(path):
            mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode is not None:
            os.chmod(file.name, mode)
        file.commit(overwrite=overwrite)
    sync_directory(directory_of(path))


@contextmanager
def _locked(home: str) -> Iterator[None]:
    """Hold a lock on the home in the `with` block, so that no other command changes config.toml or auth.json. If
    another command holds the lock, wait until that command releases it.

    Raises:
        BadHome: the home cannot be opened.
    """
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
    """Convert an `OSError` in the `with` block to a `BadSetting` that names the file `path`."""
    try:
        yield
    except OSError as error:
        raise BadSetting(f"cannot be written: {os_detail(error)}", source=path) from None
