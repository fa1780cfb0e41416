"""The HTTP options of the command line. Separate from the service, which imports the HTTP library."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.config.types import ServeSettings

__all__ = ["TOKEN_VARIABLE", "HttpChoice"]

TOKEN_VARIABLE: Final = "PARLEY_SERVE_TOKEN"
"""The variable that may hold a token for the life of the process."""


class HttpChoice(Struct, frozen=True, kw_only=True):
    """The HTTP options of the command line. A field that is None leaves the choice to the settings."""

    host: str | None = None
    port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: str | None = None
    """A token from the environment."""
    creates_token: bool = False
    """True if a token is created for the life of the process."""

    def applied_to(self, settings: ServeSettings) -> ServeSettings:
        """Return the settings with the options that were given on the command line in place of theirs."""
        given = {
            "host": self.host,
            "port": self.port,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
        }
        return replace(settings, **{name: value for name, value in given.items() if value is not None})
