"""The URLs at which clients reach the HTTP server with given settings."""

from __future__ import annotations

from parley.config.types import ServeSettings
from parley.server.http.endpoint import PATH

__all__ = ["bracketed", "own_url", "scheme_of", "server_url"]


def server_url(settings: ServeSettings, port: int) -> str:
    """Return the URL at which clients reach the server: the public URL or, if none is set, the server's own URL."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/") + PATH
    return own_url(settings, port) + PATH


def own_url(settings: ServeSettings, port: int) -> str:
    """Return the URL, without a path, at which clients reach the server directly and not through a proxy. If the
    server listens on all addresses, the URL contains the loopback address.
    """
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0") else "::1" if settings.host == "::" else settings.host
    return f"{scheme_of(settings)}://{bracketed(host)}:{port}"


def scheme_of(settings: ServeSettings) -> str:
    return "http" if settings.tls_cert is None else "https"


def bracketed(host: str) -> str:
    """Return `host` as a part of a URL, with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
