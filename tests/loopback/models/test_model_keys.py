"""Each provider gets only its own key, and keys appear nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.models.raw_provider import (
    ANTHROPIC_END,
    CHAT_END,
    CHAT_STOP,
    RESPONSES_END,
    Answer,
    Caller,
    Peer,
    chat_text,
    plain,
    responses_event,
    settings,
    streamed,
)
from parley.config.types import Environment, WireApi
from parley.errors import CannotConnect, ModelStreamBroken, UnexpectedStatus
from parley.models.credentials import credentials
from parley.models.errors import MissingVariable

KEY = "sk-of-the-user-0123456789"

WHOLE: dict[WireApi, Answer] = {
    "chat": streamed(chat_text("Done"), CHAT_STOP, CHAT_END),
    "responses": streamed(RESPONSES_END),
    "anthropic": streamed(ANTHROPIC_END),
}


async def authorization(caller: Caller, wire_api: WireApi = "chat", **changes: Any) -> str | None:
    """Return the authorization header of a request with these settings."""
    async with Peer(WHOLE[wire_api]) as peer:
        await caller.ask(peer, wire_api, **changes)
    return peer.asked[0].headers.get("authorization")


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_a_key_from_the_environment_is_a_bearer_token(caller: Caller, api: WireApi) -> None:
    caller.environ["MOCK_KEY"] = f"{KEY}\n"

    assert await authorization(caller, api, env_key="MOCK_KEY") == f"Bearer {KEY}"


async def test_a_key_is_read_anew_for_each_request(caller: Caller) -> None:
    async with Peer(WHOLE["chat"]) as peer:
        for key in ("first-key", "second-key"):
            caller.environ["MOCK_KEY"] = key
            await caller.ask(peer, env_key="MOCK_KEY")

    assert [asked.headers["authorization"] for asked in peer.asked] == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize("environ", [{}, {"MOCK_KEY": ""}, {"MOCK_KEY": " \n"}])
async def test_a_missing_key_is_reported_at_once_with_instructions(caller: Caller, environ: dict[str, str]) -> None:
    caller.environ.update(environ)
    async with Peer(WHOLE["chat"]) as peer:
        with pytest.raises(MissingVariable) as missing:
            await caller.ask(peer, env_key="MOCK_KEY", env_key_instructions="Ask the owner.", request_max_retries=3)

    assert str(missing.value) == "Missing environment variable: `MOCK_KEY`. Ask the owner."
    assert not missing.value.worth_repeating
    assert peer.asked == []


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
async def test_the_openai_key_is_for_openai_alone(caller: Caller, api: WireApi, tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text(f'{{"OPENAI_API_KEY": "{KEY}"}}')
    caller.environ["OPENAI_API_KEY"] = KEY

    assert await authorization(caller, api, home=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("auth_file", "in_environment", "sent"),
    [
        ('{"OPENAI_API_KEY": "from-the-file"}', "from-the-environment", "from-the-file"),
        ('{"OPENAI_API_KEY": null}', "from-the-environment", "from-the-environment"),
        ('{"OPENAI_API_KEY": 7}', "from-the-environment", "from-the-environment"),
        ("not JSON", "from-the-environment", "from-the-environment"),
        (None, "from-the-environment", "from-the-environment"),
    ],
)
async def test_the_file_comes_before_the_environment(
    caller: Caller, tmp_path: Path, auth_file: str | None, in_environment: str, sent: str
) -> None:
    if auth_file is not None:
        (tmp_path / "auth.json").write_text(auth_file)
    caller.environ["OPENAI_API_KEY"] = in_environment

    assert await authorization(caller, "responses", is_openai=True, home=str(tmp_path)) == f"Bearer {sent}"


async def test_openai_without_a_key_says_where_to_put_one(caller: Caller, tmp_path: Path) -> None:
    async with Peer(WHOLE["responses"]) as peer:
        with pytest.raises(MissingVariable) as missing:
            await caller.ask(peer, "responses", is_openai=True, home=str(tmp_path))

    assert missing.value.variable == "OPENAI_API_KEY"
    assert "`parley config init`" in str(missing.value)


async def test_headers_come_from_settings_and_environment(caller: Caller) -> None:
    caller.environ.update({"SET": "from the environment", "EMPTY": ""})
    async with Peer(WHOLE["chat"]) as peer:
        await caller.ask(
            peer,
            http_headers={"X-Static": "yes", "Accept": "text/event-stream, */*"},
            env_http_headers={"X-From-Env": "SET", "X-Empty": "EMPTY", "X-Unset": "UNSET"},
        )

    headers = peer.asked[0].headers
    assert headers["x-static"] == "yes"
    assert headers["accept"] == "text/event-stream, */*"
    assert headers["x-from-env"] == "from the environment"
    assert "x-empty" not in headers
    assert "x-unset" not in headers


@pytest.mark.parametrize(
    "sent",
    [
        {"env_key": "MOCK_KEY"},
        {"http_headers": {"Authorization": f"Bearer {KEY}"}},
        {"http_headers": {"api-key": KEY}},
        {"env_http_headers": {"X-Anything": "MOCK_KEY"}},
        {"http_headers": {"Cookie": f"theme=dark; sid={KEY}"}},
        {"env_http_headers": {"Cookie": "COOKIES"}},
    ],
)
async def test_a_body_that_echoes_a_key_is_shown_without_it(caller: Caller, sent: dict[str, Any]) -> None:
    caller.environ.update({"MOCK_KEY": KEY, "COOKIES": f"theme=dark; sid={KEY}"})
    echo = plain("401 Unauthorized", f"bad key {KEY}, I said {KEY}!".encode())
    async with Peer(echo) as peer:
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer, **sent)

    assert refused.value.body == "bad key ***, I said ***!"
    assert KEY not in repr(refused.value)


@pytest.mark.parametrize("shown", range(len(KEY) + 1))
async def test_a_key_that_is_cut_off_with_the_body_is_not_shown_in_part(caller: Caller, shown: int) -> None:
    caller.environ["MOCK_KEY"] = KEY
    padding = "." * (4096 - shown)
    async with Peer(plain("401 Unauthorized", f"{padding}{KEY} and so on".encode())) as peer:
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer, env_key="MOCK_KEY")

    assert refused.value.body == padding + ("***" if shown == len(KEY) else "")


@pytest.mark.promises("failures.no-response", "model.keys")
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("before", [0, 190, 4090])
async def test_a_body_without_a_response_is_shown_without_the_key(
    caller: Caller, api: WireApi, before: int
) -> None:
    caller.environ["MOCK_KEY"] = KEY
    async with Peer(plain("200 OK", b"x" * before + KEY.encode() + b" is the key" * 500)) as peer:
        with pytest.raises(ModelStreamBroken) as broken:
            await caller.ask(peer, api, env_key="MOCK_KEY")

    shown = ("x" * before + "***" + " is the key" * 500)[:199] + "\u2026"
    assert broken.value.detail == f"the body contains no response; it begins with: {shown}"


async def test_a_status_or_a_failure_that_echoes_a_key_is_shown_without_it(caller: Caller) -> None:
    caller.environ["MOCK_KEY"] = KEY
    failed = responses_event("response.failed", response={"error": {"message": f"who is {KEY}?"}})
    async with Peer(streamed(failed), plain(f"499 {KEY}", b"")) as peer:
        with pytest.raises(ModelStreamBroken) as broken:
            await caller.ask(peer, "responses", env_key="MOCK_KEY")
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer, "responses", env_key="MOCK_KEY")

    assert broken.value.detail == "who is ***?"
    assert refused.value.reason == "***"


async def test_a_header_that_cannot_be_sent_is_a_failure_that_does_not_show_it(caller: Caller) -> None:
    caller.environ["MOCK_KEY"] = f"{KEY}\r\nx-injected: 1"
    async with Peer(WHOLE["chat"]) as peer:
        with pytest.raises(CannotConnect) as failed:
            await caller.ask(peer, env_key="MOCK_KEY")

    assert KEY not in str(failed.value)
    assert peer.asked == []


def test_credentials_show_nothing_of_themselves() -> None:
    who = credentials(settings(env_key="MOCK_KEY", environ=Environment(MOCK_KEY=KEY)))

    assert who.headers == {"authorization": f"Bearer {KEY}"}
    assert KEY not in repr(who)


def test_an_environment_shows_nothing_of_itself() -> None:
    assert KEY not in repr(settings(environ=Environment(MOCK_KEY=KEY)))


def test_ordinary_headers_are_not_struck_out_of_texts() -> None:
    who = credentials(
        settings(
            http_headers={"X-Title": "application"}, env_http_headers={"X-On": "ON"}, environ=Environment(ON="1")
        )
    )

    assert who.hide_in("application 1") == "application 1"
