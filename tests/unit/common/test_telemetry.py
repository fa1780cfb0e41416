"""Reports to observers (`parley.common.telemetry`), and secrets in texts (`parley.common.secret_values`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from parley.common.limited_time import limited_time
from parley.common.secret_values import SecretValues
from parley.common.telemetry import MAX_CAUSES, Operation, Telemetry


class Recorder:
    wants_content = False

    def __init__(self) -> None:
        self.ended_operations: list[Operation] = []

    def started(self, operation: Operation) -> None:
        pass

    def ended(self, operation: Operation) -> None:
        self.ended_operations.append(operation)

    def noted(self, name: str, fields: dict[str, Any]) -> None:
        pass

    def measured(self, name: str, seconds: float, outcome: str) -> None:
        pass


def test_without_observers_there_are_no_operations() -> None:
    telemetry = Telemetry()
    with telemetry.operation("turn") as operation:
        telemetry.cause("c")

    assert (operation, telemetry.start("turn"), telemetry.take_cause("c")) == (None, None, None)


async def test_operations_know_their_cause_across_tasks_and_how_they_ended() -> None:
    telemetry, recorder = Telemetry(), Recorder()
    telemetry.add(recorder)

    async def tool() -> None:
        with telemetry.operation("tool_call"):
            await asyncio.sleep(0)

    with telemetry.operation("client_request"):
        telemetry.cause("c")
    turn = telemetry.start("turn", parent=telemetry.take_cause("c"))
    with telemetry.within(turn):
        task = asyncio.ensure_future(tool())
    await task
    with pytest.raises(ValueError, match="x"), telemetry.operation("model_request"):
        raise ValueError("x")
    telemetry.end(turn, "done")

    request, called, failed, ended = recorder.ended_operations
    assert (ended.parent, called.parent, failed.parent) == (request, ended, None)
    assert (failed.outcome, failed.fields["error"], ended.outcome) == ("failed", "ValueError", "done")


def test_the_number_of_remembered_causes_is_limited() -> None:
    telemetry = Telemetry()
    telemetry.add(Recorder())
    with telemetry.operation("client_request"):
        for number in range(MAX_CAUSES * 2):
            telemetry.cause(str(number))

    assert len(telemetry._causes) == MAX_CAUSES


def test_secret_values_are_redacted_longest_first() -> None:
    environ = {"A_KEY": "12345678", "B_TOKEN": "12345678-more", "PATH": "/usr/bin:/bin", "C_SECRET": "short"}
    secrets = SecretValues({**environ, "OTEL_EXPORTER_OTLP_HEADERS": "a=b,authorization=Bearer xyzxyz"})

    text = "12345678-more 12345678 /usr/bin:/bin short Bearer xyzxyz redis://u:pw@host"
    assert secrets.redact(text) == (
        "[redacted] [redacted] /usr/bin:/bin short [redacted] redis://u:[redacted]@host"
    )


@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_secret_is_redacted_in_json_within_json(is_ascii: bool) -> None:
    secret = 'pass"wörd\\with\nlines'
    secrets = SecretValues({"A_SECRET": secret})
    text = f"it is {secret}."
    for _ in range(4):
        assert secrets.redact(text).strip('\\"') == "it is [redacted]."
        text = json.dumps(text, ensure_ascii=is_ascii)


@pytest.mark.parametrize("text", ["a" * 1_000_000 + " x://y", "a://:" + "b" * 1_000_000, "a://:" * 200_000])
def test_the_redaction_of_a_long_text_takes_little_time(text: str) -> None:
    with limited_time(5):
        assert SecretValues({}).redact(text) == text


@pytest.mark.parametrize("name", ["VAULT_PASSPHRASE", "SENTRY_DSN", "GITHUB_PAT", "DB_PASS", "database_url"])
def test_the_names_of_secrets_are_the_same_as_for_commands(name: str) -> None:
    assert SecretValues({name: "the-long-value"}).redact("it is the-long-value.") == "it is [redacted]."
