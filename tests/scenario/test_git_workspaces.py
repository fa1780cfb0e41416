"""Conversations that work in worktrees of Git repositories (`parley.workspaces`,
`parley.runtime.turn_workspace`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from kit.clients.modern_client import ASKABLE, ModernHttpClient
from kit.clients.requests import request
from kit.clients.shared_home import DelayedAnswer, events_until, is_
from kit.clients.shell_turns import sh, shell
from kit.servers.git_http import serve_git
from kit.servers.git_nodes import GitCluster, Origin, git_settings
from kit.servers.http_server import HttpServer
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import ToolFailed, TurnFailed, connect
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import ErrorEvent, TaskComplete, WorkspaceUpdated
from parley.wire.tools import CodexResult, WorkspaceState

WRITES: dict[str, Any] = {"model": MODEL, "sandbox": "workspace-write"}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path)


def server_with(model: ScriptedModel, path: Path, url: str, *, more: str = "", **options: Any) -> ParleyProcess:
    """Return a server with a home in `path`, without nodes, whose store is SQLite."""
    config = f"[workspace]\n{git_settings(url, path / 'git', more)}"
    return ParleyProcess(model, home=path / "home", config=config, **options)


def is_last(text: str) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, TaskComplete) and event.last_agent_message == text


def short(conversation_id: str) -> str:
    return f"parley/{conversation_id.replace('-', '')[:12]}"


# --- several nodes -----------------------------------------------------------------------


@NEEDS_POSTGRES
@pytest.mark.child_process
@pytest.mark.promises("nodes.git")
async def test_a_conversation_continues_on_another_node_from_the_pushed_branch(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    parley_model.says(sh("c1", "echo one > file"))
    parley_model.says("First")
    parley_model.says(sh("c2", "echo lost > lost"))
    parley_model.says("Held", HOLD)
    parley_model.says(sh("c3", "cat file; echo two >> file"))
    parley_model.says("Second")
    cluster = GitCluster(parley_model, tmp_path, databases.url())
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a, b = await cluster.start("a"), await cluster.start("b")
        async with a.client() as client:
            here = await client.create(repository="app", **WRITES)
            async with here.stream() as stream:
                await here.send("Write the file\nwith care")
                events = await events_until(stream, is_(TaskComplete))
                pushed = cluster.origin.branches()[short(here.id)]  # before the node is killed
                await here.send("Write another file")
                await parley_model.wait_until_held()
                a.process.send_signal(signal.SIGKILL)
                await a.process.wait()
        async with b.client() as client:
            there = client.conversation(here.id)
            async with there.stream() as stream:
                await events_until(stream, is_(ErrorEvent))  # the end of the killed turn
                await there.send("More")
                more = await events_until(stream, is_(TaskComplete))
            status = await there.status()

    begun, ended = [event for event in events if isinstance(event, WorkspaceUpdated)]
    moved, last = [event for event in more if isinstance(event, WorkspaceUpdated)]
    origin, branch = cluster.origin, short(here.id)
    assert (begun.commit, begun.branch, begun.node) == (origin.branches()["main"], branch, "a")
    assert isinstance(events[-2], WorkspaceUpdated)
    assert (ended.commit, ended.pushed) == (pushed, True)
    assert (moved.commit, moved.node, moved.code) == (pushed, "b", UNSET)
    assert last.commit == origin.branches()[branch]
    assert origin.text(branch, "file") == "one\ntwo"
    assert origin.subjects(branch) == ["More", "Write the file", "By a person"]
    assert status.workspace == WorkspaceState(repository="app", branch=branch, commit=last.commit, pushed=True)
    assert (cluster.directory("a") / "worktrees" / here.id / "lost").read_text() == "lost\n"


@NEEDS_POSTGRES
@pytest.mark.child_process
@pytest.mark.long
@pytest.mark.promises("nodes.git")
async def test_a_turn_that_waits_for_an_approval_moves_to_another_node_with_its_work(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    outside = shell("c2", "sh", "-c", "echo two >> file", with_escalated_permissions=True)
    parley_model.says(sh("c1", "echo one > file"), outside)
    parley_model.says("Done")
    answer = DelayedAnswer()
    cluster = GitCluster(parley_model, tmp_path, databases.url())
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a, b = await cluster.start("a"), await cluster.start("b")
        async with a.client() as first, b.client(on_approval=answer) as client:
            made = await first.create(repository="app", approval_policy="on-request", **WRITES)
            here = client.conversation(made.id)
            async with here.stream() as stream:
                await first.conversation(made.id).send("go")
                await answer.asked()
                a.process.send_signal(signal.SIGTERM)
                await a.process.wait()
                answer.answer("approved")
                events = await events_until(stream, is_(TaskComplete))

    nodes = [event.node for event in events if isinstance(event, WorkspaceUpdated)]
    assert nodes == ["a", "a", "b", "b"]
    assert cluster.origin.text(short(made.id), "file") == "one\ntwo"


@NEEDS_POSTGRES
@pytest.mark.child_process
@pytest.mark.long
@pytest.mark.promises("nodes.git")
async def test_a_node_that_is_killed_during_the_push_leaves_nothing_that_stops_the_conversation(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    cluster = GitCluster(parley_model, tmp_path, databases.url())
    begun = cluster.origin.path / "begun"
    hook = cluster.origin.hook(f"touch {begun}\nexec sleep 1000")
    parley_model.says(sh("c1", "echo one > file"))
    parley_model.says("First")
    async with asyncio.timeout(2 * TIMEOUT_SECONDS), cluster:
        a, b = await cluster.start("a"), await cluster.start("b")
        async with a.client() as client:
            here = await client.create(repository="app", **WRITES)
            await here.send("go")
            await until(begun.exists)
            a.process.send_signal(signal.SIGKILL)
            await a.process.wait()
        hook.unlink()
        async with b.client() as client:
            there = client.conversation(here.id)
            async with there.stream() as stream:
                await events_until(stream, is_(ErrorEvent))
                parley_model.says(sh("c2", "ls; echo two > file"))
                parley_model.says("Second")
                await there.send("again")
                await events_until(stream, is_(TaskComplete))
        b.process.send_signal(signal.SIGKILL)
        await b.process.wait()
        restarted = await cluster.start("a")
        async with restarted.client() as client:
            parley_model.says(sh("c3", "cat file; echo three > file"))
            parley_model.says("Third")
            again = client.conversation(here.id)
            async with again.stream() as stream:
                result = await (await again.send("and again")).result()
                events = await events_until(stream, is_last(result.text))

    updates = [event for event in events if isinstance(event, WorkspaceUpdated)]
    assert [(one.node, one.code) for one in updates] == [
        ("a", UNSET),
        ("b", UNSET),
        ("b", UNSET),
        ("a", "work_set_aside"),
        ("a", UNSET),
    ]
    assert cluster.origin.text(short(here.id), "file") == "three"
    assert cluster.origin.subjects(short(here.id)) == ["and again", "again", "By a person"]


# --- one server --------------------------------------------------------------------------


@pytest.mark.promises("create.repository", "status.workspace", "nodes.git")
async def test_a_codex_call_names_the_branch_with_its_work(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    parley_model.says(sh("c1", "echo one > file; pwd"))
    parley_model.says("Done")
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        settings = await server.client.settings()
        result = await server.client.codex("Do it", repository="app", **WRITES)
        answer = msgspec.convert(result.structured_content, CodexResult)
        conversation = server.client.conversation(answer.session_id)
        status = await conversation.status()
        fork = await conversation.fork()
        parley_model.says(sh("c2", "cat file; echo two > file"))
        parley_model.says("Forked")
        await (await fork.send("Again")).result()

    branch = short(answer.session_id)
    assert settings.repositories == ("app",)
    expected = WorkspaceState(repository="app", branch=branch, commit=origin.branches()[branch], pushed=True)
    assert (answer.workspace, status.workspace) == (expected, expected)
    assert status.cwd == str(tmp_path / "git" / "worktrees" / answer.session_id)
    assert (origin.text(branch, "file"), origin.text(short(fork.id), "file")) == ("one", "two")
    assert origin.subjects(short(fork.id)) == ["Again", "Do it", "By a person"]


@pytest.mark.promises("tasks.result", "nodes.git")
async def test_the_result_of_each_task_names_the_commit_at_the_end_of_its_turn(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    config = f"[workspace]\n{git_settings(str(origin.path), tmp_path / 'git')}"
    for command in ("echo one > file", "true", "echo two > file"):
        parley_model.says(sh("c1", command))
        parley_model.says("Done")
    tasks: list[str] = []
    results: list[Any] = []
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home", config=config) as server,
    ):
        client = await server.client()
        arguments = {"prompt": "1", "repository": "app", **WRITES}
        call: dict[str, Any] = {"name": "codex", "arguments": arguments}
        for number in range(3):
            answer = (await client.post(request(number, "tools/call", {**call, "task": {}}))).json["result"]
            tasks.append(answer["task"]["taskId"])
            await client.post(request(10 + number, "tasks/result", {"taskId": tasks[-1]}))
            thread = tasks[0].partition(".")[0]
            call = {"name": "codex-reply", "arguments": {"threadId": thread, "prompt": "2"}}
        for number, task in enumerate(tasks):
            results.append(
                (await client.post(request(20 + number, "tasks/result", {"taskId": task}))).json["result"]
            )

    commits = [result["structuredContent"]["workspace"]["commit"] for result in results]
    newest = origin.branches()[short(tasks[0].partition(".")[0])]
    before = origin.git("rev-parse", f"{newest}^")
    assert commits == [before, before, newest]


@pytest.mark.promises("nodes.git", "modern.approvals")
@pytest.mark.long
async def test_a_call_that_is_resumed_after_a_later_turn_names_the_commit_of_its_own_turn(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    config = f"[workspace]\n{git_settings(str(origin.path), tmp_path / 'git')}"
    for text in ("one", "two"):
        parley_model.says(sh("c1", f"echo {text} > file"))
        parley_model.says(text)
    arguments = {"prompt": "1", "repository": "app", "approval-policy": "untrusted", "sandbox": "workspace-write"}
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home", config=config) as server,
        ModernHttpClient(server.url, token=server.token, capabilities=ASKABLE) as client,
        connect(url=server.url, token=server.token) as other,
    ):
        reply = await client.ask("tools/call", {"name": "codex", "arguments": arguments})
        asked = reply.json["result"]
        [approval] = asked["inputRequests"]
        [summary] = (await other.list()).conversations
        conversation = other.conversation(summary.conversation_id)
        async with conversation.stream() as stream:
            await other.answer(approval, "approved")
            await events_until(stream, is_last("one"))
        await (await conversation.send("2", approval_policy="never")).result()
        answer = {approval: {"action": "accept", "content": {"decision": "approved"}}}
        more = {"inputResponses": answer, "requestState": asked["requestState"]}
        reply = await client.ask("tools/call", {"name": "codex", "arguments": arguments, **more})

    result = reply.json["result"]["structuredContent"]
    newest = origin.branches()[short(summary.conversation_id)]
    assert result["content"] == "one"
    assert result["workspace"]["commit"] == origin.git("rev-parse", f"{newest}^")


@pytest.mark.promises("create.repository")
@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({"repository": "other"}, "no repository `other` in config.toml; the repositories are: `app`"),
        ({"repository": "/etc"}, "no repository `/etc`"),
        ({"repository": "ext::touch /tmp/x"}, "no repository"),
        ({"repository": "app", "cwd": "/tmp"}, "cannot be combined"),
        ({"Repository": "app", "cwd": "/tmp"}, "Repository"),
        ({"cwd": "/tmp", "config": {"workspace.repositories.x.url": "/tmp/x"}}, "only be set in config.toml"),
        ({}, "missing field `cwd`"),
    ],
)
async def test_a_repository_is_named_and_never_given_by_an_address(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin, arguments: dict[str, Any], detail: str
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        refused = await server.client.call_tool("conversationCreate", arguments)
        listed = await server.client.list()

    assert refused.is_error
    assert detail in str(refused.content)
    assert listed.conversations == ()
    assert not (tmp_path / "git").exists()


@pytest.mark.promises("create.repository")
async def test_a_message_cannot_move_the_conversation_out_of_its_worktree(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        here = await server.client.create(repository="app", **WRITES)
        with pytest.raises(ToolFailed, match="cannot be combined with `repository`"):
            await here.send("go", cwd="/etc")


@pytest.mark.promises("create.repository", "settings.list")
async def test_a_driver_may_choose_a_repository_and_an_older_client_sees_none(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    config = f"[workspace]\n{git_settings(str(origin.path), tmp_path / 'git')}"
    parley_model.says("Done")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        HttpServer(parley_model, tmp_path / "home", config=config) as server,
    ):
        client = await server.client(token=await server.create_token("d", "driver"))
        settings = await client.call("settingsList")
        made = await client.call("conversationCreate", repository="app")
        observer = await server.client(token=await server.create_token("o", "observer"))
        hidden = await observer.call("settingsList")
    async with server_with(parley_model, tmp_path, str(origin.path), protocol_version="2025-06-18") as older:
        tools = {tool.name: tool for tool in await older.client.list_tools()}

    assert (settings["repositories"], hidden["repositories"]) == (["app"], [])
    assert made["conversation_id"]
    assert b'"repository"' not in msgspec.json.encode(tools["conversationCreate"])
    assert b'"repository"' not in msgspec.json.encode(tools["codex"])


@pytest.mark.promises("nodes.git-failures")
async def test_a_turn_whose_repository_cannot_be_cloned_fails_and_can_be_continued(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    moved = origin.path.with_name("moved.git")
    origin.path.rename(moved)
    parley_model.says("Done")
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        here = await server.client.create(repository="app", **WRITES)
        async with here.stream() as stream:
            sent = await here.send("go")
            with pytest.raises(TurnFailed) as failed:
                await sent.result()
            await events_until(stream, is_(ErrorEvent))
            moved.rename(origin.path)
            await here.continue_turn()
            events = await events_until(stream, is_(TaskComplete))
            events += await events_until(stream, is_(TaskComplete)) if len(events) < 2 else []

    assert failed.value.code == "workspace_unavailable"
    assert str(origin.path) not in str(failed.value)
    assert [event.pushed for event in events if isinstance(event, WorkspaceUpdated)] == [True]


@pytest.mark.promises("nodes.git-failures")
async def test_a_turn_whose_branch_cannot_be_pushed_completes_and_says_so(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    hook = origin.hook("echo closed today >&2\nexit 1")
    parley_model.says(sh("c1", "echo one > file"))
    parley_model.says("Done")
    parley_model.says("Pushed")
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        here = await server.client.create(repository="app", **WRITES)
        async with here.stream() as stream:
            result = await (await here.send("go")).result()
            first = await events_until(stream, is_(TaskComplete))
            hook.unlink()
            await (await here.send("again")).result()
            second = await events_until(stream, is_(TaskComplete))

    failed = [event for event in first if isinstance(event, WorkspaceUpdated)][-1]
    later = [event for event in second if isinstance(event, WorkspaceUpdated)][-1]
    assert result.text == "Done"
    assert (failed.code, failed.pushed) == ("push_failed", False)
    assert "closed today" in str(failed.message)
    assert (later.commit, later.pushed, later.code) == (failed.commit, True, UNSET)
    assert origin.branches()[short(here.id)] == failed.commit


@pytest.mark.promises("nodes.git")
async def test_the_work_of_an_interrupted_turn_is_pushed(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    parley_model.says(sh("c1", "echo half > file"))
    parley_model.says("Held", HOLD)
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        here = await server.client.create(repository="app", **WRITES)
        async with here.stream() as stream:
            await here.send("go")
            await parley_model.wait_until_held()
            await here.interrupt()
            events = await events_until(stream, is_(ErrorEvent))

    assert isinstance(events[-2], WorkspaceUpdated)
    assert origin.text(short(here.id), "file") == "half"


def hold_open(path: Path) -> int:
    """Take a lease on a file, so that every process that opens it waits until the returned descriptor is closed."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # the signal that another process waits for the lease
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return descriptor


