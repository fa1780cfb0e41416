"""Builds sandbox policies from existing directories."""

from __future__ import annotations

import os
from pathlib import Path

from parley.config.types import Mechanism
from parley.ports.commands import SandboxPolicy, WritableRoot

__all__ = ["root", "sandbox_policy"]


def root(path: Path | str) -> WritableRoot:
    """Return a writable root with the current identity of the directory."""
    found = os.lstat(path)
    return WritableRoot(path=str(path), device=found.st_dev, inode=found.st_ino)


def sandbox_policy(
    *writable: Path | str,
    hidden: tuple[Path | str, ...] = (),
    installed: tuple[Path | str, ...] = (),
    network: bool = False,
    unix_sockets: bool = False,
    mechanism: Mechanism = "auto",
) -> SandboxPolicy:
    return SandboxPolicy(
        writable=tuple(root(path) for path in writable),
        network=network,
        unix_sockets=unix_sockets,
        hidden=tuple(str(path) for path in hidden),
        installed=tuple(str(path) for path in installed),
        mechanism=mechanism,
    )
