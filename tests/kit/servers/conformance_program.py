"""`parley serve` for the official conformance suite, with its fixtures and without tokens.

The suite cannot send a token. The server is otherwise unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kit.servers.conformance_fixtures import with_fixtures
from parley.cli.main import main
from parley.ports.http import HttpRequest
from parley.server import serve
from parley.server.context import Principal, Role
from parley.server.dispatch import Handler
from parley.server.http import messages
from parley.server.http.authentication import Authenticator
from parley.server.http.endpoint import HttpEndpoint
from parley.server.methods import methods
from parley.server.session import Session

CONFORMANCE = Principal(name="conformance", role=Role.ADMIN)
STREAMED = {
    "test_tool_with_progress",
    "test_tool_with_logging",
    "test_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_streaming_elicitation",
}
"""The fixtures that send other messages before their answer."""


async def accept(endpoint: HttpEndpoint, request: HttpRequest) -> Principal:
    return CONFORMANCE


def all_methods(session: Session, *parts: Any) -> Mapping[str, Handler]:
    return with_fixtures(session, methods(session, *parts))


if __name__ == "__main__":
    setattr(HttpEndpoint, "_sender", accept)  # noqa: B010 - in this process alone
    setattr(Authenticator, "is_valid", lambda authenticator, principal: True)  # noqa: B010 - in this process alone
    setattr(serve, "methods", all_methods)  # noqa: B010 - in this process alone
    setattr(messages, "STREAMED_TOOLS", messages.STREAMED_TOOLS | STREAMED)  # noqa: B010 - in this process alone
    sys.exit(main(sys.argv[1:]))
