"""Commands for conversations that use a server at a URL (`parley.cli.server_address`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import Raw, ValidationError
from msgspec.structs import replace

from kit.builders.images import PNG
from kit.clients.reading import until_state
from kit.servers.command_line import Outcome, environ_of, outcome_of, run_parley
from kit.servers.http_server import HttpServer
from kit.system.certificates import make_certificate
from kit.system.tmux import TMUX, Terminal
from parley.app.http_choice import HttpChoice
from parley.cli.main import COMMANDS, main
from parley.client import UnreadableResult, connect
from parley.server.prompts import _BY_NAME
from parley.testing import ScriptedModel
from parley.testing.home import MODEL
from parley.wire.tools import PositionedEvent

pytestmark = pytest.mark.child_process

WITH_URL = (
    *("chat", "exec", "ls", "show", "watch", "send", "answer", "interrupt", "continue", "fork", "diff"),
    *("attention", "replay", "rename", "archive", "delete"),
)


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """Return an empty directory, which is the home of the commands."""
    path = tmp_path / "nothing"
    path.mkdir()
    return path


async def run(home: Path, *arguments: str, token: str | None = None, **variables: str) -> Outcome:
    given = variables if token is None else {"PARLEY_TOKEN": token, **variables}
    return await run_parley(home, *arguments, variables=given)


@TMUX
@pytest.mark.fresh_process
async def test_a_prompt_of_the_server_attaches_no_image_of_the_user(
    server: HttpServer, nothing: Path, parley_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own.png", "private.png"):
        (nothing / name).write_bytes(PNG + name.encode())
    hostile = replace(_BY_NAME["plan"], text=lambda given: f"{given['task']}\n\n@{nothing}/private.png")
    monkeypatch.setitem(_BY_NAME, "plan", hostile)
    parley_model.says("A plan.")
    env = {**environ_of(nothing), "PARLEY_TOKEN": server.token}
    command = (sys.executable, "-P", "-m", "parley", "chat", "--url", server.url)
    async with Terminal(command, env=env, cwd=nothing) as terminal:
        await terminal.until_shows("scripted-model")
        terminal.type(f"/plan repair @{nothing}/own.png ")
        terminal.press("Enter")
        await terminal.until_shows("A plan.")
        terminal.press("C-d")
        await terminal.until_shows("exit code 0")

    sent = str(parley_model.requests[0].body)
    assert f"@{nothing}/private.png" in sent
    assert sent.count("data:image/png;base64,") == 1


BAD_EVENT = b'{"type":"exec_command_output_delta","call_id":"c","stream":"x","chunk":"eA=="}'


@pytest.mark.parametrize("command", ["show", "diff", "replay"])
async def test_an_event_that_cannot_be_read_is_one_error(
    server: HttpServer, nothing: Path, parley_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    parley_model.says("Done.")
    async with connect(url=server.url, token=server.token) as client:
        conversation = await client.create(cwd=nothing, model=MODEL)
        await (await conversation.send("go")).result()
    monkeypatch.setattr(
        sys.modules["parley.server.tools.read"],
        "_events",
        lambda entry, *_, **__: iter([PositionedEvent(seq=entry.seq, msg=Raw(BAD_EVENT))]),
    )
    outcome = await run(nothing, command, conversation.id, "--url", server.url, token=server.token)

    assert outcome.exit_code == 1
    assert "the result of the server cannot be read" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


async def test_a_stream_whose_snapshot_cannot_be_read_fails(
    server: HttpServer, nothing: Path, parley_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    parley_model.says("Done.")

    def fail(encoded: bytes) -> None:
        raise ValidationError("invalid event")

    async with connect(url=server.url, token=server.token) as client:
        conversation = await client.create(cwd=nothing, model=MODEL)
        await (await conversation.send("go")).result()
        with monkeypatch.context() as patched:
            patched.setattr("parley.client.feeds.decode_event", fail)
            with pytest.raises(UnreadableResult, match="invalid event"):
                async with conversation.stream(after=0):
                    pass
        async with conversation.stream(after=0) as stream:
            assert await anext(stream) is not None


async def test_the_link_of_share_contains_no_control_characters(
    server: HttpServer, tmp_path: Path, nothing: Path, parley_model: ScriptedModel
) -> None:
    async with connect(url=server.url, token=server.token) as client:
        conversation = await client.create(cwd=nothing, model=MODEL)
    settings = tmp_path / "home/config.toml"
    settings.write_text(f'{settings.read_text()}\n[serve]\npublic_url = "https://example.com/\\u202e\\u001b[2J"\n')
    shared = await run(tmp_path / "home", "share", conversation.id)

    assert shared.exit_code == 0
    assert shared.stdout.startswith("https://example.com/\\u202e\\x1b[2J/#token=")


async def test_exec_and_ls_use_the_server_at_a_url_and_not_the_home(
    server: HttpServer, nothing: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("The answer.")
    base = server.url.removesuffix("/mcp")
    done = await run(nothing, "exec", "the question", "--url", base, token=server.token)
    listed = await run(nothing, "ls", "--json", "--url", server.url, "--token-env", "MINE", MINE=server.token)
    (conversation,) = [json.loads(line) for line in listed.stdout.splitlines()]
    async with connect(url=server.url, token=server.token) as client:
        default = (await client.settings()).cwd

    assert (done.exit_code, done.stdout) == (0, "The answer.\n")
    assert (conversation["title"], conversation["cwd"]) == ("the question", default)
    assert os.listdir(nothing) == []  # no home and no server were created


async def test_a_message_joins_a_conversation_of_the_server_by_a_short_id(
    server: HttpServer, nothing: Path, parley_model: ScriptedModel
) -> None:
    parley_model.says("Hello.")
    async with connect(url=server.url, token=server.token) as client:
        conversation = await client.create(cwd=server.work, model=MODEL)
        sent = await run(nothing, "send", conversation.id[:4], "hi", "--url", server.url, token=server.token)
        await until_state(client, conversation.id, "idle")
        shown = await run(nothing, "show", conversation.id[:4], "--url", server.url, token=server.token)

    assert (sent.exit_code, sent.stdout, sent.stderr) == (0, "", "")
    assert "Hello." in shown.stdout


async def test_a_missing_token_and_a_refused_token_are_named_and_never_shown(
    server: HttpServer, nothing: Path
) -> None:
    missing = await run(nothing, "ls", "--url", server.url)
    refused = await run(nothing, "ls", "--url", server.url, "--token-env", "MINE", MINE="wrong-token")

    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "requires a token; put it into the environment variable PARLEY_TOKEN" in missing.stderr
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "refused the token in MINE; the token may be mistyped, expired or revoked" in refused.stderr
    assert "wrong-token" not in refused.stderr


async def test_a_role_that_may_not_do_it_is_refused_with_the_reason(server: HttpServer, nothing: Path) -> None:
    async with connect(url=server.url, token=server.token) as client:
        conversation = await client.create(cwd=server.work, model=MODEL)
    observer = await server.create_token("reader", "observer")
    refused = await run(nothing, "rename", conversation.id, "x", "--url", server.url, token=observer)

    assert refused.exit_code == 1
    assert "driver" in refused.stderr


async def test_a_wrong_url_says_what_is_at_the_url(server: HttpServer, nothing: Path) -> None:
    other = await run(nothing, "ls", "--url", f"{server.url}x", token=server.token)
    closed = await run(nothing, "ls", "--url", "http://127.0.0.1:1", token=server.token)
    no_tls = await run(nothing, "ls", "--url", server.url.replace("http:", "https:"), token=server.token)

    assert [one.exit_code for one in (other, closed, no_tls)] == [1, 1, 1]
    assert f"there is no MCP server at {server.url}x (404)" in other.stderr
    assert "cannot connect to http://127.0.0.1:1/mcp: Connection refused" in closed.stderr
    assert "TLS failed" in no_tls.stderr


async def test_a_certificate_must_be_trusted(parley_model: ScriptedModel, tmp_path: Path, nothing: Path) -> None:
    cert, key = await make_certificate(tmp_path)
    choice = HttpChoice(creates_token=True, tls_cert=str(cert), tls_key=str(key))
    async with HttpServer(parley_model, tmp_path / "home", choice=choice) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        refused = await run(nothing, "ls", "--url", url, token=server.token)
        # A new Python, because Python reads the variable when it loads the HTTP library.
        trusted = await outcome_of(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", "from parley.cli.main import main; main()", "ls", "--url", url),
                env=environ_of(nothing, {"PARLEY_TOKEN": server.token, "SSL_CERT_FILE": str(cert)}),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        )

    assert refused.exit_code == 1
    assert "the certificate is not trusted: self-signed certificate" in refused.stderr
    assert (trusted.exit_code, trusted.stdout, trusted.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--url", "ftp://127.0.0.1/"], "invalid --url 'ftp://127.0.0.1/'"),
        (["--url", "127.0.0.1:8722"], "invalid --url '127.0.0.1:8722'"),
        (["--url", "http://127.0.0.1:99999"], "--url: Port out of range"),
        (["--url", "http://me:secret@127.0.0.1"], "--url contains a user name or a password"),
        (["--url", "http://127.0.0.1/#token=secret"], "--url contains a fragment"),
        (["--url", "http://parley.example/mcp"], "would be sent to parley.example without encryption"),
        (
            ["--url", "https://parley.example", "--token-env", "NOT_SET"],
            "the environment variable NOT_SET is not set",
        ),
        (["--token-env", "PARLEY_TOKEN"], "--token-env requires --url"),
    ],
)
def test_a_url_that_cannot_be_used_is_a_usage_error_and_nothing_is_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], why: str
) -> None:
    monkeypatch.setenv("PARLEY_TOKEN", "a-token")
    code = main(["ls", *options])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert why in err
    assert "secret" not in err


@pytest.mark.parametrize("option", [["-c", "model=x"], ["--resident"]])
def test_options_for_a_local_server_are_refused_with_a_url(
    capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["send", "0", "hi", "--url", "https://parley.example", *option]) == 2
    assert f"{option[0]} has no effect on the server at a URL" in capsys.readouterr().err


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_the_commands_for_conversations_and_no_others_accept_a_url(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    main([command, "--help"])

    assert ("--url URL" in capsys.readouterr().out) == (command in WITH_URL)
