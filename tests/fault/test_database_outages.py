"""Outages of the database, as clients of a server see them (`parley.stores.postgres.availability`,
`parley.server.store_notices`, `parley.ports.availability`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kit.clients.shared_home import events_until, is_, log_of
from kit.clients.shell_turns import sh
from kit.servers.database_port import DatabasePort
from kit.servers.in_process_resident import InProcessResident
from kit.servers.node_process import NODE_TOKEN
from kit.servers.postgres import NEEDS_POSTGRES, Databases, with_connection
from kit.servers.resident_process import outcome_of, start_parley
from kit.servers.short_outages import CALL_SECONDS, shorten_outages
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.app.http_choice import HttpChoice
from parley.client import Client, Conversation, connect
from parley.client.errors import ToolFailed
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import AgentMessageDelta, ErrorEvent, ExecCommandBegin, TaskComplete
from parley.wire.mcp import LogMessage
from parley.wire.notifications import STORE_LOGGER

pytestmark = [NEEDS_POSTGRES, pytest.mark.waits]

TOKEN: Final = "t" * 32
CUT_OFF: Final = "Turn interrupted: the server lost its connection to the database"
LONG_LEASE_SECONDS: Final = 3600.0
"""The time of leases that no server gives up during a test."""


@pytest.fixture(autouse=True)
def _short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_outages(monkeypatch)


class Served(NamedTuple):
    """A server whose database is behind a port, and a client of the server."""

    url: str
    environ: dict[str, str]
    """The environment for commands that connect to the server."""
    client: Client
    port: DatabasePort
    notices: list[str]
    """The states in the log messages about the database."""

    async def until_told(self, state: str) -> None:
        """Wait until the last log message about the database has this state."""
        await until(lambda: self.notices[-1:] == [state], lambda: str(self.notices))


LEVELS: Final = {"unreachable": "warning", "turns_stopped": "error", "available": "notice"}


def noting(notices: list[str]) -> Callable[[LogMessage], None]:
    """Return a callback for log messages of the server. It adds the states in messages about the database."""

    def note(message: LogMessage) -> None:
        if message.logger == STORE_LOGGER:
            state = message.data["state"]
            assert message.level == LEVELS[state]
            notices.append(state)

    return note


@asynccontextmanager
async def serving(
    model: ScriptedModel, home: Path, database: str, kind: str = "node", *, node_id: str = "a"
) -> AsyncIterator[Served]:
    notices: list[str] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), DatabasePort(database) as port:
        env = {"PARLEY_STORE_URL": port.url, **({"PARLEY_NODE_TOKEN": NODE_TOKEN} if kind == "node" else {})}
        config = f'[node]\nid = "{node_id}"\n[workspace]\nmode = "shared"\n'
        async with InProcessResident(model, home, config=config, http=HttpChoice(token=TOKEN), env=env) as server:
            url = server.resident.description["url"]
            async with connect(url=url, token=TOKEN, on_log=noting(notices)) as client:
                yield Served(url, server.environ, client, port, notices)


def begin_outage(port: DatabasePort, outage: str) -> None:
    if outage == "cut":
        port.refuses = True
        port.cut()
    else:
        port.hold()


def end_outage(port: DatabasePort, outage: str) -> None:
    if outage == "cut":
        port.refuses = False
    else:
        port.flow()


def without_tracebacks(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether the log has no tracebacks.

    Connection errors in futures of asyncpg do not count. asyncpg forgets such a future if an attempt to connect is
    cancelled at the wrong moment.
    """
    return not [
        record
        for record in caplog.records
        if record.levelno >= logging.CRITICAL
        or (record.exc_info and not (record.name == "asyncio" and isinstance(record.exc_info[1], ConnectionError)))
    ]


@pytest.mark.parametrize(
    ("kind", "outage"),
    [
        ("node", "cut"),
        pytest.param("server", "held", marks=pytest.mark.long),
        pytest.param("node", "held", marks=pytest.mark.long),
        pytest.param("server", "cut", marks=pytest.mark.long),
    ],
)
@pytest.mark.promises("outages.turns", "outages.notices", "nodes.cut-off")
async def test_a_long_outage_stops_a_turn_before_its_lease_expires_and_is_reported_to_clients(
    parley_model: ScriptedModel,
    tmp_path: Path,
    databases: Databases,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    outage: str,
) -> None:
    ticks, held = tmp_path / "ticks", tmp_path / "held"
    os.mkfifo(held)
    parley_model.says(sh("c1", f"exec 3>{held}; while true; do date +%s.%N >>{ticks}; sleep 0.02; done"))
    parley_model.says("Here again")
    async with (
        serving(parley_model, tmp_path / "home", databases.url(), kind) as served,
        opened(held) as reading,
    ):
        conversation = await served.client.create(cwd=tmp_path, model=MODEL)
        async with conversation.stream() as stream:
            await conversation.send("go")
            await events_until(stream, is_(ExecCommandBegin))
            await until(ticks.exists)
            begin_outage(served.port, outage)
            await served.until_told("turns_stopped")
            expiry = await with_connection(
                databases.url(), lambda db: db.fetchval("SELECT max(expires_at) FROM parley.holders")
            )
            await until(lambda: is_closed(reading))  # all processes of the command have ended
            end_outage(served.port, outage)
            await served.until_told("available")
            events = await events_until(stream, is_(ErrorEvent))
            result = await (await conversation.send("go on")).result()

    assert served.notices.index("unreachable") < served.notices.index("turns_stopped")
    assert float(ticks.read_text().split()[-1]) < expiry.timestamp()
    assert isinstance(events[-1], ErrorEvent)
    assert (events[-1].message, events[-1].reason) == (CUT_OFF, "restarted")
    assert result.text == "Here again"
    assert without_tracebacks(caplog)


