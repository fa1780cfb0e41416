"""Functions that check values of settings and tables of settings.

The arguments of a check are a value that was parsed from TOML or JSON, and the key of the value. A failed check
raises `Wrong`. The caller, which knows the file or argument with the value, converts this error to a `BadSetting`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from parley.common.spelling import shortened
from parley.config.toml_lines import KeyPath

__all__ = [
    "Check",
    "Named",
    "Table",
    "Wrong",
    "absolute_path",
    "address",
    "amount",
    "database_address",
    "described",
    "flag",
    "integer",
    "is_address",
    "is_database_address",
    "is_host_name",
    "is_secret",
    "named_secrets",
    "one_of",
    "origin",
    "path_or_home_path",
    "push_host",
    "repository_address",
    "secret_sequence",
    "sequence_of",
    "text",
    "webhook_address",
]

Check = Callable[[Any, KeyPath], Any]
"""A function that checks a value from TOML or JSON. Its arguments are the value and the key of the value. It
returns the value in the form that `Settings` uses, or raises `Wrong`.
"""


class Wrong(Exception):
    """Raised when a value fails its check. The caller, which knows the source of the value, converts this error to
    a `BadSetting`.
    """

    def __init__(self, at: KeyPath, detail: str) -> None:
        super().__init__(detail)
        self.at, self.detail = at, detail


class Table:
    """A check for a table with known keys.

    The check removes unknown keys. It also removes keys whose value is null, because null means the same as a
    missing key.
    """

    def __init__(self, fields: Mapping[str, Check]) -> None:
        self.fields = fields

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        entries = _expect_map(value, at)
        return {
            key: self.fields[key](entry, (*at, key))
            for key, entry in entries.items()
            if key in self.fields and entry is not None
        }


class Named:
    """A check for a table whose keys are names that the user chose. The same check applies to all values of the
    table.
    """

    def __init__(self, entry: Check) -> None:
        self.entry = entry

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        entries = _expect_map(value, at)
        return {
            text(name, at): self.entry(entry, (*at, name)) for name, entry in entries.items() if entry is not None
        }


class _NamedSecrets(Named):
    """A check for a table of strings whose keys are names that the user chose. The values may be secrets, so errors
    do not show them.
    """

    def __init__(self) -> None:
        super().__init__(_secret)

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unshown("type", value, at, "a map")
        return super().__call__(value, at)


def _invalid(what: Literal["type", "value"], value: Any, at: KeyPath, expected: str) -> Wrong:
    return Wrong(at, f"invalid {what}: {described(value)}, expected {expected}")


def _unshown(what: Literal["type", "value"], value: Any, at: KeyPath, expected: str) -> Wrong:
    kind = described(value).partition(' "')[0].partition(" `")[0]
    return Wrong(at, f"invalid {what}: {kind}, expected {expected}")


def _expect_map(value: Any, at: KeyPath) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _invalid("type", value, at, "a map")


def text(value: Any, at: KeyPath) -> str:
    if not isinstance(value, str):
        raise _invalid("type", value, at, "a string")
    if "\0" in value:  # no path, argument, header or URL can contain a NUL character
        raise _invalid("value", value, at, "a string without NUL")
    return value


def _secret(value: Any, at: KeyPath) -> str:
    if not isinstance(value, str):
        raise _unshown("type", value, at, "a string")
    if "\0" in value:
        raise _unshown("value", value, at, "a string without NUL")
    return value


MAX_PATH_BYTES: Final = 4096
"""The maximum length of a path, in bytes. Linux cannot open longer paths, and resolving them would take a long
time.
"""


def path(value: Any, at: KeyPath) -> str:
    given = text(value, at)
    if len(given.encode(errors="surrogateescape")) > MAX_PATH_BYTES:
        raise _invalid("value", value, at, f"a path of at most {MAX_PATH_BYTES} bytes")
    return given


def absolute_path(value: Any, at: KeyPath) -> str:
    given = path(value, at)
    if not given.startswith("/"):
        raise _invalid("value", value, at, "an absolute path")
    return given


def path_or_home_path(value: Any, at: KeyPath) -> str:
    given = path(value, at)
    if not given.startswith(("/", "~/")):
        raise _invalid("value", value, at, "an absolute path, or one that begins with `~/`")
    return given


def address(value: Any, at: KeyPath) -> str:
    url = text(value, at)
    if url and not is_address(url):  # an empty URL means no URL
        raise Wrong(at, "not an http or https URL")  # the URL is not shown, because it may contain a password
    return url


def is_address(url: str) -> bool:
    """Return whether a string is an http or https URL with a host."""
    from urllib.parse import urlsplit  # imported here: most settings have no URL

    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_host_name(text: str) -> bool:
    """Return whether a string is a host name or an IPv4 address, in lower case and without a final dot."""
    return all(text.split(".")) and not set(text) - set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def webhook_address(value: Any, at: KeyPath) -> str:
    url = text(value, at)
    if not _is_webhook_address(url):  # the URL is not shown, because its path may be a secret
        raise Wrong(at, "expected an https URL, or an http URL with a loopback IP, without a password")
    return url


def _is_webhook_address(url: str) -> bool:
    """Return whether `url` is an https URL, or an http URL with a loopback address, and contains no password.

    An http URL with a host name is not accepted, because the name may resolve to any address.
    """
    from ipaddress import ip_address  # imported here: few homes have a webhook
    from urllib.parse import urlsplit

    if not is_address(url) or not url.isascii() or not url.isprintable() or " " in url:
        return False
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.fragment:
        return False
    if parts.scheme == "https":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def origin(value: Any, at: KeyPath) -> str:
    """Check that a value is the origin of a web page, and return the value. An origin consists of a scheme, a host
    and an optional port, in the form that a browser sends.
    """
    given = text(value, at)
    scheme, _, host = given.partition("://")
    if not is_address(given) or scheme != scheme.lower() or set(host) & set("/?#@ ") or host != host.lower():
        raise _invalid("value", value, at, "an origin, such as `https://app.example` or `http://localhost:3000`")
    return given


def push_host(value: Any, at: KeyPath) -> str:
    """Check that a value is the host of a push service, optionally with a port, and return the value."""
    given = text(value, at)
    if not is_address(f"https://{given}") or not is_host_name(given.partition(":")[0]):
        raise _invalid("value", value, at, "a host in lower case, such as `push.example` or `push.example:8443`")
    return given


def flag(value: Any, at: KeyPath) -> bool:
    if isinstance(value, bool):
        return value
    raise _invalid("type", value, at, "a boolean")


def integer(lowest: int, highest: int) -> Check:
    def check(value: Any, at: KeyPath) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _invalid("type", value, at, "an integer")
        if not lowest <= value <= highest:
            raise _invalid("value", value, at, f"an integer from {lowest} to {highest}")
        return value

    return check


MAX_AMOUNT: Final = 1e9


def amount(value: Any, at: KeyPath) -> float:
    """Check that a value is an amount of money, from 0 to `MAX_AMOUNT`, and return the value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("type", value, at, "a number")
    if not 0 <= value <= MAX_AMOUNT:  # the comparison is false for NaN
        raise _invalid("value", value, at, f"a number from 0 to {MAX_AMOUNT:.0f}")
    return value


