"""A Git server over HTTP on loopback, with a password, for one bare repository."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["GitServer", "serve_git"]


class GitServer:
    """The state of the server. Tests may change the password while the server is running."""

    def __init__(self, repository: Path, user: str, password: str, redirect: str | None) -> None:
        self.repository, self.user, self.password, self.redirect = repository, user, password, redirect
        self.port = 0
        self.requests: list[str] = []
        """The paths of the requests, in order."""

    @property
    def authorization(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@asynccontextmanager
async def serve_git(
    repository: Path, *, user: str = "", password: str = "", redirect: str | None = None
) -> AsyncIterator[GitServer]:
    """Serve a bare repository. With `redirect`, every request is redirected to another server."""
    state = GitServer(repository, user, password, redirect)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, *arguments: object) -> None:
            pass

        def _serve(self) -> None:
            state.requests.append(self.path)
            if state.redirect is not None:
                self.send_response(302)
                self.send_header("Location", state.redirect + self.path)
                self.end_headers()
            elif self.headers.get("Authorization") != state.authorization:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
            else:
                self._run_backend()

        def _run_backend(self) -> None:
            path, _, query = self.path.partition("?")
            answer = subprocess.run(
                ("git", "-c", "http.receivepack=true", "http-backend"),
                input=self._body(),
                capture_output=True,
                check=True,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(state.repository.parent),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "REMOTE_USER": state.user,
                },
            ).stdout
            head, _, body = answer.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            return b"".join(parts)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="git-http", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
