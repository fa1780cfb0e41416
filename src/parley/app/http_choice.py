"""The HTTP options of the command line.

This module is separate from the HTTP service because the service imports the HTTP library, which takes a long time
to load.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.config.types import ServeSettings

__all__ = ["TOKEN_VARIABLE", "HttpChoice"]

TOKEN_VARIABLE: Final = "PARLEY_SERVE_TOKEN"
"""The environment variable that can contain a bearer token for HTTP clients. The token is valid while the process
is running.
"""


class HttpChoice(Struct, frozen=True, kw_only=True):
    """The HTTP options of the command line. If a field with an equivalent setting is None, the setting is used."""

    host: str | None = None
    port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: str | None = None
    """The value of `TOKEN_VARIABLE`; None if the environment does not contain the variable."""
    creates_token: bool = False
    """True if the server creates a token that is valid while the process is running."""

    def applied_to(self, settings: ServeSettings) -> ServeSettings:
        """Return the settings, overridden by these options."""
        given = {
            "host": self.host,
            "port": self.port,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
        }
        return replace(settings, **{name: value for name, value in given.items() if value is not None})
