"""Four processes on one home, killed and stopped at random while clients of each process work in all conversations.

No event is lost, duplicated or reordered, and no command runs twice.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.clients.chaos import SETTINGS, ProcessGroup, answer_to
from kit.clients.consistency import Log, read_logs, segments_of, turns_in
from parley.testing import RawParley, ScriptedModel


def check_turns(log: Log) -> None:
    """Check that every turn has one end and every approval at most one answer."""
    for turn in turns_in([encoded for _, encoded in log]):
        ends = [event for event in turn if event["type"] == "task_complete" or is_interruption(event)]
        assert len(ends) == 1, f"a turn has {len(ends)} ends: {turn}"
    settled = Counter(event["approval_id"] for event in events_in(log) if event["type"] == "approval_settled")
    assert all(times == 1 for times in settled.values()), f"settled twice: {settled}"
    begun = Counter(event["call_id"] for event in events_in(log) if event["type"] == "exec_command_begin")
    assert all(times == 1 for times in begun.values()), f"begun twice: {begun}"


def is_interruption(event: Any) -> bool:
    return event["type"] == "error" and "Turn interrupted" in event["message"]


def events_in(log: Log) -> list[Any]:
    return [msgspec.json.decode(encoded) for _, encoded in log]


def check(group: ProcessGroup, logs: dict[str, Log], ran: Path) -> None:
    segments = [segment for life in group.lives for segment in segments_of(life.name, life.frames)]
    for segment in segments:
        segment.check(logs[segment.conversation])
    said: Counter[str] = Counter()
    done: set[str] = set()
    for log in logs.values():
        check_turns(log)
        for event in events_in(log):
            if event["type"] == "user_message":
                said[event["message_id"]] += 1
            elif event["type"] == "exec_command_end" and event["exit_code"] == 0:
                done.add(event["call_id"].split("-")[1])
    commands = Counter(ran.read_text().split() if ran.exists() else [])
    seen = sum(len(segment.events) for segment in segments)
    print(
        f"{len(group.lives)} processes, {len(group.accepted)} of {len(group.sent)} messages accepted,"
        f" {sum(map(len, logs.values()))} events, {len(segments)} streams that saw {seen}, {len(commands)} commands"
    )

    assert group.journal.unexpected == []
    assert all(times == 1 for times in said.values()), f"said twice: {said}"
    assert group.accepted <= said.keys(), f"lost: {group.accepted - said.keys()}"
    assert all(times == 1 for times in commands.values()), f"run twice: {commands}"
    assert done <= commands.keys(), f"done and not run: {done - commands.keys()}"
    with sqlite3.connect(group.home / "parley.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def run(model: ScriptedModel, tmp_path: Path, *, seed: int, seconds: float) -> None:
    ran = tmp_path / "ran"
    model.set_handler(lambda request: answer_to(request, ran))
    group = ProcessGroup(model, tmp_path / "home", seed)
    await group.run(processes=4, conversations=3, seconds=seconds)
    async with RawParley(model, home=group.home, config=SETTINGS, checked=False) as last:
        logs = await read_logs(last, group.conversations)
    check(group, logs, ran)


@pytest.mark.promises("keeping.shared", "keeping.taken-over", "keeping.repeated")
async def test_four_processes_that_are_killed_and_stopped_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    await run(parley_model, tmp_path, seed=1, seconds=2.5)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 6))
async def test_for_a_minute_four_processes_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, seed: int
) -> None:
    await run(parley_model, tmp_path, seed=seed, seconds=60)
