"""`parley serve` with HTTP: its output, its stored data, and the server that listens."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import stat
from pathlib import Path

import aiohttp
import pytest

from kit.clients.http_client import HttpClient
from kit.clients.page_client import PageClient
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong
from kit.clients.shell_turns import sh
from kit.servers.resident_process import ResidentProcess, content_of, outcome_of, parley, start_parley
from kit.system.certificates import make_certificate
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.ports import free_port
from kit.system.waiting import until
from parley.app.tokens import create_token
from parley.client import connect
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ScriptedModel

pytestmark = pytest.mark.child_process


@pytest.mark.promises("http.discovery")
async def test_the_token_is_printed_once_and_nowhere_else(resident: ResidentProcess, home: Path) -> None:
    description = resident.description
    async with HttpClient(description["url"], token=description["token"]) as client:
        await client.initialize()
        answered = (await client.post(ping(1))).json
        status = await parley("serve", "--status", "--json", env=resident.environ)
        second = await parley("serve", "--json", env=resident.environ)
        await client.send("DELETE")
    stored = content_of(home)

    assert answered == pong(1)
    assert set(description) == {"url", "token", "socket", "pid", "version", "page"}
    assert (
        json.loads((home / "serve.json").read_text())["url"] == description["url"] == json.loads(status[1])["url"]
    )
    assert json.loads(status[1])["clients"] == 1
    assert stat.S_IMODE((home / "serve.json").stat().st_mode) == 0o600
    assert (second[0], json.loads(second[1])["url"]) == (4, description["url"])
    for text in (stored, resident.stderr_text().encode(), *(part.encode() for part in (*status[1:], *second[1:]))):
        assert description["token"].encode() not in text


@pytest.mark.promises("http.discovery", "resident.settings")
async def test_a_token_from_the_environment_is_accepted_and_removed(
    parley_model: ScriptedModel, home: Path
) -> None:
    token = "a-token-of-more-than-thirty-two-characters"
    config = '[shell_environment_policy]\ninherit = "all"\nignore_default_excludes = true\n'
    async with (
        ResidentProcess(
            parley_model, home, config=config, env={"PARLEY_SERVE_TOKEN": token, "MARK": "of the resident"}
        ) as resident,
        HttpClient(resident.description["url"], token=token) as client,
    ):
        await client.initialize()
        conversation = await client.create()
        parley_model.says(sh("c1", "env"))
        parley_model.says("Done.")
        await client.say(conversation, "go")
        await until_state(client, conversation, "idle")
        events = (await client.call("conversationRead", conversation_id=conversation))["events"]
        (output,) = [one["msg"]["stdout"] for one in events if one["msg"]["type"] == "exec_command_end"]

        assert "MARK=of the resident\n" in output  # a turn of an HTTP client has the environment of the server
        assert token not in output
        assert resident.description["token"] != token
        assert token not in resident.stderr_text()


@pytest.mark.promises("http.discovery")
async def test_a_server_in_the_background_and_one_without_http_have_no_address(
    parley_model: ScriptedModel, home: Path
) -> None:
    for options in (("--no-http",), ("--exit-when-idle",)):
        async with ResidentProcess(parley_model, home, arguments=options) as resident:
            assert (resident.description["url"], resident.description["token"]) == (None, None)
    async with ResidentProcess(
        parley_model, home, config='[serve]\nhttp = "on"\n', arguments=("--exit-when-idle",)
    ) as resident:
        assert resident.description["url"] is not None


@pytest.mark.promises("http.discovery")
async def test_a_server_listens_on_http_before_there_is_a_token(parley_model: ScriptedModel, home: Path) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        env = {**resident.environ, "PARLEY_HOME": str(home.with_name("other"))}
        (home.with_name("other")).mkdir()
        process = await start_parley("serve", env=env)
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            serving = (await process.stdout.readline()).decode()
            page = (await process.stdout.readline()).decode()
        stopped = await parley("serve", "--stop", env=env)
        await outcome_of(process)

    assert "http://127.0.0.1:" in serving
    assert page.startswith("page    http://127.0.0.1:")
    assert "/#code=" in page
    assert "serve.sock" in serving
    assert stopped[0] == 0


@pytest.mark.promises("page.sign-in", "http.discovery")
async def test_each_printed_address_of_the_page_signs_in_one_browser(resident: ResidentProcess, home: Path) -> None:
    description, env = resident.description, resident.environ
    printed = await parley("serve", "--sign-in", env=env)
    as_json = await parley("serve", "--sign-in", "--json", env=env)
    second = await parley("serve", env=env)
    addresses = [description["page"], printed[1].strip(), json.loads(as_json[1])["page"]]
    async with PageClient(description["url"]) as browser:
        statuses = [(await browser.sign_in(code=address.partition("#code=")[2])).status for address in addresses]
        again = await browser.sign_in(code=addresses[0].partition("#code=")[2])

    assert {address.partition("#code=")[0] for address in addresses} == {description["url"].removesuffix("mcp")}
    assert (statuses, again.status) == ([200] * 3, 401)
    assert second[2].endswith("; `parley serve --sign-in` prints a URL of its web page\n")
    for address in addresses:
        code = address.partition("#code=")[2].encode()
        assert code not in content_of(home) + resident.stderr_text().encode()


@pytest.mark.promises("page.sign-in")
async def test_a_server_without_http_has_no_page(parley_model: ScriptedModel, home: Path) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        refused = await parley("serve", "--sign-in", env=resident.environ)
        second = await parley("serve", env=resident.environ)
        page = resident.description["page"]
    absent = await parley("serve", "--sign-in", env=resident.environ)

    assert (page, refused[:2], absent[:2]) == (None, (1, ""), (3, ""))
    assert second[:2] == (4, "")
    assert second[2].endswith(
        ", without a web page; `parley serve --stop` stops it, and `parley serve` then starts one with a page; "
        "open chats reconnect\n"
    )
    assert "it serves no web page" in refused[2]


@pytest.mark.promises("http.exposure")
async def test_an_address_that_cannot_be_used_ends_the_server(parley_model: ScriptedModel, home: Path) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        other = home.with_name("other")
        other.mkdir()
        env = {**resident.environ, "PARLEY_HOME": str(other)}
        exposed = await parley("serve", "--json", "--host", "0.0.0.0", env=env)
        wrong = await parley("serve", "--port", "70000", env=env)

    assert (exposed[0], exposed[1]) == (2, "")
    assert "is not loopback" in exposed[2]
    assert wrong[0] == 2
    assert not (other / "serve.json").exists()


@pytest.mark.promises("resident.reload", "roles.tokens")
async def test_a_hangup_reloads_tokens_and_limits_and_keeps_them_if_the_settings_are_invalid(
    resident: ResidentProcess, home: Path
) -> None:
    url, large = resident.description["url"], {**ping(1), "params": {"_meta": {"text": "x" * 5000}}}
    store = SqliteStore(str(home))
    token, _ = await create_token(store, "phone", "admin")  # the server is not notified
    await store.close()
    config = home / "config.toml"
    before = config.read_text() if config.exists() else ""

    async def reload(text: str) -> None:
        config.write_text(text + before)
        resident.process.send_signal(signal.SIGHUP)

    async with HttpClient(url, token=resident.description["token"]) as client:
        await client.initialize()
        assert (await client.post(large)).status == 200
        await reload("[serve]\nmax_body_bytes = 2000\n")
        while (await client.post(large)).status != 413:
            pass
        async with HttpClient(url, token=token) as other:
            assert (await other.initialize()).status == 200
        await reload('[serve]\nmax_body_bytes = 60000\nhost = "localhost"\n')
        await until(
            lambda: "the settings of the server were not reloaded: a change of serve.host" in resident.stderr_text()
        )
        assert (await client.post(large)).status == 413
        await reload("[serve]\nmax_body_bytes = 60000\n")
        while (await client.post(large)).status != 200:
            pass


@pytest.mark.promises("http.discovery", "resident.reload")
async def test_the_options_of_the_command_line_and_a_renewed_certificate(
    parley_model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    cert, key = await make_certificate(tmp_path)
    port, path = free_port(), tmp_path / "other.sock"
    options = ("--host", "localhost", "--port", str(port), "--socket", str(path))
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with ResidentProcess(parley_model, home, arguments=(*options, *files)) as resident:
        url = resident.description["url"]
        first = await status_over_tls(url, cert)
        async with connect(socket=path) as client:
            listed = await client.list()
        second = await parley("serve", env=resident.environ)
        await make_certificate(tmp_path)
        resident.process.send_signal(signal.SIGHUP)
        while (renewed := await status_over_tls(url, cert)) is None:
            pass

    assert (url, first, renewed) == (f"https://localhost:{port}/mcp", 401, 401)
    assert listed.conversations == ()
    assert (second[0], url in second[2], str(resident.process.pid) in second[2]) == (4, True, True)


@pytest.mark.parametrize("is_link", [False, True])
async def test_a_socket_does_not_replace_another_file(tmp_path: Path, *, is_link: bool) -> None:
    path, notes = tmp_path / "other.sock", tmp_path / "notes"
    notes.write_text("notes")
    if is_link:
        path.symlink_to(notes)
    else:
        path.write_text("notes")

    code, _, errors = await parley("serve", "--no-http", "--socket", str(path), env={"PARLEY_HOME": str(tmp_path)})

    assert (code, path.read_text(), path.is_symlink()) == (1, "notes", is_link)
    assert f"{path} exists and is not a socket" in errors


async def status_over_tls(url: str, cert: Path) -> int | None:
    """Return the status of a request without a token; None if the server has another certificate."""
    context = ssl.create_default_context(cafile=str(cert))
    try:
        async with aiohttp.ClientSession() as client, client.get(url, ssl=context) as response:
            return response.status
    except aiohttp.ClientConnectorCertificateError:
        return None
