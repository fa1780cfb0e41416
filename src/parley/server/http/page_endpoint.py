"""The endpoints for the web page: the files of the page, `/sign-in`, and `/push` for the push subscription."""

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
from parley.server.http.authentication import UNAUTHORIZED, Authenticator, RateLimit
from parley.server.http.errors import (
    BadBody,
    PushRefused,
    RequestBodyTooLarge,
    RequestBodyUnreadable,
    SignInFailed,
    UnsupportedMediaType,
)
from parley.server.http.guard import Guard
from parley.server.http.messages import JSON, TOO_MANY, UNAVAILABLE, refusal
from parley.server.http.sign_ins import SignIns
from parley.version import __version__
from parley.wire.http import PAGE_SECRET, HttpAnswer

__all__ = ["PUSH_PATH", "SIGN_IN_PATH", "PageEndpoint", "PageFiles", "PushSubscriptions"]

SIGN_IN_PATH: Final = "/sign-in"
PUSH_PATH: Final = "/push"
MAX_BODY_BYTES: Final = 4096
COOKIE_SECONDS: Final = 400 * 86_400
"""The time in seconds for which browsers keep the cookie of a sign-in. It is the longest time that browsers allow.
Most sign-ins end earlier.
"""


class PageFiles(Protocol):
    """The static files of the web page."""

    @property
    def build(self) -> str:
        """A hash of all files, which changes with every change to the page."""
        ...

    def answer(self, path: str, request: HttpRequest) -> HttpAnswer | None:
        """Return the response to the request for the file at `path`; None if the page has no such file."""
        ...


class PushSubscriptions(Protocol):
    """The part of the push message sender that `PageEndpoint` uses."""

    async def public_key(self) -> str | None:
        """Return the public key to which browsers bind their push subscriptions; None if the server cannot send
        push messages.
        """
        ...

    async def checked(self, body: bytes) -> bytes:
        """Check the push subscription in `body`, and return it in the form in which it is stored.

        Raises:
            PushRefused: the subscription cannot be used.
        """
        ...


class _Credentials(Struct):
    """The body of a request to sign in. The body has either a `code` or a `token`."""

    code: str = ""
    token: str = ""


_decoder: Final = msgspec.json.Decoder(_Credentials)


class _SignedIn(Struct):
    """The body of the response to a successful sign-in, and to a request for the current sign-in."""

    name: str
    role: str
    conversation_id: str | None
    version: str
    build: str
    push_key: str | None
    secret: str | UnsetType = UNSET