@asynccontextmanager
async def opened(pipe: Path) -> AsyncIterator[int]:
    """Open a named pipe for reading, without waiting for a writer."""
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield reading
    finally:
        os.close(reading)


def is_closed(reading: int) -> bool:
    """Return whether no process has the pipe open for writing."""
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False


@pytest.mark.promises("nodes.cut-off")
async def test_clients_of_another_node_see_the_end_of_a_turn_whose_node_stays_cut_off(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    """The nodes still reach each other."""
    parley_model.says("Cut off", HOLD)
    parley_model.says("On the other node")
    url = databases.url()
    async with (
        serving(parley_model, tmp_path / "a" / "home", url) as a,
        serving(parley_model, tmp_path / "b" / "home", url, node_id="b") as b,
    ):
        here = await a.client.create(cwd=tmp_path, model=MODEL)
        await here.send("go")
        await parley_model.wait_until_held()
        there = b.client.conversation(here.id)
        async with there.stream() as stream:
            await events_until(stream, is_(AgentMessageDelta))
            begin_outage(a.port, "cut")
            events = await events_until(stream, is_(ErrorEvent))
            result = await (await there.send("go on")).result()
        end_outage(a.port, "cut")
        log = await log_of(here)

    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].message.endswith("was killed or lost its connection to the database")
    assert result.text == "On the other node"
    assert isinstance(log[-1], TaskComplete)


