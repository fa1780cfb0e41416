"""Encodes a command for its supervisor. Rejects words and variables that cannot be passed to a program."""

from __future__ import annotations

import os
from typing import Final

from parley.errors import CommandNotStarted
from parley.ports.commands import LaunchSpec, Mount, Restriction
from parley.tools.commands import messages

__all__ = ["encode_request"]

FILES_BYTES: Final = 4 * 1024 * 1024
"""The maximum total size, in bytes, of the files that are passed to one command. With bubblewrap, one of these
files contains the environment variables of the command. Linux accepts at most two megabytes of arguments and
variables with the usual stack limit, so the variables of a command that Linux can start fit into this limit.
"""


def encode_request(start: LaunchSpec) -> bytes:
    """Return the request that starts the command `start`, encoded for the control socket.

    Raises:
        CommandNotStarted: the command is empty, or a word, path or variable cannot be passed to a program.
    """
    if not start.argv:
        raise CommandNotStarted("command args are empty")
    for name in start.env:
        if not name or "=" in name:
            raise CommandNotStarted(f"{name!r} cannot be the name of a variable")
    if sum(map(len, start.files)) > FILES_BYTES:
        raise CommandNotStarted(f"the files of the command have more than {FILES_BYTES} bytes")
    return messages.Request(
        argv=tuple(_as_bytes(word, "a word of the command") for word in start.argv),
        cwd=_as_bytes(start.cwd, "the working directory"),
        env=dict(_variable(name, value) for name, value in start.env.items()),
        files=start.files,
        reports=start.reports,
        mounts=tuple(map(_mount, start.mounts)),
        max_processes=start.max_processes,
        restriction=None if start.restriction is None else _restriction(start.restriction),
        approved=None if start.approved is None else (start.approved.directory, start.approved.program),
    ).packed()


def _variable(name: str, value: str) -> tuple[bytes, bytes]:
    what = f"the variable {name!r}"
    return _as_bytes(name, what), _as_bytes(value, what)


def _restriction(restriction: Restriction) -> messages.EncodedRestriction:
    return messages.EncodedRestriction(
        files=restriction.handled_files,
        network=restriction.handled_network,
        scoped=restriction.scoped,
        rules=tuple((_as_bytes(rule.path, "the path of a rule"), rule.rights) for rule in restriction.rules),
        seccomp=restriction.seccomp,
    )


def _mount(mount: Mount) -> messages.MountSpec:
    what = "the path of a mount"
    source = None if mount.source is None else _as_bytes(mount.source, what)
    return _as_bytes(mount.place, what), source, mount.writable


def _as_bytes(text: str, what: str) -> bytes:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise CommandNotStarted(f"{what} contains a character that cannot be encoded") from None
    if b"\0" in data:
        raise CommandNotStarted(f"{what} contains a NUL character")
    return data
