"""Recordings of the requests and replies of a model: their content, their secrets, and playing them back."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.codex_calls import events_in, is_event, speaking
from kit.clients.shell_turns import shell
from kit.models.sent_back import IDS, RESPONSE, THOUGHT
from kit.servers.command_line import outcome_of, run_parley, start_parley
from kit.servers.resident_process import ResidentProcess
from kit.system.needs import SANDBOX
from parley.models.recording import MAX_BYTES, create_recording
from parley.testing import HOLD, Call, Data, ScriptedModel, Usage
from parley.wire.mcp import FULL_VERSION

SECRETS: Final = {
    "the key of the provider": "provider key 0123456789",
    "a header without such a name": "team-0123456789",
    "a cookie": "cookie-0123456789",
    "a header": "header-value-0123456789",
    "a parameter": "query-parameter/0123456789",
    "a header from a variable": "variable-header-0123456789",
    "the environment of a tool server": 'tool "server" env 0123456789',
    "an argument of a tool server": "tool-argument-0123456789",
    "a variable of commands": "set-for-commands-0123456789",
    "a variable with the name of a secret": "unrelated-0123456789",
    "a key of another service": "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
    "a variable that a command prints": "printed-by-a-command-0123",
    "a password in a URL": "pass-in-url-01",
    "a member of a JSON file": "member-of-json-0123456789",
}
OUTPUT: Final = f"""\
MY_API_KEY={SECRETS["a variable that a command prints"]}
{SECRETS["the key of the provider"]}
{{"password": "{SECRETS["a member of a JSON file"]}"}}
https://me:{SECRETS["a password in a URL"]}@example.com/
{json.dumps(SECRETS["the environment of a tool server"])}
"""


def _exchanges(path: Path) -> list[Any]:
    header, *lines = path.read_text().splitlines()
    assert header == '{"parley_recording":1}'
    return [json.loads(line) for line in lines]


@pytest.mark.promises("model.recording")
async def test_a_recording_contains_each_part_of_a_conversation_once(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "made.jsonl"
    parley_model.dialect = "deepseek"
    parley_model.says(*RESPONSE)
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        wire.reply(2, "again")
        await wire.answer(2)

    first, second, third = _exchanges(path)
    looks = [
        {"name": "look", "arguments": {"at": at}, "call_id": call_id}
        for at, call_id in zip(("one", "two"), IDS, strict=True)
    ]
    assert first["reply"] == [
        {"raw_reasoning": THOUGHT},
        {"text": "Looking."},
        *({"call": look} for look in looks),
    ]
    assert first["request"]["items"] == [{"user": "go"}]
    assert "shell" in first["request"]["tools"]
    outputs = [{"output": {"call_id": one, "text": "unsupported call: look"}} for one in IDS]
    assert set(second["request"]) == {"kept", "items", "tools"}
    assert second["request"]["items"] == [
        {"assistant": "Looking."},
        {"call": looks[0]},
        outputs[0],
        {"call": looks[1]},
        outputs[1],
    ]
    assert third["request"]["items"] == [{"assistant": "Done"}, {"user": "again"}]
    assert [one["reply"] for one in (second, third)] == [[{"text": "Done"}]] * 2
    assert {one["conversation"] for one in (first, second, third)} == {wire.sessions[0]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.promises("model.recording")
async def test_no_secret_is_recorded(parley_model: ScriptedModel, tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    secrets = dict(SECRETS)
    team, cookie = secrets["a header without such a name"], secrets["a cookie"]
    config = f"""
    record = "{path}"
    model_provider = "gateway"
    [model_providers.gateway]
    base_url = "{parley_model.base_url}"
    env_key = "GATEWAY"
    http_headers = {{ X-Token = "{secrets["a header"]}", X-Team = "{team}", Cookie = "a=b; session={cookie}" }}
    env_http_headers = {{ X-Other = "OTHER" }}
    query_params = {{ account = "{secrets["a parameter"]}" }}
    [mcp_servers.notes]
    command = "false"
    args = ["--token={secrets["an argument of a tool server"]}"]
    env = {{ NOTES = {json.dumps(secrets["the environment of a tool server"])} }}
    [shell_environment_policy]
    set = {{ NAMED = "{secrets["a variable of commands"]}" }}
    """
    env = {
        "GATEWAY": secrets["the key of the provider"],
        "OTHER": secrets["a header from a variable"],
        "SOME_PASSWORD": secrets["a variable with the name of a secret"],
    }
    # Nothing shows that a text is a secret before a command prints it with its name, or that the password of a URL
    # is a secret if it stands alone.
    printed = ("a variable that a command prints", "a member of a JSON file")
    told = [secret for name, secret in secrets.items() if name not in (*printed, "a password in a URL")]
    call = Call("shell", {"command": ["cat", "printed"], "note": "\n".join(told)})
    parley_model.says("\n".join(told), call, Usage())
    failure = Data(json.dumps({"error": f"invalid key {secrets['a header']}"}))
    parley_model.says("\n".join([*told, *(secrets[name] for name in printed)]), failure)
    async with speaking(parley_model, config=config, env=env) as wire:
        (wire.work / "printed").write_text(OUTPUT)
        wire.codex(1, f"My key is {secrets['a key of another service']}, use it at https://me:pass-in-url-01@host/")
        await wire.answer(1)

    sent = parley_model.requests[1].raw.decode()
    assert SECRETS["a variable that a command prints"] in sent
    recorded = path.read_text().replace("\\", "")  # the text is JSON within JSON
    assert [name for name, secret in secrets.items() if secret in recorded] == []
    for shown in ("MY_API_KEY=***", '{"password": "***"}', "https://me:***@host/", "invalid key ***"):
        assert shown in recorded


@pytest.mark.promises("model.recording")
async def test_a_recording_is_played_back_with_the_same_events(parley_model: ScriptedModel, tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    touch = Call("shell", {"command": ["touch", "made"]}, "c1")
    found = {"type": "web_search_call", "id": "s1", "status": "failed", "action": {"type": "search", "query": "x"}}
    parley_model.says("Making it. ", touch, Usage(input_tokens=7, cached_input_tokens=3, output_tokens=2))
    parley_model.says(
        "cut", Data(json.dumps({"type": "response.failed", "response": {"error": {"message": "busy"}}}))
    )
    parley_model.says(Data(json.dumps({"type": "response.output_item.done", "item": found})), "Made.")
    parley_model.fails(400, body="not this")
    config = f'record = "{path}"'
    seen: list[list[Any]] = []
    async with speaking(
        parley_model, api="responses", version=FULL_VERSION, config=config, stream_max_retries=1
    ) as wire:
        wire.codex(1, "go")
        seen.append(events_in(await wire.answer(1)))
        wire.reply(2, "again")
        seen.append(events_in(await wire.answer(2)))
    playing = f"""
    model_provider = "played"
    [model_providers.played]
    wire_api = "scripted"
    script = "{path}"
    stream_max_retries = 1
    """
    async with speaking(parley_model, version=FULL_VERSION, config=playing) as again:
        again.codex(1, "go")
        played = [events_in(await again.answer(1))]
        again.reply(2, "again")
        played.append(events_in(await again.answer(2)))

    assert len(parley_model.requests) == 4
    for recorded, replayed in zip(seen, played, strict=True):
        assert _content(replayed) == _content(recorded)


def _content(events: list[Any]) -> list[Any]:
    """Return what events say, without deltas, ids and delays."""
    kinds = ("agent_message", "exec_command_end", "token_count", "web_search", "error", "task_complete")
    texts = ("type", "message", "exit_code", "total_tokens", "query", "last_agent_message")
    return [{name: event[name] for name in texts if name in event} for event in events if event["type"] in kinds]


@pytest.mark.promises("model.recording")
async def test_an_interrupted_reply_is_recorded_as_far_as_it_came(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "made.jsonl"
    parley_model.says("Half a", HOLD)
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        await wire.until(is_event("agent_message_delta"))
        wire.cancel(1)
        await wire.answer(1)

    (exchange,) = _exchanges(path)
    assert (exchange["reply"], exchange["interrupted"]) == ([{"text": "Half a"}], True)


@pytest.mark.promises("model.recording")
@pytest.mark.parametrize("what", ["a file", "a link", "a pipe", "a missing directory"])
async def test_nothing_but_a_recording_is_written_to(
    parley_model: ScriptedModel, tmp_path: Path, what: str
) -> None:
    path, mine = tmp_path / "made.jsonl", tmp_path / "mine"
    mine.write_text("mine")
    if what == "a file":
        path.write_text("mine")
    elif what == "a link":
        path.symlink_to(mine)
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / "missing" / "made.jsonl"
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        refusal = await wire.text(1)

    reasons = {
        "a file": "already exists and is not a recording; refusing to overwrite it",
        "a pipe": "already exists and is not a recording; refusing to overwrite it",
        "a link": "cannot be opened: Too many levels of symbolic links (os error 40)",
        "a missing directory": "cannot be created: No such file or directory (os error 2)",
    }
    assert refusal == f"recording {path}: {reasons[what]}"
    assert mine.read_text() == "mine"
    assert parley_model.requests == []


@SANDBOX
@pytest.mark.promises("model.recording")
async def test_a_command_cannot_lead_a_recording_out_of_the_sandbox(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "rec").mkdir(parents=True)
    outside.mkdir()
    parley_model.says(shell("c1", "sh", "-c", f"mv rec away && ln -s {outside} rec"))
    parley_model.says("Done")
    config = f'sandbox_mode = "workspace-write"\nrecord = "{project}/rec/made.jsonl"\n'
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go", cwd=str(project))
        assert await wire.text(1) == "Done"

    assert (project / "rec").is_symlink()
    assert list(outside.iterdir()) == []
    assert len(_exchanges(project / "away/made.jsonl")) == 2


@pytest.mark.promises("model.recording")
async def test_a_full_recording_stays_as_it_is_and_the_turn_continues(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "made.jsonl"
    create_recording(str(path))
    os.truncate(path, MAX_BYTES - 11)
    with path.open("ab") as file:
        file.write(b"\n")
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"

    assert path.stat().st_size == MAX_BYTES - 10


@pytest.mark.promises("model.recording")
async def test_an_exchange_that_cannot_be_recorded_does_not_affect_the_turn(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path, moved = tmp_path / "made.jsonl", tmp_path / "moved"
    parley_model.says("Done", HOLD)
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        await parley_model.wait_until_held()
        path.rename(moved)
        path.mkdir()
        parley_model.release()
        assert await wire.text(1) == "Done"
        path.rmdir()
        moved.rename(path)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    assert [exchange["reply"] for exchange in _exchanges(path)] == [[{"text": "Done"}]]


async def test_a_recording_that_was_moved_away_is_followed_by_a_complete_one(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "made.jsonl"
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"
        path.rename(tmp_path / "earlier.jsonl")
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    (exchange,) = _exchanges(path)
    assert exchange["request"]["items"] == [{"user": "go"}, {"assistant": "Done"}, {"user": "again"}]


@pytest.mark.promises("model.recording")
@pytest.mark.parametrize(
    "left", ["", '{"parley_recording":1}\n', '{"parley_recording":1}\n{"conversation":"a' + "x" * 100_000]
)
async def test_a_recording_is_continued_after_a_process_that_was_killed_while_it_was_writing(
    parley_model: ScriptedModel, tmp_path: Path, left: str
) -> None:
    path = tmp_path / "made.jsonl"
    path.write_text(left)
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        assert await wire.text(1) == "Done"
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    assert [exchange["reply"] for exchange in _exchanges(path)] == [[{"text": "Done"}]] * 2


@pytest.mark.waits
async def test_a_recording_that_another_process_has_locked_delays_only_the_turn(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "made.jsonl"
    parley_model.says("one")
    parley_model.says("two", HOLD)
    async with speaking(parley_model, config=f'record = "{path}"') as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        wire.reply(2, "again")
        await parley_model.wait_until_held()
        with path.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            parley_model.release()
            result = await wire.answer(2)
        wire.reply(3, "and again")
        await wire.answer(3)

    assert any(map(is_event("agent_message"), result))
    first, third = _exchanges(path)
    assert (first["reply"], third["reply"]) == ([{"text": "one"}], [{"text": "Done"}])
    users = [item["user"] for item in third["request"]["items"] if "user" in item]
    assert users == ["go", "again", "and again"]  # the exchange between them was not recorded


@pytest.mark.child_process
async def test_exec_records_a_new_conversation_in_a_new_file(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home, path = tmp_path / "home", tmp_path / 'a "file".jsonl'
    parley_model.says("Fine.")
    async with ResidentProcess(parley_model, home):
        done = await outcome_of(await start_parley(home, "exec", "go", "--record", path.name, cwd=tmp_path))
        before = path.read_bytes()
        again = await outcome_of(await start_parley(home, "exec", "go", "--record", path.name, cwd=tmp_path))
        unrecorded = await outcome_of(await start_parley(home, "exec", "go", cwd=tmp_path))
        continued = await run_parley(home, "exec", "go", "--continue", "--record", "x")
        missing = await run_parley(home, "exec", "go", "--record", "missing/x")
        elsewhere = await run_parley(home, "exec", "go", "--url", "http://127.0.0.1:1", "--record", "x")

    assert (done.stdout, done.exit_code, unrecorded.exit_code) == ("Fine.\n", 0, 0)
    (exchange,) = _exchanges(path)
    assert exchange["reply"] == [{"text": "Fine."}]
    assert (again.exit_code, path.read_bytes()) == (1, before)
    assert "already exists; refusing to overwrite it" in again.stderr
    assert (continued.exit_code, elsewhere.exit_code, missing.exit_code) == (2, 2, 1)
    assert "is not a directory" in missing.stderr
    assert "--record can only record a new conversation" in continued.stderr
    assert "--record cannot be used with --url" in elsewhere.stderr
    assert len(parley_model.requests) == 2
