"""The secret key of a home directory.

The resident server signs request states and event ids with this key. When clients send these strings back, the
server verifies the signature.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Final

__all__ = ["home_key"]

NAME: Final = "serve.key"
KEY_BYTES: Final = 32


def home_key(home: str) -> bytes:
    """Return the key of a home directory. Create the key if it is missing or has the wrong length.

    Only the resident server of the home directory may call this function.

    Raises:
        OSError: the key cannot be read or created.
    """
    path = os.path.join(home, NAME)
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            key = file.read(KEY_BYTES + 1)
        if len(key) == KEY_BYTES:
            return key
    key, unfinished = secrets.token_bytes(KEY_BYTES), f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)  # left over from a server that was killed
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(key)
    os.rename(unfinished, path)
    return key