@pytest.mark.promises("nodes.git")
@pytest.mark.parametrize(
    "ending",
    [
        "interrupt",
        pytest.param("end of input", marks=pytest.mark.long),
        pytest.param("kill", marks=[pytest.mark.child_process, pytest.mark.long]),
    ],
)
async def test_a_checkout_that_was_interrupted_undoes_no_commit_of_a_person(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin, ending: str
) -> None:
    # Git opens this file after it has written `aaa` and before it writes `sub/file`, and waits for the lease.
    gate = "sub/.gitattributes"
    parley_model.says(sh("c1", f"echo one > file; mkdir sub; touch {gate}; echo .gitattributes > .gitignore"))
    parley_model.says("First")
    parley_model.says(sh("c2", "cat aaa sub/file"))
    parley_model.says("Second")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with server_with(parley_model, tmp_path, str(origin.path)) as server:
            here = await server.client.create(repository="app", **WRITES)
            await (await here.send("go")).result()
            branch = short(here.id)
            origin.commit(branch, {"aaa": "theirs\n", "sub/file": "theirs\n"})
            held = hold_open(tmp_path / "git" / "worktrees" / here.id / gate)
            inside = tmp_path / "git" / "repositories" / "app.git" / "worktrees" / here.id / "tree"
            async with here.stream() as stream:
                await here.send("again")
                await until((inside / "aaa").exists)
                if ending == "interrupt":
                    await here.interrupt()
                    await events_until(stream, is_(ErrorEvent))
                elif ending == "kill":
                    server.kill()
            if ending == "end of input":
                server.close_stdin()
            if ending != "interrupt":
                await server.exit_code()
        os.close(held)
        async with server_with(parley_model, tmp_path, str(origin.path)) as server:
            result = await (await server.client.conversation(here.id).send("and again")).result()

    assert result.text == "Second"
    assert origin.subjects(branch) == ["By a person", "go", "By a person"]
    assert (origin.text(branch, "aaa"), origin.text(branch, "sub/file")) == ("theirs", "theirs")
    assert origin.text(branch, "file") == "one"


