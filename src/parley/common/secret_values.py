"""Redacts the values of secret environment variables in text that leaves the server, such as log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from parley.common.variable_names import names_a_secret

__all__ = ["MIN_SECRET_CHARACTERS", "REDACTED", "SecretValues", "shown_url"]

REDACTED: Final = "[redacted]"
MIN_SECRET_CHARACTERS: Final = 8
"""The minimum length, in characters, of a value that is redacted. Shorter values may be parts of ordinary words."""

NESTED_JSON: Final = 3
"""The maximum number of times that a redacted value may be encoded as a JSON string."""

_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")
"""The pattern of a URL with a password. It begins with `://` instead of with the scheme, so that the search takes
linear time even in a long word.
"""


class SecretValues:
    """The values of those environment variables whose names suggest secrets, and other secret values."""

    def __init__(self, environ: Mapping[str, str], values: Iterable[str] = ()) -> None:
        self._environ, self._values = dict(environ), tuple(values)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """The pattern that matches all values, created when the first text is redacted; None if there are no
        values.
        """
        values = {
            value for value in (*_secrets_in(self._environ), *self._values) if len(value) >= MIN_SECRET_CHARACTERS
        }
        spellings = {spelling for value in values for spelling in _spellings(value)}
        longest_first = sorted(spellings, key=lambda one: (-len(one), one))
        return re.compile("|".join(map(re.escape, longest_first))) if spellings else None

    def redact(self, text: str) -> str:
        """Return `text` with the secret values, and all passwords in URLs, replaced by `REDACTED`."""
        if self._pattern is not None:
            text = self._pattern.sub(REDACTED, text)
        return _PASSWORD.sub(rf"\1{REDACTED}@", text) if "://" in text else text


def _spellings(value: str) -> set[str]:
    """Return a value unchanged, and as it is spelled in JSON and in JSON within JSON.

    For example, the arguments of a tool call are JSON, and a line of the log contains them as a JSON string.
    """
    import json  # imported here, because most processes log nothing

    found = newest = {value}
    for _ in range(NESTED_JSON):
        newest = {json.dumps(one, ensure_ascii=is_ascii)[1:-1] for one in newest for is_ascii in (True, False)}
        found = found | newest
    return found


def shown_url(url: str) -> str:
    """Return a URL without the parts that may contain secrets."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _secrets_in(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        is_list = name.upper().endswith("HEADERS")  # for example, OTEL_EXPORTER_OTLP_HEADERS
        if is_list or names_a_secret(name):
            yield value
        if is_list:
            yield from (pair.partition("=")[2].strip() for pair in value.split(","))
