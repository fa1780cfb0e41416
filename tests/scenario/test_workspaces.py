"""Nodes that run the turns of the directories that they have (`parley.runtime.turn_placer`,
`parley.app.node_membership`).
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kit.clients.shared_home import ASKS, DelayedAnswer, events_until, is_, log_of
from kit.clients.shell_turns import sh, shell
from kit.servers.node_process import NodeProcess
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.servers.resident_process import parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Client, Conversation, ToolFailed
from parley.runtime.placement import SLACK
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import ErrorEvent, ExecCommandEnd, TaskComplete

pytestmark = [NEEDS_POSTGRES, pytest.mark.child_process]


class Cluster:
    """Nodes with a directory each: the root of the node `a` is the directory `work-a`."""

    def __init__(self, model: ScriptedModel, directory: Path, databases: Databases) -> None:
        self.model, self._path, self._url = model, directory, databases.url()
        self._stack = AsyncExitStack()
        self._names: dict[int, str] = {}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def directory(self, name: str) -> Path:
        path = self._path / f"work-{name}"
        path.mkdir(exist_ok=True)
        return path

    async def start(
        self, name: str, workspace: str | None = None, *, serve_root: Path | None = None
    ) -> NodeProcess:
        roots = f'roots = ["{self.directory(name)}"]'
        node = NodeProcess(
            self.model,
            self._path,
            name,
            self._url,
            config="[serve]\ndrain_seconds = 0" + ("" if serve_root is None else f'\nroots = ["{serve_root}"]'),
            workspace=roots if workspace is None else workspace,
        )
        await self._stack.enter_async_context(node)
        self._names[node.description["pid"]] = name
        return node

    async def owner_of(self, conversation: Conversation) -> str | None:
        """Return the id of the node that runs the turn of a conversation; None if no turn is running."""
        owner = (await conversation.status()).owner
        return None if owner is None else self._names[owner.pid]


@pytest.fixture
def cluster(parley_model: ScriptedModel, tmp_path: Path, databases: Databases) -> Cluster:
    return Cluster(parley_model, tmp_path, databases)


@pytest.mark.promises("nodes.workspace")
async def test_the_node_that_has_the_directory_runs_the_turns_of_clients_of_other_nodes(
    cluster: Cluster, parley_model: ScriptedModel
) -> None:
    parley_model.says("One", HOLD, " turn")
    parley_model.says(sh("c1", "touch ran"))
    parley_model.says("Two")
    parley_model.says("Three")
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        await cluster.start("a")
        b = await cluster.start("b")
        async with b.client() as client:
            here = await client.create(cwd=cluster.directory("a"), model=MODEL, sandbox="workspace-write")
            async with here.stream() as stream:
                sent = await here.send("go")
                await parley_model.wait_until_held()
                owner = await cluster.owner_of(here)
                parley_model.release()
                first = await sent.result()
                events = await events_until(stream, is_(TaskComplete))
            second = await (await here.send("more")).result()
            there = await client.create(cwd=cluster.directory("b"), model=MODEL)
            third = await (await there.send("here")).result()

    assert owner == "a"
    assert (first.text, second.text, third.text) == ("One turn", "Two", "Three")
    assert isinstance(events[-1], TaskComplete)
    assert (cluster.directory("a") / "ran").exists()


@pytest.mark.promises("nodes.no-directory")
async def test_a_message_for_a_directory_of_no_node_fails_and_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a = await cluster.start("a")
        b = await cluster.start("b")
        async with b.client() as client:
            nowhere = await client.create(cwd=tmp_path, model=MODEL)
            with pytest.raises(ToolFailed) as unknown:
                await nowhere.send("go")
            left = await client.create(cwd=cluster.directory("a"), model=MODEL)
            a.process.send_signal(signal.SIGKILL)
            await a.process.wait()
            with pytest.raises(ToolFailed) as ended:
                await left.send("go")
            logs = await log_of(nowhere), await log_of(left)

    assert (unknown.value.code, ended.value.code) == ("no_node_for_directory", "no_node_for_directory")
    assert f"{tmp_path} (no node has announced it)" in str(unknown.value)
    assert f"{cluster.directory('a')} (announced by: a (" in str(ended.value)
    assert logs == ([], [])


@pytest.mark.promises("nodes.workspace")
async def test_without_roots_a_conversation_stays_on_the_node_where_it_was_created(
    cluster: Cluster, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says("Here", HOLD)
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a, b = await cluster.start("a", ""), await cluster.start("b", "")
        async with a.client() as one, b.client() as two:
            created = await one.create(cwd=tmp_path, model=MODEL)
            there = two.conversation(created.id)
            await there.send("go")
            await parley_model.wait_until_held()
            owner = await cluster.owner_of(there)
            parley_model.release()

    assert owner == "a"


@pytest.mark.promises("nodes.workspace")
async def test_a_turn_that_waits_for_an_approval_resumes_on_the_node_that_has_the_directory(
    cluster: Cluster, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch ran"))
    parley_model.says("Done", HOLD)
    answer = DelayedAnswer()
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a, b = await cluster.start("a"), await cluster.start("b")
        async with b.client(on_approval=answer) as client:
            here = await client.create(cwd=cluster.directory("a"), model=MODEL, **ASKS)
            async with here.stream() as stream:
                await here.send("go")
                await answer.asked()
                a.process.send_signal(signal.SIGKILL)
                await a.process.wait()
                await cluster.start("a")
                answer.answer("approved")
                await parley_model.wait_until_held()
                owner = await cluster.owner_of(here)
                parley_model.release()
                events = await events_until(stream, is_(TaskComplete))

    assert owner == "a"
    assert [event.exit_code for event in events if isinstance(event, ExecCommandEnd)] == [0]
    assert (cluster.directory("a") / "ran").exists()


async def queue(client: Client, conversation: Conversation) -> None:
    content = [{"type": "text", "text": "later"}]
    arguments = {"conversation_id": conversation.id, "content": content, "delivery": "queue"}
    await client.call_tool("conversationSendMessage", arguments)


@pytest.mark.promises("nodes.workspace")
async def test_continued_and_queued_turns_run_on_the_node_that_has_the_directory(
    cluster: Cluster, parley_model: ScriptedModel
) -> None:
    parley_model.says("Cut off", HOLD)
    parley_model.says("Again", HOLD)
    parley_model.says("Queued", HOLD)
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        await cluster.start("a")
        b = await cluster.start("b")
        async with b.client() as client:
            here = await client.create(cwd=cluster.directory("a"), model=MODEL)
            async with here.stream() as stream:
                await here.send("go")
                await parley_model.wait_until_held()
                await here.interrupt()
                await events_until(stream, is_(ErrorEvent))
                await here.continue_turn()
                await parley_model.wait_until_held()
                continued = await cluster.owner_of(here)
                await queue(client, here)
                parley_model.release()
                await parley_model.wait_until_held()
                queued = await cluster.owner_of(here)
                parley_model.release()
                await events_until(stream, is_(TaskComplete))

    assert (continued, queued) == ("a", "a")


@pytest.mark.promises("nodes.workspace")
async def test_with_a_shared_file_system_a_busy_node_hands_turns_to_another(
    cluster: Cluster, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    for _ in range(SLACK + 2):
        parley_model.says("Busy", HOLD)
    owners = []
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a = await cluster.start("a", 'mode = "shared"')
        await cluster.start("b", 'mode = "shared"')
        async with a.client() as client:
            for _ in range(SLACK + 2):
                conversation = await client.create(cwd=tmp_path, model=MODEL)
                await conversation.send("go")
                owners.append(await cluster.owner_of(conversation))

    assert owners == [*("a" for _ in range(SLACK + 1)), "b"]


@pytest.mark.promises("nodes.workspace", "nodes.no-directory")
async def test_a_node_whose_root_has_vanished_runs_no_turns_there(
    cluster: Cluster, parley_model: ScriptedModel
) -> None:
    parley_model.says("There")
    link = cluster.directory("first") / "mounted"
    link.symlink_to(cluster.directory("shared"))
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        a = await cluster.start("a", f'mode = "shared"\nroots = ["{link}"]')
        await cluster.start("b", 'mode = "shared"\nroots = ["/nonexistent"]')
        async with a.client() as client:
            here = await client.create(cwd=link, model=MODEL)
            link.unlink()
            with pytest.raises(ToolFailed) as refused:
                await here.send("go")
            link.symlink_to(cluster.directory("shared"))
            result = await (await here.send("go")).result()

    assert refused.value.code == "no_node_for_directory"
    assert f"{link} (announced by: a (the root does not exist there now))" in str(refused.value)
    assert result.text == "There"


@pytest.mark.promises("nodes.workspace", "roles.settings")
async def test_a_link_on_the_node_that_has_the_directory_gives_a_driver_no_other_directory(
    cluster: Cluster, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    patch = "*** Begin Patch\n*** Add File: planted\n+x\n*** End Patch"
    parley_model.says(sh("c1", "touch planted"), shell("c2", "apply_patch", patch))
    parley_model.says("Done")
    root = cluster.directory("a")
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        await cluster.start("a")
        b = await cluster.start("b", f'roots = ["{tmp_path / "work-b"}"]', serve_root=root)
        code, out, errors = await parley("token", "create", "d", "--role", "driver", "--json", env=b.environ)
        assert code == 0, errors
        token = json.loads(out)["token"]
        async with b.client(token=token) as client:
            here = await client.create(cwd=root / "link", model=MODEL, sandbox="workspace-write")
            (root / "link").symlink_to(secret)
            result = await (await here.send("go")).result()

    assert result.text == "Done"
    assert list(secret.iterdir()) == []


@pytest.mark.promises("nodes.workspace")
async def test_a_relative_directory_in_a_message_is_resolved_by_the_node_of_the_client(
    cluster: Cluster, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    parley_model.says(sh("c1", "touch ran"))
    parley_model.says("Done")
    own = tmp_path / "b" / "work"  # the directory in which the node `b` is started
    (own / "sub").mkdir(parents=True)
    async with asyncio.timeout(TIMEOUT_SECONDS), cluster:
        await cluster.start("a")
        b = await cluster.start("b", f'roots = ["{own}"]')
        async with b.client() as client:
            here = await client.create(cwd=cluster.directory("a"), model=MODEL, sandbox="workspace-write")
            result = await (await here.send("go", cwd="sub")).result()

    assert result.text == "Done"
    assert (own / "sub" / "ran").exists()