@pytest.mark.promises("outages.turns")
async def test_a_turn_that_no_client_watches_is_ended_when_the_database_is_back(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    parley_model.says("Cut off", HOLD)
    async with serving(parley_model, tmp_path / "home", databases.url(), "server") as served:
        conversation = await served.client.create(cwd=tmp_path, model=MODEL)
        await conversation.send("go")
        await parley_model.wait_until_held()
        begin_outage(served.port, "held")
        await served.until_told("turns_stopped")
        end_outage(served.port, "held")
        state = "running"
        while state != "idle":
            await asyncio.sleep(0.02)
            state = await with_connection(
                databases.url(), lambda db: db.fetchval("SELECT state FROM parley.conversations")
            )


@pytest.mark.promises("outages.turns")
async def test_an_approval_whose_request_was_stored_without_an_answer_of_the_database_can_be_answered_later(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    ran = tmp_path / "ran"
    parley_model.says("Wait", HOLD, sh("c1", f"echo ran >>{ran}"))
    parley_model.says("Done")
    async with serving(parley_model, tmp_path / "home", databases.url()) as served:
        conversation = await served.client.create(cwd=tmp_path, model=MODEL, approval_policy="untrusted")
        await conversation.send("go")
        await parley_model.wait_until_held()
        served.port.refuses = True
        served.port.cut_after("answer", 0, marker=b"exec_approval_request")
        parley_model.release()
        await served.until_told("turns_stopped")
        end_outage(served.port, "cut")
        await served.until_told("available")
        turn = await conversation.send("go on")
        (approval,) = await served.client.approvals(conversation.id)
        await approval.approve()
        result = await turn.result()

    assert (result.text, ran.read_text()) == ("Done", "ran\n")


@pytest.mark.parametrize("kind", ["node", pytest.param("server", marks=pytest.mark.long)])
@pytest.mark.promises("outages.turns", "outages.notices")
async def test_a_short_outage_does_not_stop_a_turn(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LONG_LEASE_SECONDS)
    parley_model.says("Still ", HOLD, "here")
    async with serving(parley_model, tmp_path / "home", databases.url(), kind) as served:
        conversation = await served.client.create(cwd=tmp_path, model=MODEL)
        async with conversation.stream() as stream:
            await conversation.send("go")
            await parley_model.wait_until_held()
            begin_outage(served.port, "cut")
            await served.until_told("unreachable")
            parley_model.release()
            await events_until(stream, lambda event: isinstance(event, AgentMessageDelta) and event.delta == "here")
            end_outage(served.port, "cut")
            events = await events_until(stream, is_(TaskComplete))
            await served.until_told("available")

    assert isinstance(events[-1], TaskComplete)
    assert events[-1].last_agent_message == "Still here"


CALLS: Final[dict[str, Callable[[Client, Conversation, Path], Awaitable[Any]]]] = {
    "list": lambda client, idle, _: client.list(),
    "create": lambda client, idle, path: client.create(cwd=path, model=MODEL),
    "search": lambda client, idle, _: client.search("word"),
    "send": lambda client, idle, _: idle.send("hello"),
    "read": lambda client, idle, _: idle.read(limit=1),
    "status": lambda client, idle, _: idle.status(),
    "approvals": lambda client, idle, _: client.approvals(),
}


@pytest.mark.parametrize(
    ("outage", "checks_time"), [("cut", False), ("held", False), pytest.param("held", True, marks=pytest.mark.long)]
)
@pytest.mark.promises("outages.calls")
async def test_calls_during_an_outage_fail_in_time_with_a_code(
    parley_model: ScriptedModel,
    tmp_path: Path,
    databases: Databases,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    outage: str,
    checks_time: bool,
) -> None:
    parley_model.says("Hold on", HOLD)
    monkeypatch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LONG_LEASE_SECONDS)
    loop = asyncio.get_running_loop()
    failures: dict[str, tuple[float, str | None]] = {}
    async with serving(parley_model, tmp_path / "home", databases.url()) as served:
        busy, idle = [await served.client.create(cwd=tmp_path, model=MODEL) for _ in range(2)]
        await busy.send("go")
        await parley_model.wait_until_held()

        async def fail(name: str, conversation: Conversation) -> None:
            began = loop.time()
            code = None
            try:
                await CALLS[name](served.client, conversation, tmp_path)
            except ToolFailed as failed:
                code = failed.code
            failures[name if conversation is idle else "join"] = loop.time() - began, code

        begin_outage(served.port, outage)
        await asyncio.gather(*(fail(name, idle) for name in CALLS), fail("send", busy))
        end_outage(served.port, outage)

    assert {code for _, code in failures.values()} <= {"store_failed", "outcome_unknown"}, failures
    assert all(failures[name][1] == "store_failed" for name in CALLS), failures
    # A call that waited for another call would need twice the time.
    assert not checks_time or all(seconds < 2 * CALL_SECONDS for seconds, _ in failures.values()), failures
    assert without_tracebacks(caplog)


@pytest.mark.promises("outages.calls")
async def test_a_message_without_an_answer_is_accepted_once_when_it_is_sent_again(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LONG_LEASE_SECONDS)
    parley_model.says("First ", HOLD, "part")
    parley_model.says("Second part")
    async with serving(parley_model, tmp_path / "home", databases.url()) as served:
        conversation = await served.client.create(cwd=tmp_path, model=MODEL)
        await conversation.send("go")
        await parley_model.wait_until_held()
        message_id = "5b1f7a3e-6f0a-4a57-8a0b-0d6d3b1f0c01"
        begin_outage(served.port, "held")
        with pytest.raises(ToolFailed) as failed:
            await conversation.send("and this", message_id=message_id)
        end_outage(served.port, "held")
        turn = await conversation.send("and this", message_id=message_id)
        parley_model.release()
        await turn.result()
        log = await log_of(conversation)

    assert failed.value.code in ("outcome_unknown", "store_failed")
    assert sum("and this" in str(event) for event in log) == 1


@pytest.mark.promises("outages.notices")
async def test_a_client_that_connects_during_an_outage_is_told_and_a_level_silences_the_messages(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LONG_LEASE_SECONDS)
    async with serving(parley_model, tmp_path / "home", databases.url()) as served, AsyncExitStack() as clients:
        quiet: list[str] = []
        one = await clients.enter_async_context(connect(url=served.url, token=TOKEN, on_log=noting(quiet)))
        await one.request("logging/setLevel", {"level": "error"})
        begin_outage(served.port, "cut")
        await served.until_told("unreachable")
        late: list[str] = []
        await clients.enter_async_context(connect(url=served.url, token=TOKEN, on_log=noting(late)))
        end_outage(served.port, "cut")
        await served.until_told("available")
        await until(lambda: late[-1:] == ["available"])

    assert late[0] == "unreachable"
    assert quiet == []


@pytest.mark.child_process
@pytest.mark.promises("outages.notices")
async def test_parley_watch_and_the_status_show_that_the_server_cannot_reach_its_database(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LONG_LEASE_SECONDS)
    parley_model.says("Hold on", HOLD)
    async with serving(parley_model, tmp_path / "home", databases.url(), "server") as served:
        conversation = await served.client.create(cwd=tmp_path, model=MODEL)
        await conversation.send("go")
        await parley_model.wait_until_held()
        watching = await start_parley("watch", conversation.id, env=served.environ)
        assert watching.stdout is not None
        assert watching.stderr is not None
        await watching.stdout.readline()
        begin_outage(served.port, "cut")
        with pytest.raises(ToolFailed):
            await conversation.send("and this")
        await served.until_told("unreachable")
        _, status, _ = await outcome_of(await start_parley("serve", "--status", env=served.environ))
        end_outage(served.port, "cut")
        printed = [await watching.stderr.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        await watching.wait()

    assert "the server cannot reach its database\n" in status
    assert printed[0].startswith(b"parley watch: The server cannot reach its database.")
    assert printed[1] == b"parley watch: The server can reach its database again.\n"
