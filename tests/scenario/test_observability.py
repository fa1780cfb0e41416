"""Logs, `/metrics` and OpenTelemetry of a resident server (`parley.common.telemetry`, `parley.cli.log_events`,
`parley.app.metrics`, `parley.app.otel`, `parley.server.http.metrics_endpoint`, `parley.agent.model_report`).
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kit.clients.http_client import HttpClient
from kit.clients.requests import request
from kit.clients.shared_home import ASKS, events_until, is_
from kit.clients.shell_turns import sh
from kit.servers.collector import Collector
from kit.servers.resident_process import ResidentProcess, parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import LANDLOCK
from parley.client import connect
from parley.testing import ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import ExecApprovalRequest

pytestmark = [pytest.mark.child_process, LANDLOCK]

SECRET = "sk-not-for-anyone-1234567890"
PROMPT, WORDS, OUTPUT, ARGUMENT = (
    "prompt-of-the-user",
    "words-of-the-model",
    "output-of-a-command",
    "argument-of-a-call",
)
CONTENT = (PROMPT, WORDS, OUTPUT, ARGUMENT)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(resident: ResidentProcess, token: str | None = None, *, method: str = "GET") -> tuple[int, str]:
    """Request the metrics with a token, by default the token of the server. Return the status and the text."""
    url = resident.description["url"].removesuffix("/mcp") + "/metrics"
    headers = {"Authorization": f"Bearer {token or resident.description['token']}"}
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        return answer.status, await answer.text()


def parsed(text: str) -> Series:
    """Parse the text format of Prometheus. Each line must be a comment or a sample of a metric with a type."""
    series: Series = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"# (HELP|TYPE) ([a-z_]+) (.+)", line):
            types[found[2]] = found[3]
            continue
        found = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? ([0-9.e+-]+|\+Inf)', line)
        assert found, line
        base = re.sub(r"_(bucket|sum|count)$", "", found[1])
        assert types.get(found[1], types.get(base)) in ("counter", "gauge", "histogram"), line
        labels = frozenset(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
        assert (found[1], labels) not in series
        series[found[1], labels] = float(found[3])
    return series


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


async def run_a_turn(resident: ResidentProcess, model: ScriptedModel) -> str:
    """Run a turn with a command that needs an approval, and return the id of the conversation."""
    model.says(sh("c1", f"echo {OUTPUT} # {ARGUMENT}", with_escalated_permissions=True))
    model.says(WORDS)
    async with connect(resident.socket(), protocol_version="2025-11-25") as client:
        conversation = await client.create(cwd=resident.work, model=MODEL, **ASKS)
        async with conversation.stream() as stream:
            turn = await conversation.send(PROMPT)
            asked = (await events_until(stream, is_(ExecApprovalRequest)))[-1]
            assert isinstance(asked, ExecApprovalRequest)
            waiting = parsed((await scrape(resident))[1])
            (approval,) = await client.approvals()
            await approval.approve()
            assert (await turn.result()).text == WORDS
    assert value(waiting, "parley_approvals_waiting") == value(waiting, "parley_turns_running") == 1
    assert value(waiting, "parley_leases") == value(waiting, "parley_clients") == 1
    return conversation.id


async def test_a_turn_is_counted_in_the_metrics(parley_model: ScriptedModel, home: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), ResidentProcess(parley_model, home) as resident:
        await run_a_turn(resident, parley_model)
        status, text = await scrape(resident)

    series = parsed(text)
    assert status == 200
    assert value(series, "parley_turns_total", outcome="done") == 1
    assert value(series, "parley_turn_duration_seconds_count") == 1
    assert value(series, "parley_model_requests_total", provider="chat", status="200") == 2
    assert value(series, "parley_tool_calls_total", tool="shell", outcome="ok") == 1
    assert value(series, "parley_approvals_total", kind="exec", decision="approved") == 1
    assert value(series, "parley_conversations_loaded") == 1
    assert value(series, "parley_turns_running") == value(series, "parley_approvals_waiting") == 0
    assert value(series, "parley_deltas_total") > 1
    assert value(series, "parley_events_total") > 5
    assert value(series, "parley_store_append_seconds_count") > 3
    assert value(series, "parley_store_appends_total", outcome="ok") > 3
    assert value(series, "parley_store_wal_bytes") > 0
    assert value(series, "parley_store_free_bytes") > 0
    assert value(series, "parley_resident_memory_bytes") > 1_000_000
    assert value(series, "parley_store_available") == 1
    assert not [one for one in CONTENT if one in text]


@pytest.mark.promises("http.metrics")
async def test_metrics_need_a_token_for_all_conversations(parley_model: ScriptedModel, home: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), ResidentProcess(parley_model, home) as resident:
        made = []
        async with connect(resident.socket(), protocol_version="2025-11-25") as client:
            conversation = await client.create(cwd=resident.work, model=MODEL)
        for name, *more in (("watcher",), ("guest", "--conversation", conversation.id)):
            command = ("token", "create", name, "--role", "observer", *more, "--json")
            made.append(json.loads((await parley(*command, env=resident.environ))[1])["token"])
        answers = [await scrape(resident, token) for token in (*made, "wrong" * 10)]
        posted = await scrape(resident, method="POST")

    assert [status for status, _ in answers] == [200, 403, 401]
    assert posted[0] == 405
    assert "parley_" not in answers[1][1] + answers[2][1]


async def logged(resident: ResidentProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in resident.stderr_text().splitlines() if line.startswith("{")]


async def test_the_events_of_a_turn_are_logged_as_json_without_content(
    parley_model: ScriptedModel, home: Path
) -> None:
    env = {"PARLEY_LOG": "debug,json", "EXAMPLE_API_KEY": SECRET}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with ResidentProcess(parley_model, home, env=env) as resident:
            conversation = await run_a_turn(resident, parley_model)
        lines, text = await logged(resident), resident.stderr_text()

    assert len(lines) == len(text.splitlines())
    of_turn = [one for one in lines if one.get("conversation_id") == conversation and one["level"] == "info"]
    assert [one["event"] for one in of_turn] == [
        "turn.started",
        "model_request.ended",
        "approval.requested",
        "approval.decided",
        "tool_call.ended",
        "model_request.ended",
        "turn.ended",
    ]
    assert {(one["turn_id"], one["client_id"]) for one in of_turn} == {(of_turn[0]["turn_id"], "c1")}
    assert (of_turn[-1]["outcome"], of_turn[4]["tool"], of_turn[3]["outcome"]) == ("done", "shell", "approved")
    assert all(one["duration_ms"] > 0 for one in of_turn if one["event"].endswith(("ended", "decided")))
    connected = [one["event"] for one in lines if one["event"].startswith("client.")]
    assert connected == ["client.connected", "client.disconnected"]
    assert any(one["event"] == "client_request.ended" and one.get("tool") == "conversationCreate" for one in lines)
    assert not [one for one in (*CONTENT, SECRET, resident.description["token"]) if one in text]


async def test_content_is_logged_on_request_and_secrets_never(
    parley_model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "parley.log"
    env = {"PARLEY_LOG": f"info,file={file}", "PARLEY_LOG_CONTENT": "1", "EXAMPLE_API_KEY": WORDS}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with ResidentProcess(parley_model, home, env=env) as resident:
            await run_a_turn(resident, parley_model)
        text = file.read_text()

    assert resident.stderr_text() == ""
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one in text for one in CONTENT] == [True, False, True, True]
    assert "content_output=[redacted]" in text


@pytest.mark.parametrize("form", ["text", "json"])
async def test_a_secret_with_quotation_marks_is_not_in_the_logged_content(
    parley_model: ScriptedModel, home: Path, tmp_path: Path, form: str
) -> None:
    file, secret = tmp_path / "parley.log", 'first"sec\\ret-value'
    env = {"PARLEY_LOG": f"info,{form},file={file}", "PARLEY_LOG_CONTENT": "1", "EXAMPLE_API_KEY": secret}
    parley_model.says(sh("c1", f"cat <<'END'\n{secret}\nEND"))
    parley_model.says("Done.")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        ResidentProcess(parley_model, home, env=env) as resident,
        connect(resident.socket()) as client,
    ):
        conversation = await client.create(cwd=resident.work, model=MODEL)
        await (await conversation.send(f"use {secret}")).result()

    text = file.read_text()
    assert "END" in text
    assert "ret-value" not in text


def parents(spans: Mapping[str, list[Any]]) -> set[tuple[str, str]]:
    """Return the pairs of the names of a span and its parent."""
    names = {one.id: one.name for found in spans.values() for one in found}
    return {(one.name, names.get(one.parent, "")) for found in spans.values() for one in found}


async def test_traces_and_metrics_reach_a_collector_without_content(
    parley_model: ScriptedModel, home: Path
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Collector() as collector:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        async with ResidentProcess(parley_model, home, env=env) as resident:
            conversation = await run_a_turn(resident, parley_model)
            (turn,) = await collector.until_spans("invoke_agent parley")
        stderr = resident.stderr_text()

    send, (tool,) = "tools/call conversationSendMessage", collector.spans["execute_tool shell"]
    (model, _) = collector.spans["chat scripted-model"]
    assert {
        ("invoke_agent parley", send),
        ("chat scripted-model", "invoke_agent parley"),
        ("execute_tool shell", "invoke_agent parley"),
        ("approval", "execute_tool shell"),
    } <= parents(collector.spans)
    assert turn.attributes["gen_ai.conversation.id"] == conversation
    assert turn.attributes["parley.outcome"] == "done"
    assert model.attributes["gen_ai.operation.name"] == "chat"
    assert tool.attributes["gen_ai.tool.name"] == "shell"
    assert turn.seconds >= tool.seconds > 0
    assert collector.metrics["parley_turns_total"].sum.data_points[0].as_double == 1
    assert collector.metrics["parley_turn_duration_seconds"].histogram.data_points[0].count == 1
    assert all(one.get("authorization") == SECRET for one in collector.headers)
    assert not [one for one in (*CONTENT, SECRET) if one.encode() in collector.bodies or one in stderr]


def mapped_files(process: int) -> str:
    return Path(f"/proc/{process}/maps").read_text()


async def test_without_the_variables_nothing_of_opentelemetry_is_imported(
    parley_model: ScriptedModel, home: Path
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), ResidentProcess(parley_model, home) as resident:
        await run_a_turn(resident, parley_model)
        mapped = mapped_files(resident.process.pid)

    assert "google/_upb" not in mapped  # the library that encodes what is sent
    assert "aiohttp" in mapped


async def test_a_collector_that_is_gone_delays_neither_turns_nor_the_end(
    parley_model: ScriptedModel, home: Path
) -> None:
    # The library repeats an export for up to this time.
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with ResidentProcess(parley_model, home, env=env) as resident:
            await run_a_turn(resident, parley_model)
        text = resident.stderr_text()

    assert resident.process.returncode == 0
    assert "because the collector does not respond" in text


@pytest.mark.parametrize("login", ["", "ada:sesame@"])
async def test_the_netrc_file_of_the_user_does_not_reach_the_collector(
    parley_model: ScriptedModel, home: Path, tmp_path: Path, login: str
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login alice password from-netrc\n")
    async with asyncio.timeout(TIMEOUT_SECONDS), Collector() as collector:
        env = {
            "HOME": str(tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.replace("://", f"://{login}"),
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
        }
        async with ResidentProcess(parley_model, home, env=env) as resident:
            await run_a_turn(resident, parley_model)

    expected = f"Basic {b64encode(b'ada:sesame').decode()}" if login else SECRET
    assert {headers["authorization"] for headers in collector.headers} == {expected}


async def test_the_trace_of_a_client_is_continued(parley_model: ScriptedModel, home: Path) -> None:
    trace, span = "ab" * 16, "cd" * 8
    async with asyncio.timeout(TIMEOUT_SECONDS), Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces", "OTEL_METRICS_EXPORTER": "none"}
        async with ResidentProcess(parley_model, home, env=env) as resident:
            url, token = resident.description["url"], resident.description["token"]
            async with HttpClient(url, token=token) as client:
                await client.initialize()
                meta = {"_meta": {"traceparent": f"00-{trace}-{span}-01"}}
                await client.post(request(7, "ping", meta))
                await client.post(request(8, "ping", {"_meta": {"traceparent": "nonsense"}}))

    continued, other = collector.spans["ping"]
    assert (continued.trace, continued.parent) == (trace, span)
    assert (other.trace != trace, other.parent) == (True, "")
    assert not collector.metrics
