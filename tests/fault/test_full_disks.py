"""Full disks: a change that cannot be stored does not happen, and the server continues when there is space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kit.clients.approving import ASKS_FIRST, ApprovingClient, events_of
from kit.clients.messages import TASK_STARTED, agent_message, error, task_complete, user_message
from kit.clients.shell_turns import sh
from kit.servers.full_disks import LimitedFiles, SmallDisk
from kit.system.mounts import MOUNTS
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import FULL_VERSION

CANNOT = "conversations cannot be read or stored: "
MESSAGE = "11111111-0000-4000-8000-000000000000"
YES = {"action": "accept", "content": {"decision": "approved"}}

Disk = type[LimitedFiles | SmallDisk]
DISKS = [pytest.param(LimitedFiles, id="limited files"), pytest.param(SmallDisk, id="small disk", marks=MOUNTS)]


async def begin(raw: LimitedFiles | SmallDisk) -> ApprovingClient:
    client = ApprovingClient(raw, {"elicitation": {}})
    await client.initialize(FULL_VERSION)
    return client


async def read(client: ApprovingClient, conversation: str) -> Any:
    return await client.value_after(client.call("conversationRead", conversation_id=conversation))


@pytest.mark.promises("keeping.full")
@pytest.mark.parametrize("disk", DISKS)
async def test_a_turn_that_cannot_be_stored_fails_and_its_end_is_sent_when_there_is_room(
    parley_model: ScriptedModel, tmp_path: Path, disk: Disk
) -> None:
    raw = disk(parley_model, home=tmp_path / "home")
    async with raw:
        client = await begin(raw)
        parley_model.says("Never ", HOLD, "mind.")
        calling = client.codex("Go.")
        await parley_model.wait_until_held()
        raw.fill()
        parley_model.release()
        answer = (await client.until_answer(calling))[-1]["result"]
        failure, conversation = answer["error"], answer["structuredContent"]["sessionId"]
        refused = await client.value_after(client.message(conversation, "Go on.", message_id=MESSAGE))
        listed = await client.value_after(client.call("conversationsList"))
        then = await read(client, conversation)
        await client.open_stream(conversation)
        raw.make_room()
        ended = await client.until_method("task_complete")
        parley_model.says("Fine.")
        await client.say(conversation, "Go on.", message_id=MESSAGE)
        went_on = await client.until_method("task_complete")
        whole = await read(client, conversation)

        assert failure.startswith(CANNOT)
        assert (refused["status"], refused["message"].startswith(CANNOT)) == ("error", True)
        assert [one["conversation_id"] for one in listed["conversations"]] == [conversation]
        first = [TASK_STARTED, user_message("Go.", then["events"][1]["msg"]["message_id"])]
        assert ([one["msg"] for one in then["events"]], then["state"]) == (first, "running")
        failed = [error(failure) | {"reason": "failed", "code": "store_failed"}, task_complete(None)]
        assert events_of(ended) == failed
        assert [one["msg"] for one in whole["events"]] == [
            *first,
            *failed,
            TASK_STARTED,
            user_message("Go on.", MESSAGE),
            agent_message("Fine."),
            task_complete("Fine."),
        ]
        sent = [one["params"] for one in (*ended, *went_on) if "seq" in one["params"].get("_meta", {})]
        assert [(one["_meta"]["seq"], one["msg"]) for one in sent] == [
            (one["seq"], one["msg"]) for one in whole["events"][len(first) :]
        ]


@pytest.mark.promises("keeping.full")
@pytest.mark.parametrize("disk", DISKS)
async def test_an_answer_that_cannot_be_stored_leaves_the_approval_open_and_counts_when_there_is_room(
    parley_model: ScriptedModel, tmp_path: Path, disk: Disk
) -> None:
    raw = disk(parley_model, home=tmp_path / "home")
    async with raw:
        client = await begin(raw)
        parley_model.says(sh("c1", "echo once >> ran"))
        conversation = await client.create(**ASKS_FIRST)
        await client.open_stream(conversation)
        await client.say(conversation, "Run it.")
        approval = (await client.until_asked())[-1]
        approval_id = approval["params"]["_meta"]["parley_approval_id"]
        raw.fill()
        answering = client.call("approvalAnswer", approval_id=approval_id, decision="approved")
        refused = await client.value_after(answering)
        still = await client.value_after(client.call("approvalsList"))
        client.answer(approval["id"], YES)
        after = client.call("conversationRename", conversation_id=conversation, title="Never")
        refused_after = await client.value_after(after)
        has_run = (client.work / "ran").exists()
        raw.make_room()
        rest = await client.until_method("task_complete")

        for one in (refused, refused_after):
            assert (one["status"], one["message"].startswith(CANNOT)) == ("error", True)
        assert ([one["approval_id"] for one in still["approvals"]], has_run) == ([approval_id], False)
        types = [event["type"] for event in events_of(rest)]
        assert [types.count(kind) for kind in ("approval_settled", "exec_command_end")] == [1, 1]
        assert (client.work / "ran").read_text() == "once\n"


@pytest.mark.promises("keeping.full")
async def test_a_refused_message_does_not_cause_another_model_request(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    raw = LimitedFiles(parley_model, home=tmp_path / "home")
    async with raw:
        client = await begin(raw)
        parley_model.says("Never ", HOLD, "mind.")
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "Go.")
        await parley_model.wait_until_held()
        raw.fill()
        renaming = client.call("conversationRename", conversation_id=conversation, title="Never")
        refused = await client.value_after(renaming)
        raw.make_room()
        parley_model.says("Again.")
        parley_model.release()
        answered = await client.until_method("task_complete")

        assert (refused["status"], refused["message"].startswith(CANNOT)) == ("error", True)
        assert events_of(answered)[-2:] == [agent_message("Never mind."), task_complete("Never mind.")]
        assert len(parley_model.requests) == 1


@MOUNTS
@pytest.mark.promises("keeping.small-disk")
async def test_a_small_disk_is_filled_with_conversations_and_not_with_the_log_of_the_database(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    raw = SmallDisk(parley_model, home=tmp_path / "home")
    async with raw:
        client = await begin(raw)
        result: dict[str, Any] = {}
        while "code" not in result:
            text = os.urandom(24_000).hex()  # it cannot be compressed
            made = client.call("conversationCreate", model="m", cwd="/tmp", base_instructions=text)
            result = await client.value_after(made)
        root = Path(f"/proc/{raw.pid}/root{raw.home}")
        sizes = {name: (root / name).stat().st_size for name in ("parley.db", "parley.db-wal")}
        log = raw.stderr_text()

    assert result["code"] == "store_failed"
    assert result["message"].endswith(f"database or disk is full; free some space on the disk of {raw.home}")
    assert sizes["parley.db"] > 3 * 1024 * 1024  # of 4 MiB
    assert sizes["parley.db-wal"] < 512 * 1024
    assert log.count("of free space; on a full disk, nothing can be stored") == 1
    assert log.count("failed to checkpoint") <= 1
