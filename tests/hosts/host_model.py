"""A stand-in for the model of a host: an HTTP server on loopback that speaks four model APIs.

A host (Claude Code, Codex, opencode, Gemini CLI) asks its own model what to do next. The test
decides instead: for each request, `decide` gets what the model sees (the tools and the results of
earlier calls) and returns a text or one tool call. `host_apis.py` translates to and from each API.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from hosts.host_apis import API_BY_PATH, Decision, Say, View

__all__ = ["HostModel"]


class HostModel:
    """A context manager that runs the model of a host on loopback. `url` is its address."""

    def __init__(self, decide: Callable[[View], Decision]) -> None:
        self.views: list[View] = []
        """The contents of all requests that offered Parley's tools."""
        self.unknown: list[str] = []
        """Requests that no API of the stand-in serves."""
        self._decide = decide
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HostModel:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, view: View) -> Decision:
        if not any("codex" in tool or "conversation" in tool for tool in view.tools):
            return Say("ok")  # a request of the host itself, such as a request for a title
        with self._lock:
            self.views.append(view)
            return self._decide(view)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                path = self.path.partition("?")[0]
                for pattern, api in API_BY_PATH:
                    if pattern.search(path):
                        request: Any = json.loads(body)
                        kind, content = api.encode(model._answer(api.view(request)), request, path)
                        self._send(200, kind, content)
                        return
                model.unknown.append(f"POST {self.path}")
                self._send(404, "application/json", b"{}")

            def do_GET(self) -> None:
                model.unknown.append(f"GET {self.path}")
                self._send(404, "application/json", b"{}")

            def do_HEAD(self) -> None:
                self._send(200, "application/json", b"")

            def _send(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_request(self, *_: object) -> None:
                pass  # keeps the output of the tests readable

        return Handler