class PageEndpoint:
    """Handles requests from browsers to sign in and out and to change the push subscription. Provides the files of
    the web page.
    """

    def __init__(
        self,
        files: PageFiles,
        sign_ins: SignIns,
        authenticator: Authenticator,
        push: PushSubscriptions | None = None,
    ) -> None:
        """Create the endpoint.

        `authenticator` counts wrong sign-in codes, tokens and secrets. `push` sends push messages; None if the
        server sends no push messages.
        """
        self.files, self.sign_ins, self._authenticator, self._push = files, sign_ins, authenticator, push

    def serves(self, path: str) -> bool:
        """Return whether `answer` handles requests for `path`."""
        return path in (SIGN_IN_PATH, PUSH_PATH)

    async def principal(self, request: HttpRequest, guard: Guard) -> Principal | None:
        """Return the principal that has signed in with the cookie and the secret in the request.

        Return None if the cookie or the secret is missing or wrong. Also return None if the request does not come
        from the web page, which `guard` determines.
        """
        return await self.sign_ins.principal(request) if guard.is_from_own_page(request) else None

    async def answer(self, path: str, request: HttpRequest, guard: Guard, rate: RateLimit) -> HttpAnswer:
        """Handle a request to `/sign-in` or `/push`, and return the response. `path` is the path of the request,
        and `rate` limits the requests from each principal.
        """
        if not guard.is_from_own_page(request):
            return HttpAnswer(status=HTTPStatus.FORBIDDEN)
        try:
            if (path, request.method) == (SIGN_IN_PATH, "POST"):
                return await self._sign_in(request, guard)
            principal = await self.sign_ins.principal(request)
            if principal is None:
                if request.header(PAGE_SECRET) and (delay := self._authenticator.failed()):
                    await asyncio.sleep(delay)
                return UNAUTHORIZED
            if not request.mark_authenticated(principal.limited_as):
                return UNAVAILABLE
            if not rate.admits(principal):
                return TOO_MANY
            match path, request.method:
                case "/sign-in", "GET":
                    return await self._signed_in(principal)
                case "/sign-in", "DELETE":
                    await self.sign_ins.end(principal)
                    headers = {"Set-Cookie": _cookie(f"{SignIns.cookie_name(request)}=", request, guard, seconds=0)}
                    return HttpAnswer(status=HTTPStatus.NO_CONTENT, headers=headers)
                case "/push", "PUT":
                    is_current = await self.sign_ins.subscribe(principal, await self._subscription(request))
                case "/push", "DELETE":
                    is_current = await self.sign_ins.subscribe(principal, None)
                case _:
                    allowed = "GET, POST, DELETE" if path == SIGN_IN_PATH else "PUT, DELETE"
                    return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": allowed})
            return HttpAnswer(status=HTTPStatus.NO_CONTENT) if is_current else UNAUTHORIZED
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
        cookie = _cookie(new.cookie, request, guard, seconds=COOKIE_SECONDS)
        answer = await self._signed_in(new.principal, secret=new.secret)
        return HttpAnswer(status=answer.status, body=answer.body, headers={**answer.headers, "Set-Cookie": cookie})

    async def _subscription(self, request: HttpRequest) -> bytes:
        if self._push is None:
            raise PushRefused("this server cannot send push messages")
        return await self._push.checked(await _body(request))

    async def _signed_in(self, principal: Principal, *, secret: str | UnsetType = UNSET) -> HttpAnswer:
        body = _SignedIn(
            name=principal.name,
            role=principal.role.label,
            conversation_id=principal.conversation,
            version=__version__,
            build=self.files.build,
            push_key=None if self._push is None else await self._push.public_key(),
            secret=secret,
        )
        return HttpAnswer(status=HTTPStatus.OK, body=msgspec.json.encode(body), headers=JSON)


def _cookie(pair: str, request: HttpRequest, guard: Guard, *, seconds: int) -> str:
    """Return the value of a `Set-Cookie` header that makes the browser keep the cookie `pair` (`NAME=VALUE`) for
    `seconds`. The header has no attribute `Path`, so the browser sends the cookie only to URLs below the directory
    of the sign-in URL.
    """
    attributes = ["HttpOnly", "SameSite=Strict", f"Max-Age={seconds}"]
    if (guard.own_origin(request) or "").startswith("https:"):
        attributes.append("Secure")
    return "; ".join((pair, *attributes))


async def _body(request: HttpRequest) -> bytes:
    """Read and return the body of the request. The body must have the media type `application/json` and at most
    `MAX_BODY_BYTES` bytes.

    Raises:
        HttpRefused: the body does not meet these conditions, or cannot be read.
    """
    content_type = [value.partition(";")[0].strip().lower() for value in request.header("Content-Type")]
    if content_type != ["application/json"] or request.header("Content-Encoding"):
        raise UnsupportedMediaType
    # a body in many small chunks would take long to read
    if request.header("Transfer-Encoding"):
        raise BadBody("the body must have a Content-Length")
    try:
        return await request.body(MAX_BODY_BYTES, lambda size: None)
    except BodyTooLarge:
        raise RequestBodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes") from None
    except BodyUnreadable as error:
        raise RequestBodyUnreadable(str(error)) from None


async def _credentials(request: HttpRequest) -> _Credentials:
    """Read the body of a request to sign in, and return the code or the token in the body.

    Raises:
        HttpRefused: the body cannot be read, or is not JSON with either a code or a token.
    """
    body = await _body(request)
    try:
        given = _decoder.decode(body)
    except msgspec.DecodeError:
        raise BadBody("the body must be an object with a `code` or a `token`") from None
    if bool(given.code) == bool(given.token):
        raise BadBody("the body must have either a `code` or a `token`")
    return given
