"""One request to a provider, and the explanation of each failure."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kit.models.model_service import ModelService, model_service
from kit.system.certificates import make_certificate
from kit.system.ports import free_port
from parley.app.provider_check import ProviderAnswer, ProviderFault, check_provider
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.wire.events import TokenCount

KEY = "sk-never-told-0123456789"


@pytest.fixture
def service() -> Iterator[ModelService]:
    with model_service("small", "large") as running:
        yield running


def settings(tmp_path: Path, url: str, *overrides: str, **environ: str) -> Settings:
    table = ("model_provider=mine", "model=small", f"model_providers.mine.base_url={url}")
    key = "model_providers.mine.env_key=MINE"
    loader = Loader(
        environ={"MINE": KEY} | environ,
        server_dir=str(tmp_path),
        home=str(tmp_path),
        overrides=(*table, key, *overrides),
    )
    return loader.choose(SettingsOverrides()).settings


async def fault(found: Settings) -> tuple[str, str]:
    result = await check_provider(found)
    assert isinstance(result, ProviderFault), result
    assert KEY not in f"{result}"
    return result.reason, result.to_do


@pytest.mark.promises("doctor.online")
async def test_a_provider_that_answers_gets_one_request_without_tools(
    tmp_path: Path, service: ModelService
) -> None:
    result = await check_provider(settings(tmp_path, service.base_url))

    assert isinstance(result, ProviderAnswer)
    assert result.usage is None or isinstance(result.usage, TokenCount)
    [(path, headers, body)] = service.requests
    assert (path, headers["authorization"], body["model"]) == ("/v1/chat/completions", f"Bearer {KEY}", "small")
    assert "tools" not in body


@pytest.mark.promises("doctor.online")
@pytest.mark.parametrize(
    ("status", "body", "reason", "to_do"),
    [
        (
            401,
            f'{{"error": {{"message": "Incorrect API key: {KEY}"}}}}',
            "mine refused the key (status 401): Incorrect API key: ***",
            "check the key in MINE: it may be mistyped, expired or not allowed to use this model",
        ),
        (
            429,
            "slow down",
            "mine accepts no more requests at present: exceeded retry limit, last status: 429 Too Many Requests",
            "check the credit and the limits of your account at mine, or wait",
        ),
        (
            402,
            '{"error": "no credit"}',
            "mine accepts no more requests at present: status 402: no credit",
            "check the credit and the limits of your account at mine, or wait",
        ),
        (
            503,
            "",
            "mine reports an internal error: exceeded retry limit, last status: 503 Service Unavailable",
            "try again in a few minutes",
        ),
        (
            400,
            '{"error": {"message": "bad\\n  request"}}',
            "mine refused the request (status 400: bad request)",
            "check the name of the model and the settings of the provider",
        ),
        (
            200,
            "<html>welcome</html>",
            "the response is not valid for the API 'chat': stream disconnected before completion: "
            "the body contains no response; it begins with: <html>welcome</html>",
            "check `base_url` and `wire_api` in `model_providers.mine`",
        ),
    ],
)
async def test_a_refusal_is_explained(
    tmp_path: Path, service: ModelService, status: int, body: str, reason: str, to_do: str
) -> None:
    service.status, service.body = status, body

    assert await fault(settings(tmp_path, service.base_url)) == (reason, to_do)


@pytest.mark.promises("doctor.online")
@pytest.mark.parametrize("status", [400, 404])
async def test_an_unknown_model_comes_with_the_most_similar_models(
    tmp_path: Path, service: ModelService, status: int
) -> None:
    service.status, service.body = status, '{"error": {"message": "no such model"}}'
    result = await check_provider(settings(tmp_path, service.base_url, "model=smal"))

    assert result == ProviderFault(
        reason=f"mine does not offer the model 'smal' (status {status}: no such model)",
        to_do="choose another model with `parley config set model`, for example small",
        is_about_model=True,
    )


@pytest.mark.promises("doctor.online")
async def test_a_missing_key_sends_no_request(tmp_path: Path, service: ModelService) -> None:
    reason, to_do = await fault(settings(tmp_path, service.base_url, MINE=""))

    assert (reason, service.requests) == ("the key is missing: MINE is not set", [])
    assert to_do.startswith("set it with `export MINE=...`")


@pytest.mark.promises("doctor.online")
async def test_an_address_without_a_server_is_explained(tmp_path: Path) -> None:
    port = free_port()
    reason, to_do = await fault(settings(tmp_path, f"http://127.0.0.1:{port}/v1?token={KEY}"))

    assert reason == f"http://127.0.0.1:{port} cannot be reached: Connection refused"
    assert to_do == "start the model server mine, or correct its URL"


@pytest.mark.promises("doctor.online")
async def test_a_proxy_that_fails_is_named(tmp_path: Path) -> None:
    port = free_port()
    plain = await fault(settings(tmp_path, "http://api.example/v1", http_proxy=f"http://127.0.0.1:{port}"))
    with refusing_proxy(407) as proxy:
        refused = await fault(settings(tmp_path, "https://api.example/v1", https_proxy=proxy))

    route = "; the request went through the proxy in the environment variables"
    to_do = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    unreachable = "the proxy cannot be reached: Connection refused (os error 111)"
    assert plain == (f"http://api.example cannot be reached: {unreachable}{route}", to_do)
    assert refused == (
        f"https://api.example cannot be reached: the proxy refused the connection with status 407{route}",
        to_do,
    )


@contextmanager
def refusing_proxy(status: int) -> Iterator[str]:
    """Run a proxy that refuses every connection with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
            pass

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.promises("doctor.online")
async def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path) -> None:
    cert, key = await make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # the client ends the handshake
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with served(server):
        reason, to_do = await fault(settings(tmp_path, f"https://localhost:{server.server_address[1]}/v1"))

    assert "cannot be reached: the certificate is not trusted: self-signed certificate" in reason
    assert "SSL_CERT_FILE" in to_do
