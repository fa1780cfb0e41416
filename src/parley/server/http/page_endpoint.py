"""The endpoints of the web page besides `/mcp`: its files, and its sign-in."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from parley.errors import BodyTooLarge, BodyUnreadable
from parley.ports.http import HttpRequest
from parley.server.context import Principal
from parley.server.errors import RequestRefused
from parley.server.http.authentication import UNAUTHORIZED, Authenticator
from parley.server.http.errors import (
    BadBody,
    RequestBodyTooLarge,
    RequestBodyUnreadable,
    SignInFailed,
    UnsupportedMediaType,
)
from parley.server.http.guard import Guard
from parley.server.http.messages import JSON, refusal
from parley.server.http.sign_ins import IDLE_SECONDS, SignIns
from parley.version import __version__
from parley.wire.http import PAGE_SECRET, HttpAnswer

__all__ = ["SIGN_IN_PATH", "PageEndpoint", "PageFiles"]

SIGN_IN_PATH: Final = "/sign-in"
MOST_BODY_BYTES: Final = 4096


class PageFiles(Protocol):
    """The static files of the page."""

    @property
    def build(self) -> str:
        """The hash of all files."""
        ...

    def answer(self, path: str, request: HttpRequest) -> HttpAnswer | None:
        """Return the answer to a request for a file; None if the path does not belong to the page."""
        ...


class _Credentials(Struct):
    """The body of a request to sign in. It has exactly one of the two members."""

    code: str = ""
    token: str = ""


_decoder: Final = msgspec.json.Decoder(_Credentials)


class _SignedIn(Struct):
    """The answer with the sign-in of the page."""

    name: str
    role: str
    conversation_id: str | None
    version: str
    build: str
    push_key: str | None
    secret: str | UnsetType = UNSET


class PageEndpoint:
    """Answers the requests of browsers for the page and for its sign-in."""

    def __init__(self, files: PageFiles, sign_ins: SignIns, authenticator: Authenticator) -> None:
        """Create the endpoint. `authenticator` counts wrong codes and tokens."""
        self.files, self.sign_ins, self._authenticator = files, sign_ins, authenticator

    def serves(self, path: str) -> bool:
        """Return whether a path belongs to the sign-in."""
        return path == SIGN_IN_PATH

    async def principal(self, request: HttpRequest, guard: Guard) -> Principal | None:
        """Return the sender of a request with a cookie and a secret; None if they are missing or wrong, or if the
        request does not come from the page.
        """
        return await self.sign_ins.principal(request) if guard.is_from_own_page(request) else None

    async def answer(self, path: str, request: HttpRequest, guard: Guard) -> HttpAnswer:
        """Return the answer to a request for the sign-in."""
        if not guard.is_from_own_page(request):
            return HttpAnswer(status=HTTPStatus.FORBIDDEN)
        try:
            if request.method == "POST":
                return await self._sign_in(request, guard)
            principal = await self.sign_ins.principal(request)
            if principal is None:
                if request.header(PAGE_SECRET) and (delay := self._authenticator.failed()):
                    await asyncio.sleep(delay)
                return UNAUTHORIZED
            request.authenticated()
            match request.method:
                case "GET":
                    return self._signed_in(principal)
                case "DELETE":
                    await self.sign_ins.end(principal)
                    return HttpAnswer(status=HTTPStatus.NO_CONTENT)
                case _:
                    return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, POST, DELETE"})
        except RequestRefused as refused:
            return refusal(refused)

    async def _sign_in(self, request: HttpRequest, guard: Guard) -> HttpAnswer:
        given = await _credentials(request)
        try:
            if given.code:
                new = await self.sign_ins.with_code(given.code)
            else:
                new = await self.sign_ins.with_token(given.token)
        except SignInFailed:
            if delay := self._authenticator.failed():
                await asyncio.sleep(delay)
            raise
        attributes = ["HttpOnly", "SameSite=Strict", f"Max-Age={IDLE_SECONDS:.0f}"]
        if (guard.own_origin(request) or "").startswith("https:"):
            attributes.append("Secure")
        # Without `Path`, the cookie is sent to the folder of this address only, as the browser sees the address.
        cookie = "; ".join((new.cookie, *attributes))
        answer = self._signed_in(new.principal, secret=new.secret)
        return HttpAnswer(status=answer.status, body=answer.body, headers={**answer.headers, "Set-Cookie": cookie})

    def _signed_in(self, principal: Principal, *, secret: str | UnsetType = UNSET) -> HttpAnswer:
        body = _SignedIn(
            name=principal.name,
            role=principal.role.label,
            conversation_id=principal.conversation,
            version=__version__,
            build=self.files.build,
            push_key=None,
            secret=secret,
        )
        return HttpAnswer(status=HTTPStatus.OK, body=msgspec.json.encode(body), headers=JSON)


async def _credentials(request: HttpRequest) -> _Credentials:
    """Read the body of a request to sign in.

    Raises:
        HttpRefused: the body is not JSON with a code or a token.
    """
    content_type = [value.partition(";")[0].strip().lower() for value in request.header("Content-Type")]
    if content_type != ["application/json"] or request.header("Content-Encoding"):
        raise UnsupportedMediaType
    if request.header("Transfer-Encoding"):  # a body of many small chunks takes long to read
        raise BadBody("the body must have a Content-Length")
    try:
        body = await request.body(MOST_BODY_BYTES, lambda size: None)
    except BodyTooLarge:
        raise RequestBodyTooLarge(f"the body is larger than {MOST_BODY_BYTES} bytes") from None
    except BodyUnreadable as error:
        raise RequestBodyUnreadable(str(error)) from None
    try:
        given = _decoder.decode(body)
    except msgspec.DecodeError:
        raise BadBody("the body must be an object with a `code` or a `token`") from None
    if bool(given.code) == bool(given.token):
        raise BadBody("the body must have either a `code` or a `token`")
    return given
