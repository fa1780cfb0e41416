"""The addresses on which the server listens, and the unsafe settings that it refuses."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.clients.http_client import raw_exchange
from kit.system.certificates import make_certificate
from parley.app.http_choice import HttpChoice
from parley.app.http_service import HttpService
from parley.config.types import ServeSettings
from parley.errors import BadSetting

TOKEN = "t" * 32


def service(choice: HttpChoice | None = None, **settings: Any) -> HttpService:
    core: Any = SimpleNamespace(context=SimpleNamespace(signing_key=bytes(32)))  # no client connects
    return HttpService(
        core,
        ServeSettings(**settings),
        choice or HttpChoice(token=TOKEN),
        on_connected=lambda client: None,
    )


@pytest.mark.promises("http.exposure")
async def test_by_default_it_listens_on_loopback_with_a_free_port() -> None:
    one, other = service(), service(HttpChoice(host="::1", creates_token=True))

    assert one.url.startswith("http://127.0.0.1:")
    assert other.url.startswith("http://[::1]:")
    assert (one.token, len(other.token or "")) == (None, 43)
    for each in (one, other):
        await each.close()


@pytest.mark.promises("http.exposure")
@pytest.mark.parametrize(
    ("settings", "choice", "reason"),
    [
        ({"host": "0.0.0.0"}, HttpChoice(token=TOKEN), "is not loopback: set serve.tls_cert"),
        ({"host": "::"}, HttpChoice(token=TOKEN), "is not loopback: set serve.tls_cert"),
        ({"host": "0.0.0.0", "public_url": "https://parley.example"}, HttpChoice(), "there is no token"),
        ({}, HttpChoice(token="short"), "at least 32 characters"),
        ({"tls_cert": "/nowhere.pem"}, HttpChoice(), "must be set together"),
        ({"tls_cert": "/nowhere.pem", "tls_key": "/nowhere.pem"}, HttpChoice(), "cannot be used"),
        ({"host": "192.0.2.1", "public_url": "https://parley.example"}, HttpChoice(token=TOKEN), "cannot listen"),
    ],
)
async def test_it_refuses_what_is_not_safe_or_not_possible(
    settings: dict[str, Any], choice: HttpChoice, reason: str
) -> None:
    with pytest.raises(BadSetting, match=reason):
        service(choice, **settings)


@pytest.mark.promises("http.exposure")
async def test_the_public_address_is_an_accepted_host() -> None:
    each = service(public_url="https://parley.example/")
    port = each._listener._sockets[0].getsockname()[1]

    async def status(host: str) -> bytes:
        head = f"GET /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        return (await raw_exchange(f"http://127.0.0.1:{port}", head))[9:12]

    assert each.url == "https://parley.example/mcp"
    assert [await status("parley.example"), await status("other.example")] == [b"401", b"403"]
    await each.close()


@pytest.mark.promises("http.exposure")
async def test_with_a_certificate_it_speaks_tls_only(tmp_path: Path) -> None:
    cert, key = await make_certificate(tmp_path)
    each = service(HttpChoice(token=TOKEN, host="localhost", tls_cert=str(cert), tls_key=str(key)))
    context = ssl.create_default_context(cafile=str(cert))

    import aiohttp

    async with aiohttp.ClientSession() as client, client.get(each.url, ssl=context) as response:
        status = response.status
    plain = await raw_exchange(each.url, b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (each.url.partition(":")[0], status) == ("https", 401)
    assert not plain.startswith(b"HTTP")
    await each.close()
