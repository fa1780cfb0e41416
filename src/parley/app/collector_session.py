"""The HTTP session for a collector of OpenTelemetry. Only `otel.py` imports this module, because `requests` is an
optional dependency.

By default, `requests` reads a whole response, so a collector could fill the memory of the server.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import get_auth_from_url

__all__ = ["MAX_RESPONSE_BYTES", "CollectorSession"]

MAX_RESPONSE_BYTES: Final = 64 * 1024
"""The maximum number of bytes that are read from a response of the collector. A complete response is smaller: it
contains at most an error message.
"""


class CollectorSession(requests.Session):
    """A session that reads only the beginning of each response, and follows no redirects. The session does not read
    `~/.netrc`, whose password would replace the configured `Authorization` header.
    """

    def __init__(self) -> None:
        super().__init__()
        self.auth = _authorize

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        # A compressed response could expand to a large one.
        request.headers["Accept-Encoding"] = "identity"
        response = super().send(request, **{**options, "stream": True, "allow_redirects": False})
        is_plain = response.headers.pop("Content-Encoding", "identity").strip().lower() == "identity"
        raw = response.raw
        response.raw = BytesIO(raw.read(MAX_RESPONSE_BYTES, decode_content=False) if is_plain else b"")
        raw.close()
        return response


def _authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add an `Authorization` header with the user name and the password in the URL of the request, and return the
    request. Do nothing if the URL contains neither.

    `requests` does not add this header itself if the session has a function for the authorization.
    """
    user, password = get_auth_from_url(request.url or "")
    return HTTPBasicAuth(user, password)(request) if user or password else request
