"""The headers of requests to an HTTP tool server."""

from __future__ import annotations

import pytest

from parley.config.types import ToolServer
from parley.tools.errors import NotStarted
from parley.tools.servers.headers import request_headers


def test_headers_come_from_the_settings_and_the_environment() -> None:
    server = ToolServer(
        name="x",
        http_headers={"X-Team": "tools", "X-Both": "settings", "authorization": "Basic abc"},
        env_http_headers={"X-Both": "BOTH", "X-Absent": "ABSENT", "X-Blank": "BLANK"},
        bearer_token_env_var="TOKEN",
    )
    environ = {"BOTH": " environment\n", "BLANK": " ", "TOKEN": "t"}

    assert request_headers(server, environ) == {
        "X-Team": "tools",
        "X-Both": "environment",
        "Authorization": "Bearer t",
    }
    assert request_headers(ToolServer(name="x"), {}) == {}


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({"Two Words": "v"}, "`Two Words` is not a header that can be set"),
        ({"": "v"}, "`` is not a header that can be set"),
        ({"Host": "elsewhere"}, "`Host` is not a header that can be set"),
        ({"content-length": "5"}, "`content-length` is not a header that can be set"),
        ({"X-Evil": "s3cret\r\nX: 1"}, "the value of the header `X-Evil` has control characters"),
    ],
)
def test_a_header_that_cannot_be_sent_is_named_without_its_value(headers: dict[str, str], detail: str) -> None:
    with pytest.raises(NotStarted) as failure:
        request_headers(ToolServer(name="x", http_headers=headers), {})
    assert failure.value.detail == detail
