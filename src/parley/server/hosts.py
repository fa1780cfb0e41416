"""The known hosts, and the features of each client.

A host is a coding agent that starts Parley as a tool server. The model of the host calls Parley's tools, and the
host ignores most notifications. Only `KNOWN_HOSTS` describes how hosts differ. All other modules use `Features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from parley.config.types import McpSettings
from parley.wire.mcp import FULL_VERSION
from parley.wire.modern import MODERN_VERSION

__all__ = ["FULL", "KNOWN_HOSTS", "PLAIN", "Features", "KnownHost", "features_of"]

_SDK_TIMEOUT: Final = "Request timed out"
"""The cancellation reason that clients built on the TypeScript SDK send when they stop waiting for a response."""


class KnownHost(Struct, frozen=True, kw_only=True):
    """A coding agent that Parley recognizes as a host by the client name in `initialize`."""

    title: str
    timeout_reasons: tuple[str, ...]
    """Substrings of cancellation reasons. If a reason contains one of these substrings, the client has only stopped
    waiting. Such a cancellation does not stop the turn.
    """


KNOWN_HOSTS: Final[Mapping[str, KnownHost]] = MappingProxyType(
    {
        "claude-code": KnownHost(title="Claude Code", timeout_reasons=(_SDK_TIMEOUT,)),
        "codex-mcp-client": KnownHost(title="Codex", timeout_reasons=("MCP response future dropped", "timed out")),
        "opencode": KnownHost(title="opencode", timeout_reasons=(_SDK_TIMEOUT,)),
        "gemini-cli-mcp-client": KnownHost(title="Gemini CLI", timeout_reasons=(_SDK_TIMEOUT,)),
    }
)
"""The known hosts, by the `clientInfo.name` that they send with `initialize`."""


class Features(Struct, frozen=True, kw_only=True):
    """Determines which parts of the protocol one client sees.

    The values depend on the negotiated version, the host and the setting `[mcp] features`.
    """

    modern: bool = False
    """True for a request at protocol version 2026-07-28. Such a request is independent of earlier requests. The
    server sends no requests to the client. The response to a request that opens a stream is sent when the stream
    ends. If the client cancels a call that waits for a turn, the turn continues.
    """
    additions: bool = False
    """True if the client gets Parley's additions to the protocol: annotations, output schemas, instructions,
    structured results and error codes.
    """
    full_version: bool = False
    """True at protocol version 2025-11-25 or newer. Unlike `additions`, this value does not depend on the
    settings.
    """
    event_notifications: bool = True
    """True if events are sent to the client. False for hosts, because hosts ignore events."""
    explains_results: bool = False
    """True if results of `codex` and `codex-reply` also explain to the host's model how to continue the
    conversation.
    """
    may_answer_approvals: bool = True
    """True if the tool `approvalAnswer` is offered to the client. For a host, the setting `[approvals]
    model_may_answer` determines the value, because the host's model could call the tool without asking a person.
    """
    dismissal_denies: bool = False
    """If True, a cancelled elicitation denies the action; if False, it interrupts the turn. The value is True for
    hosts, because some hosts cancel every elicitation when no person is present.
    """
    timeout_reasons: tuple[str, ...] = ()

    @property
    def knows_limits(self) -> bool:
        """True if the client can be asked whether a turn may continue beyond a limit in the settings."""
        return self.full_version

    @property
    def cancels_requests(self) -> bool:
        """If True, a cancelled request gets no response, and a cancellation after the response has no effect.

        If False, a cancellation only interrupts the turn, even after the response to the request that began the
        turn.
        """
        return self.full_version

    @property
    def describes_approvals(self) -> bool:
        """True if approval requests have ids, reasons, files and a form with all decisions."""
        return self.full_version

    def is_timeout(self, reason: str | None) -> bool:
        """Return whether a cancellation with the reason `reason` means only that the client has stopped waiting.
        The turn then continues.

        At protocol version 2026-07-28, the result is True for every cancellation, because a cancellation cannot be
        distinguished from a lost connection.
        """
        return self.modern or (reason is not None and any(part in reason for part in self.timeout_reasons))


PLAIN: Final = Features()
"""The features of a client at protocol version 2025-06-18 or older, and of a client that has not sent
`initialize`.
"""

FULL: Final = Features(additions=True, full_version=True)
"""The features of a client at protocol version 2025-11-25."""


def features_of(version: str, client_name: str | None, settings: McpSettings) -> Features:
    """Return the features of a client at the protocol version `version`. `client_name` is its `clientInfo.name`;
    None if the client has sent no name.
    """
    modern = version == MODERN_VERSION
    full_version = modern or version == FULL_VERSION
    host = KNOWN_HOSTS.get(client_name or "")
    may_answer = host is None or settings.model_may_answer
    if settings.features == "plain":
        return Features(modern=modern, full_version=full_version, may_answer_approvals=may_answer)
    if host is None:
        additions = full_version or settings.features == "full"
        return Features(modern=modern, additions=additions, full_version=full_version)
    return Features(
        modern=modern,
        additions=True,
        full_version=full_version,
        event_notifications=False,
        explains_results=True,
        may_answer_approvals=may_answer,
        dismissal_denies=True,
        timeout_reasons=host.timeout_reasons,
    )
