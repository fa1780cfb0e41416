"""The known hosts, and what each client sees.

A host is a coding agent that starts Parley as one of its tool servers: its model calls our tools, and
no program of its user reads our notifications. This table is the only place that knows the
peculiarities of hosts. Everything else asks `Features`.
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
"""What clients built on the TypeScript SDK give as the reason when they stop waiting for an answer."""


class KnownHost(Struct, frozen=True, kw_only=True):
    """One coding agent."""

    title: str
    timeout_reasons: tuple[str, ...]
    """Parts of the reasons of cancellations by which it stops waiting, though nobody wants the work stopped."""


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
    """What one client sees, by the version that it negotiated, its host and `[mcp] features`."""

    additions: bool = False
    """Parley's additions to the protocol: annotations, output schemas, instructions, structured results."""
    full_version: bool = False
    """Whether the client negotiated 2025-11-25, which decides what the protocol itself allows.

    It also decides that a cancelled request gets no answer, and that an answered send cannot be cancelled.
    """
    event_notifications: bool = True
    """Whether events are sent; a host drops them."""
    explains_results: bool = False
    """Whether results of `codex` and `codex-reply` also say, for the host's model, how to go on."""
    may_answer_approvals: bool = True
    """Whether the client is offered `approvalAnswer`: behind a host, a model would answer."""
    dismissal_denies: bool = False
    """Whether a cancelled elicitation denies instead of stopping the turn: a host without a person cancels all."""
    timeout_reasons: tuple[str, ...] = ()

    def is_timeout(self, reason: str | None) -> bool:
        """Tell whether a cancellation with this reason ends the waiting and not the work."""
        return reason is not None and any(part in reason for part in self.timeout_reasons)


PLAIN: Final = Features()
"""Features of a client at 2025-06-18 or older, or before `initialize`."""

FULL: Final = Features(additions=True, full_version=True)
"""Features of a client at 2025-11-25."""


def features_of(version: str, client_name: str | None, settings: McpSettings) -> Features:
    """Return what a client sees that negotiated `version` and calls itself `client_name`."""
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
