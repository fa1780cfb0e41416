"""The known hosts, and the features of each client.

A host is a coding agent that starts Parley as a tool server: its model calls our tools, and no program reads our
notifications. Only this table knows the peculiarities of hosts. All other code uses `Features`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from parley.config.types import McpSettings
from parley.wire.mcp import FULL_VERSION

__all__ = ["FULL", "KNOWN_HOSTS", "PLAIN", "Features", "KnownHost", "features_of"]

_SDK_TIMEOUT: Final = "Request timed out"
"""The reason that clients built on the TypeScript SDK give when they stop waiting for an answer."""


class KnownHost(Struct, frozen=True, kw_only=True):
    """One coding agent."""

    title: str
    timeout_reasons: tuple[str, ...]
    """Substrings of cancellation reasons that mean that the client stopped waiting. Such a cancellation does not
    stop the turn.
    """


KNOWN_HOSTS: Final[Mapping[str, KnownHost]] = MappingProxyType(
    {
        "claude-code": KnownHost(title="Claude Code", timeout_reasons=(_SDK_TIMEOUT,)),
        "codex-mcp-client": KnownHost(title="Codex", timeout_reasons=("MCP response future dropped", "timed out")),
        "opencode": KnownHost(title="opencode", timeout_reasons=(_SDK_TIMEOUT,)),
        "gemini-cli-mcp-client": KnownHost(title="Gemini CLI", timeout_reasons=(_SDK_TIMEOUT,)),
    }
)
"""By the `clientInfo.name` of `initialize`."""


class Features(Struct, frozen=True, kw_only=True):
    """What one client sees. The negotiated version, the host and `[mcp] features` decide."""

    additions: bool = False
    """Parley's additions to the protocol: annotations, output schemas, instructions, structured results, codes."""
    full_version: bool = False
    """True if the client negotiated 2025-11-25, which decides what the protocol itself allows.

    It also decides that a cancelled request gets no answer, and that an answered send cannot be cancelled.
    """
    event_notifications: bool = True
    """True if events are sent. Hosts ignore events."""
    explains_results: bool = False
    """True if results of `codex` and `codex-reply` also tell the host's model how to continue."""
    may_answer_approvals: bool = True
    """True if the client is offered `approvalAnswer`. In a host, the model would answer."""
    dismissal_denies: bool = False
    """True if a cancelled elicitation denies the action instead of stopping the turn. A host without a person
    cancels every elicitation.
    """
    timeout_reasons: tuple[str, ...] = ()

    def is_timeout(self, reason: str | None) -> bool:
        """Return whether a cancellation with this reason is a timeout of the client, after which the turn
        continues.
        """
        return reason is not None and any(part in reason for part in self.timeout_reasons)


PLAIN: Final = Features()
"""Features of a client at 2025-06-18 or older, or before `initialize`."""

FULL: Final = Features(additions=True, full_version=True)
"""Features of a client at 2025-11-25."""


def features_of(version: str, client_name: str | None, settings: McpSettings) -> Features:
    """Return the features of a client that negotiated `version` and has the name `client_name`."""
    full_version = version == FULL_VERSION
    host = KNOWN_HOSTS.get(client_name or "")
    may_answer = host is None or settings.model_may_answer
    if settings.features == "plain":
        return Features(full_version=full_version, may_answer_approvals=may_answer)
    if host is None:
        return Features(additions=full_version or settings.features == "full", full_version=full_version)
    return Features(
        additions=True,
        full_version=full_version,
        event_notifications=False,
        explains_results=True,
        may_answer_approvals=may_answer,
        dismissal_denies=True,
        timeout_reasons=host.timeout_reasons,
    )
