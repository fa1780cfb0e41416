"""Defines responses to HTTP requests, and the headers of Streamable HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "HEADERS",
    "LAST_EVENT_ID",
    "METHOD",
    "NAME",
    "PAGE_SECRET",
    "PROTOCOL_VERSION",
    "SESSION_ID",
    "HttpAnswer",
]

SESSION_ID: Final = "Mcp-Session-Id"
PROTOCOL_VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT_ID: Final = "Last-Event-ID"
METHOD: Final = "Mcp-Method"
NAME: Final = "Mcp-Name"
PAGE_SECRET: Final = "Parley-Page-Secret"
"""The header in which the web page sends the second secret of its sign-in. The first secret is a cookie."""

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types parley-worker",
    )
)
"""The Content Security Policy of the web page. The page can load nothing from other servers, and text in the page
can never run as a script.
"""

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "Server": "parley",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers that every HTTP response has. A response can override `Cache-Control`."""


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """An HTTP response with a complete body, as opposed to a stream."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