SLOW_REMOVAL = """
import os, runpy, shutil, time

unlink = os.unlink

def slow(path, **options):
    if os.path.basename(path) == "slow":
        time.sleep(3600)
    unlink(path, **options)

os.unlink = slow
runpy.run_module("parley", run_name="__main__")
"""
"""`parley` that needs an hour to delete the file `slow` of a removed worktree."""


@pytest.mark.long
@pytest.mark.child_process
@pytest.mark.promises("resident.stop")
async def test_a_second_signal_does_not_wait_for_the_deletion_of_a_worktree(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    config = f"[workspace]\n{git_settings(str(origin.path), tmp_path / 'git')}"
    parley_model.says(sh("c1", "echo x > slow"))
    parley_model.says("First")
    parley_model.says("Held", HOLD)
    program = (sys.executable, "-P", "-c", SLOW_REMOVAL)
    home = tmp_path / "home"
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        ResidentProcess(parley_model, home, config=config) as resident,
        connect(socket=resident.description["socket"]) as client,
    ):
        unused = await client.create(repository="app", **WRITES)
        await (await unused.send("go")).result()
    repositories, tree = tmp_path / "git" / "repositories", tmp_path / "git" / "worktrees" / unused.id
    os.utime(repositories / "app.git" / "worktrees" / unused.id / "parley-used", (0, 0))
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        ResidentProcess(parley_model, home, config=config, program=program) as resident,
        connect(socket=resident.description["socket"]) as client,
    ):
        await (await client.create(repository="app", **WRITES)).send("again")
        await until(lambda: not (tree / "README").exists())
        resident.process.terminate()
        resident.process.terminate()
        await resident.process.wait()

    assert [path.name for path in repositories.glob(f"{unused.id}.removed-*/tree/slow")] == ["slow"]


