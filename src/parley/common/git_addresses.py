"""Parses the addresses of Git repositories. An address is an absolute path, a URL with an allowed protocol, or an
SSH address such as `git@example.com:project.git`.

Few protocols are allowed, because Git runs a program for some protocols (`ext::`) and sends passwords unencrypted
over others.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["EXPECTED_ADDRESS", "GIT_SEARCH_PATH", "GitAddress", "parse_git_address"]

GIT_SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""The PATH in which the server looks up Git. Commands that the model runs cannot write to the directories in this
PATH.
"""

EXPECTED_ADDRESS: Final = (
    "expected an absolute path, or an address that begins with https://, ssh://, file:/// or USER@HOST:"
)
"""The description of valid addresses for error messages. The messages do not show the invalid address, because it
may contain a password.
"""

_SCP: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9._~/][^:]*")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[?[0-9A-Fa-f:.]+\]?")
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class GitAddress(NamedTuple):
    """The parsed address of a repository. `url` does not contain the password."""

    url: str
    protocol: Literal["file", "http", "https", "ssh"]
    path: str | None = None
    """The path of a repository on this computer; None for other repositories."""
    user: str | None = None
    """The user in an http or https URL; None if the URL contains no user."""
    password: str | None = None
    """The password in an http or https URL; None if the URL contains no password."""


def parse_git_address(text: str) -> GitAddress:
    """Parse the address of a repository, and return its parts.

    Raises:
        ValueError: the address is invalid, or its protocol is not allowed. The error does not contain the address.
    """
    if not text.isprintable() or " " in text or not text.isascii():
        raise ValueError(EXPECTED_ADDRESS)
    if text.startswith("/"):
        return GitAddress(text, "file", text)
    if "://" not in text:
        if _SCP.fullmatch(text):
            return GitAddress(text, "ssh")
        raise ValueError(EXPECTED_ADDRESS)
    parts = urlsplit(text)
    if parts.query or parts.fragment or not parts.path.startswith("/") or parts.port == 0:
        raise ValueError(EXPECTED_ADDRESS)
    host = parts.hostname or ""
    match parts.scheme:
        case "file" if not parts.netloc and not parts.path.startswith("//"):
            path = unquote(parts.path)
            if path.isprintable():
                return GitAddress(text, "file", path)
        case "ssh" if (
            _HOST.fullmatch(host) and parts.password is None and not (parts.username or "").startswith("-")
        ):
            return GitAddress(text, "ssh")
        case "https" | "http" if _HOST.fullmatch(host) and (parts.scheme == "https" or host in _LOOPBACK):
            url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            user, password = _decoded(parts.username), _decoded(parts.password)
            return GitAddress(url, "https" if parts.scheme == "https" else "http", None, user, password)
    raise ValueError(EXPECTED_ADDRESS)


def _decoded(text: str | None) -> str | None:
    return None if text is None else unquote(text)
