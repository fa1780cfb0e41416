"""The messages of MCP version 2026-07-28. In this version, each request carries its protocol version and the
capabilities of its client, and there is no negotiation.

The messages of earlier versions, in which a session begins with `initialize`, are in `wire/mcp.py`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from parley.wire.jsonrpc import decode_lenient
from parley.wire.mcp import KNOWN_VERSIONS, TASKS_EXTENSION, ClientCapabilities, Implementation, ServerCapabilities

__all__ = [
    "HEADER_MISMATCH",
    "MISSING_CAPABILITY",
    "MODERN_VERSION",
    "SERVED_VERSIONS",
    "TASKS_EXTENSION",
    "UNSUPPORTED_VERSION",
    "BadMeta",
    "CacheScope",
    "DiscoverResult",
    "ModernCapabilities",
    "ModernMeta",
    "named_version",
    "read_meta",
]

MODERN_VERSION: Final = "2026-07-28"
SERVED_VERSIONS: Final = (MODERN_VERSION, *KNOWN_VERSIONS)
"""All protocol versions that the server supports; the newest is first."""

HEADER_MISMATCH: Final = -32020
"""The error code for an HTTP request with a header that is missing or differs from the body."""
MISSING_CAPABILITY: Final = -32021
"""The error code for a request that needs a client capability, but does not declare this capability."""
UNSUPPORTED_VERSION: Final = -32022

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
_CLIENT_KEY: Final = "io.modelcontextprotocol/clientInfo"

CacheScope = Literal["public", "private"]


class ModernCapabilities(ClientCapabilities, frozen=True, kw_only=True):
    """The capabilities that a client declares in one request."""

    extensions: dict[str, Any] | UnsetType | None = UNSET

    def has_extension(self, name: str) -> bool:
        """Return whether the client declares the extension `name`."""
        return isinstance(self.extensions, dict) and isinstance(self.extensions.get(name), dict)


class ModernMeta(Struct, frozen=True, kw_only=True):
    """The `_meta` of a request: the protocol version, the client and the capabilities of the client."""

    version: str = msgspec.field(name=_VERSION_KEY)
    capabilities: ModernCapabilities = msgspec.field(name=_CAPABILITIES_KEY)
    client: Implementation | UnsetType | None = msgspec.field(default=UNSET, name=_CLIENT_KEY)

    @property
    def client_name(self) -> str | None:
        return self.client.name if isinstance(self.client, Implementation) else None


class BadMeta(Exception):
    """Raised when the `_meta` of a request is incomplete or invalid."""


class _Version(Struct):
    version: Any = msgspec.field(default=UNSET, name=_VERSION_KEY)


class _WithVersion(Struct):
    meta: _Version | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _WithMeta(Struct):
    meta: ModernMeta = msgspec.field(name="_meta")


_version_key: Final = re.compile(re.escape(_VERSION_KEY.encode()))
_version_decoder: Final = msgspec.json.Decoder(_WithVersion)
_meta_decoder: Final = msgspec.json.Decoder(_WithMeta)


def named_version(params: Raw | UnsetType) -> Any:
    """Return the protocol version in the parameters of a request. The value may have any type, because its type is
    not checked.

    Return UNSET if the parameters contain no version. Requests of earlier protocol versions contain no version.
    """
    if params is UNSET or _version_key.search(params) is None:  # most requests end here, without decoding
        return UNSET
    try:
        found = decode_lenient(_version_decoder, params).meta
    except msgspec.DecodeError:
        return UNSET
    return found.version if isinstance(found, _Version) else UNSET


def read_meta(params: Raw | UnsetType) -> ModernMeta:
    """Return the `_meta` of a request at version 2026-07-28.

    Raises:
        BadMeta: the version or the capabilities are missing or have the wrong type.
    """
    try:
        return decode_lenient(_meta_decoder, b"{}" if params is UNSET else params).meta
    except msgspec.DecodeError as error:
        raise BadMeta(str(error)) from None


class DiscoverResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of `server/discover`."""

    METHOD: ClassVar[str] = "server/discover"

    supported_versions: tuple[str, ...]
    capabilities: ServerCapabilities
    instructions: str | UnsetType = UNSET
