"""A browser that shows the web page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kit.clients.http_client import HttpClient, HttpReply, SseReader

__all__ = ["PageClient"]


class PageClient(HttpClient):
    """Sends requests as the script of the page does, with the headers that a browser adds."""

    def __init__(self, url: str, *, origin: str | None = None) -> None:
        """Create the browser. `url` is the address of `/mcp`. `origin` is the origin of the page that it shows."""
        super().__init__(url, token="", capabilities={"elicitation": {}}, name="page")
        self.base = url.removesuffix("/mcp")
        self.origin = origin or "/".join(self.base.split("/")[:3])
        self.cookie: str | None = None
        self.secret: str | None = None

    def headers(self, **changes: str | None) -> dict[str, str]:
        own = {
            "Authorization": None,
            "Origin": self.origin,
            "Sec-Fetch-Site": "same-origin",
            "Cookie": self.cookie,
            "Parley-Page-Secret": self.secret,
        }
        return super().headers(**{**own, **{name.replace("_", "-"): value for name, value in changes.items()}})

    async def send(self, method: str, body: bytes | None = None, **headers: str | None) -> HttpReply:
        """Send any request to `/mcp`. A browser sends no Origin with a GET to the own origin."""
        if method == "GET":
            headers.setdefault("Origin", None)
        return await super().send(method, body, **headers)

    @asynccontextmanager
    async def stream(self, **headers: str | None) -> AsyncIterator[SseReader]:
        async with super().stream(Origin=None, **headers) as reader:
            yield reader

    async def fetch(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str | None
    ) -> HttpReply:
        """Send a request to an address of the page, and do not follow a redirection or decompress the answer."""
        if method in ("GET", "HEAD") and "Origin" not in headers:
            headers["Origin"] = None
        async with self._http.request(
            method,
            f"{self.base}{path}",
            data=body,
            headers=self.headers(**headers),
            allow_redirects=False,
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
        ) as response:
            return HttpReply(response.status, dict(response.headers), await response.read())

    async def sign_in(self, *, body: bytes | None = None, **credentials: str) -> HttpReply:
        """Sign in with `code` or `token`, and keep the cookie and the secret."""
        sent = json.dumps(credentials).encode() if body is None else body
        reply = await self.fetch("/sign-in", method="POST", body=sent)
        if reply.status == 200:
            self.cookie = reply.headers["Set-Cookie"].partition(";")[0]
            self.secret = reply.json["secret"]
        return reply