def one_of(*words: str) -> Check:
    def check(value: Any, at: KeyPath) -> str:
        word = text(value, at)
        if word not in words:
            expected = ", ".join(f"`{known}`" for known in words)
            raise Wrong(at, f"unknown variant `{shortened(word)}`, expected one of {expected}")
        return word

    return check


def sequence_of(entry: Check) -> Check:
    def check(value: Any, at: KeyPath) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _invalid("type", value, at, "a sequence")
        return tuple(entry(one, at) for one in value)

    return check


def secret_sequence(value: Any, at: KeyPath) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _unshown("type", value, at, "a sequence")
    return tuple(_secret(one, at) for one in value)


named_secrets: Check = _NamedSecrets()


def database_address(value: Any, at: KeyPath) -> str:
    url = _secret(value, at)
    if not is_database_address(url):  # the URL is not shown, because it may contain a password
        raise Wrong(at, DATABASE_ADDRESS)
    return url


DATABASE_ADDRESS: Final = (
    "expected a URL such as postgresql://user@host/database;"
    " special characters of the password must be percent-encoded"
)


def is_database_address(url: str) -> bool:
    """Return whether a string is the URL of a PostgreSQL database.

    A URL whose password contains an unescaped special character is not accepted, because a part of the password
    could be mistaken for the host, the port or the database.
    """
    from urllib.parse import parse_qsl, urlsplit  # imported here: few homes have a database elsewhere

    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, strict_parsing=True) if parts.query else []
    except ValueError:
        return False
    login, _, hosts = parts.netloc.rpartition("@")
    database = parts.path.removeprefix("/")
    return (
        parts.scheme in ("postgresql", "postgres")
        and bool(database)
        and not parts.fragment
        and "@" not in login + database + parts.query
        and "/" not in database
        and (not hosts or all(_is_database_host(host) for host in hosts.split(",")))
        and all(_is_port(port) for name, ports in options if name == "port" for port in ports.split(","))
    )


def _is_database_host(host: str) -> bool:
    """Return whether `host` is a host name or an IP address, optionally with a port."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "1"
    if name.startswith("["):
        return name.endswith("]") and len(name) > 2 and _is_port(port)
    return bool(name) and not set(name) & set(":[]") and _is_port(port)


def _is_port(port: str) -> bool:
    return port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def repository_address(value: Any, at: KeyPath) -> str:
    from parley.common.git_addresses import parse_git_address  # imported here: few homes have repositories

    url = _secret(value, at)
    try:
        parse_git_address(url)
    except ValueError as error:  # the URL is not shown, because it may contain a password
        raise Wrong(at, str(error)) from None
    return url


def is_secret(check: Check) -> bool:
    """Return whether the values that `check` accepts are secrets, which must be neither stored nor shown."""
    return check in (named_secrets, secret_sequence, _secret, database_address, repository_address)


def described(value: Any) -> str:
    """Return the type of a value for error messages, such as `map`. For a boolean, a number or a string, the value
    follows. The wording is the same as in Codex.
    """
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            # Python does not print integers of thousands of digits, which hexadecimal TOML can contain.
            return f"integer `{value}`" if value.bit_length() < 64 else "integer beyond 64 bits"
        case float():
            return f"floating point `{value}`"
        case str():
            return f"string {msgspec.json.encode(shortened(value)).decode()}"
        case list():
            return "sequence"
        case dict():
            return "map"
        case _:
            return "datetime"
