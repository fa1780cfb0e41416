"""A provider on the loopback that lists its models, and that answers requests with fixed replies. It runs in a
thread, so that tests without an event loop can use it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

__all__ = ["CHAT_REPLY", "ModelService", "model_service"]

CHAT_REPLY: Final = (
    'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"ok"},"finish_reason":null}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n'
    "data: [DONE]\n\n"
)
"""A complete reply of the Chat Completions API."""


class ModelService:
    """The address and the replies of the provider."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self.models = models
        self.status, self.body = 200, CHAT_REPLY
        """The reply to a request for a response of a model."""
        self.base_url = ""
        self.requests: list[tuple[str, Mapping[str, str], Any]] = []
        """The path, the headers and the body of each request so far. The names of headers are in lower case."""


@contextmanager
def model_service(*models: str) -> Iterator[ModelService]:
    """Run a provider with these models."""
    service = ModelService(models)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in service.models]}
            self._answer(200, json.dumps(listed), "application/json", None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._answer(service.status, service.body, "text/event-stream", body)

        def _answer(self, status: int, text: str, kind: str, body: Any) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            service.requests.append((self.path, headers, body))
            data = text.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