@pytest.mark.promises("nodes.git")
@pytest.mark.long
async def test_a_message_that_arrives_during_the_push_joins_the_turn(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    gate, begun = origin.path / "gate", origin.path / "begun"
    origin.hook(f"touch {begun}\nuntil [ -e {gate} ]; do sleep 0.02; done")
    parley_model.says(sh("c1", "echo one > file"))
    parley_model.says("First")
    parley_model.says("Second")
    async with asyncio.timeout(TIMEOUT_SECONDS), server_with(parley_model, tmp_path, str(origin.path)) as server:
        here = await server.client.create(repository="app", **WRITES)
        sent = await here.send("go")
        await until(begun.exists)
        joined = await here.send("more")
        gate.touch()
        results = await sent.result(), await joined.result()

    assert [result.text for result in results] == ["First\nSecond", "Second"]
    assert origin.subjects(short(here.id))[0] == "go"


# --- secrets -----------------------------------------------------------------------------


@pytest.mark.promises("nodes.git-failures")
async def test_a_password_reaches_neither_events_nor_logs_nor_exports_nor_commands(
    parley_model: ScriptedModel, tmp_path: Path, origin: Origin
) -> None:
    secret = "s3cr3t-password"
    parley_model.says(sh("c1", "env; git config --list; cat ../../repositories/app.git/*; echo one > file"))
    parley_model.says("First")
    parley_model.says(sh("c2", "echo two > file"))
    parley_model.says("Second")
    async with asyncio.timeout(TIMEOUT_SECONDS), serve_git(origin.path, user="ada", password=secret) as git:
        url = f"http://ada:{secret}@127.0.0.1:{git.port}/origin.git"
        more = 'token_env = "APP_TOKEN"'
        server = server_with(parley_model, tmp_path, url, more=more, env={"APP_TOKEN": secret})
        async with server:
            here = await server.client.create(repository="app", **WRITES)
            await (await here.send("go")).result()
            git.password = "changed"
            await (await here.send("again")).result()
            events = await here.read()
            stderr = server.stderr_text()
    written = b"".join(
        path.read_bytes()
        for path in (*(tmp_path / "git").rglob("*"), *(tmp_path / "home").rglob("*"))
        if path.is_file() and path.name != "config.toml"
    )

    updates = [one.msg for one in events.events if isinstance(one.msg, WorkspaceUpdated)]
    assert [one.code for one in updates] == [UNSET, UNSET, "fetch_failed", "push_failed"]
    assert secret not in f"{events} {stderr}"
    assert secret.encode() not in written
    assert not any(secret in str(request.body) for request in parley_model.requests)
