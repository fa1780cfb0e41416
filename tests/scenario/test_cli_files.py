"""`parley export`, `import`, `backup` and `gc` as real programs, while servers use the home."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from kit.builders.approvals import approval_id, command_approval
from kit.builders.events import agent_message, task_complete, task_started, user_message
from kit.builders.logs import AT, state_of
from kit.builders.records import (
    call,
    call_output,
    command_output,
    model_asked,
    model_said,
    opaque,
    session_granted,
    settings_chosen,
    turn_ended,
    turn_started,
)
from kit.builders.rollouts import SESSION, assistant, function_call, function_call_output, rollout, user
from kit.servers.command_line import Outcome, outcome_of
from kit.servers.patched_program import LONG_WAIT
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.cli.main import main
from parley.conversation.log import Log, LogPayload
from parley.conversation.state import TurnOutcome
from parley.ports.store import Head, Query, StateName, Summary
from parley.stores.sqlite.locks import WriteLock
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START, ConversationId, Seq
from parley.wire.items import ImageItem
from parley.wire.principals import PrincipalRef

ID = ConversationId(str(UUID(int=7)))
OTHER = ConversationId(str(UUID(int=8)))

NOISE = Random(5).randbytes(30_000)
IMAGE = ImageItem(image_url="data:image/png;base64," + "iVBO" * 4000)

TALK: Sequence[LogPayload] = (
    settings_chosen(),
    turn_started(principal=PrincipalRef(name="ada", token_id="0123456789abcdef")),
    task_started(),
    user_message("Look at this.", IMAGE, principal="ada"),
    model_asked(),
    model_said(opaque('{"type": "reasoning",\n "summary": []}')),
    model_said(call("c", '{"command": ["cat", "noise"]}')),
    command_output("c", NOISE),
    call_output("c", "noise"),
    model_asked(),
    agent_message("Seen."),
    task_complete("Seen."),
    turn_ended(),
)


class Home:
    """A home, the commands that are run in it, and a server that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path.parent / f"{path.name}-work"
        for folder in (self.path, self.work):
            folder.mkdir()

    async def start(
        self,
        *arguments: str,
        program: Sequence[str] = (sys.executable, "-m", "parley"),
        stdin: int = DEVNULL,
        stdout: int = PIPE,
    ) -> Process:
        return await asyncio.create_subprocess_exec(
            *(*program, *arguments),
            env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(self.path)},
            cwd=self.work,
            stdin=stdin,
            stdout=stdout,
            stderr=PIPE,
        )

    async def parley(self, *arguments: str) -> Outcome:
        return await outcome_of(await self.start(*arguments))

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(str(self.path))
        try:
            yield store
        finally:
            await store.close()

    async def keep(
        self,
        conversation_id: ConversationId,
        *payloads: LogPayload,
        state: StateName = "idle",
        archived: bool = False,
        updated_at: float = AT,
    ) -> None:
        log = Log()
        log.append(payloads, at=AT)
        summary = Summary(
            title="Look at this.",
            cwd="/project",
            model="mock-model",
            state=state,
            updated_at=updated_at,
            outcome=state_of(*payloads).outcome,
        )
        async with self.store() as store:
            await store.create(conversation_id, log.entries, summary, archived=archived)

    async def head(self, conversation_id: str) -> Head:
        async with self.store() as store:
            return await store.head(ConversationId(conversation_id))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Home:
    return Home(tmp_path / "elsewhere")


def entries_in(exported: str) -> list[str]:
    """Return the lines of an export without the first one."""
    return exported.splitlines(keepends=True)[1:]


# --- export and import -------------------------------------------------------------------------


@pytest.mark.promises("principals.copies")
async def test_a_conversation_comes_back_byte_for_byte_in_another_home(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK, archived=True)
    exported = await home.parley("export", ID)
    file = elsewhere.work / "talk.jsonl"
    file.write_text(exported.stdout)

    imported = await elsewhere.parley("import", "talk.jsonl")
    again = await elsewhere.parley("export", ID)

    assert (exported.stderr, exported.exit_code) == ("", 0)
    assert imported == Outcome(f"talk.jsonl: imported as {ID}, {len(TALK)} entries\n", "", 0)
    assert entries_in(again.stdout) == entries_in(exported.stdout)
    assert len(entries_in(exported.stdout)) == len(TALK)
    assert await elsewhere.head(ID) == await home.head(ID)


@pytest.mark.promises("approvals.session-hours")
async def test_an_approval_for_the_session_is_in_no_export_and_is_not_imported(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK, session_granted("k" * 64))
    exported = await home.parley("export", ID)
    forged = json.loads(entries_in(exported.stdout)[-1])
    (elsewhere.work / "talk.jsonl").write_text(
        "".join(exported.stdout.splitlines(keepends=True)[:-1])
        + json.dumps(forged | {"body": forged["body"] | {"principal": "local", "key": "k" * 64}})
    )
    imported = await elsewhere.parley("import", "talk.jsonl")
    async with elsewhere.store() as store:
        entries = await store.read(ID, after=START)

    blank = {"record": "session_granted", "principal": "", "token_id": "", "key": ""}
    assert forged["body"] == blank
    assert imported == Outcome(f"talk.jsonl: imported as {ID}, {len(TALK) + 1} entries\n", "", 0)
    assert json.loads(entries[-1].encoded) == blank


async def test_the_first_line_says_what_it_is(home: Home) -> None:
    await home.keep(ID, *TALK)
    before = time.time()

    head = json.loads((await home.parley("export", ID)).stdout.splitlines()[0])

    assert before <= head.pop("exported_at") <= time.time()
    assert head == {
        "parley_export": 1,
        "conversation_id": ID,
        "last": len(TALK),
        "archived": False,
        "title": "Look at this.",
        "cwd": "/project",
        "model": "mock-model",
    }


async def test_a_conversation_that_another_process_works_on_is_exported_and_has_no_owner_where_it_is_imported(
    home: Home, elsewhere: Home
) -> None:
    await home.keep(ID, *TALK[:8], state="running")
    async with home.store() as server:
        await server.acquire(ID, address="/somewhere")
        written = await home.parley("export", ID, "-o", str(elsewhere.work / "talk.jsonl"))
        owner = (await server.head(ID)).owner

    imported = await elsewhere.parley("import", "talk.jsonl")
    head = await elsewhere.head(ID)

    assert (written, imported.exit_code) == (Outcome("", "", 0), 0)
    assert (owner is not None and owner.pid, head.owner) == (os.getpid(), None)
    assert (head.last, head.summary.state) == (8, "running")


async def test_a_file_is_private_and_not_written_over_unless_that_is_wanted(home: Home) -> None:
    await home.keep(ID, *TALK)
    file = home.work / "talk.jsonl"
    file.write_text("precious")

    refused = await home.parley("export", ID, "--output=talk.jsonl")
    kept = file.read_text()
    forced = await home.parley("export", "--force", ID, "-o", "talk.jsonl")

    assert refused == Outcome(
        "", "parley export: talk.jsonl already exists; refusing to overwrite it without --force\n", 1
    )
    assert (kept, forced) == ("precious", Outcome("", "", 0))
    assert (len(entries_in(file.read_text())), file.stat().st_mode & 0o777) == (len(TALK), 0o600)
    assert os.listdir(home.work) == ["talk.jsonl"]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_only_a_regular_file_is_written_over(
    home: Home, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(home.path))
    odd = home.work / "odd"
    makers: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to("nowhere"),
        "fifo": os.mkfifo,
        "directory": Path.mkdir,
    }
    makers[kind](odd)
    before = odd.lstat()

    assert main(["export", ID, "--force", "-o", str(odd)]) == 1
    assert (
        capsys.readouterr().err == f"parley export: {odd} is not a regular file; only regular files are replaced\n"
    )
    assert (odd.lstat(), os.listdir(home.work)) == (before, ["odd"])


@pytest.mark.parametrize("name", ["parley.db", "parley.db-wal", "write.lock", "run/x"])
@pytest.mark.parametrize("through", ["path", "link"])
def test_no_command_writes_over_what_the_home_needs(
    home: Home, name: str, through: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(home.path))
    (home.path / "run").mkdir()
    (home.path / "parley.db").touch()
    link = home.work / "link"
    link.symlink_to(home.path)
    file = (home.path if through == "path" else link) / name

    assert main(["export", ID, "--force", "-o", str(file)]) == 1
    assert capsys.readouterr().err == f"parley export: {file} is a file that the home itself needs\n"
    if not file.exists():
        assert main(["backup", str(file)]) == 1
        assert capsys.readouterr().err == f"parley backup: {file} is a file that the home itself needs\n"
    assert sorted(os.listdir(home.path)) == ["parley.db", "run"]


async def test_a_prefix_of_the_id_is_enough_for_an_export(home: Home) -> None:
    await home.keep(ID, *TALK)
    whole, prefix, other = [await home.parley("export", given) for given in (ID, ID[:6].upper(), "ffff")]

    assert (prefix.exit_code, entries_in(prefix.stdout)) == (0, entries_in(whole.stdout))
    assert other == Outcome("", "parley export: no conversation has an id that begins with 'ffff'\n", 1)


async def test_a_conversation_that_is_not_there_leaves_no_file(home: Home) -> None:
    await home.keep(ID, *TALK)

    refused = await home.parley("export", OTHER, "-o", "talk.jsonl")

    assert refused == Outcome("", f"parley export: no conversation {OTHER} in {home.path}\n", 1)
    assert os.listdir(home.work) == []


async def test_a_file_that_cannot_be_written_is_named(home: Home) -> None:
    await home.keep(ID, *TALK)

    refused = await home.parley("export", ID, "-o", "nowhere/talk.jsonl")

    why = "No such file or directory (os error 2)"
    assert refused == Outcome("", f"parley export: cannot write nowhere/talk.jsonl: {why}\n", 1)


async def test_nothing_that_a_file_is_called_or_holds_acts_on_the_terminal(home: Home) -> None:
    hostile = "x\x1b[2J\u202e\u200b\nall is well.jsonl"
    spelled = r"x\x1b[2J\u202e\u200b\nall is well.jsonl"
    (home.work / hostile).write_bytes(b"".join(rollout(user("hi"))))
    taken = await home.parley("import", hostile)
    (home.work / hostile).write_text('{"parley": "\u202e"}\n')
    refused = await home.parley("import", hostile)
    missing = await home.parley("export", "\u202e\x1b", "-o", hostile + "/x")

    assert taken.stdout.startswith(f"$'{spelled}': imported as ")
    assert refused.stderr.startswith(f"parley import: $'{spelled}': ")
    for outcome in (taken, refused, missing):
        assert all(line.isprintable() for line in (outcome.stdout + outcome.stderr).split("\n"))
        assert len((outcome.stdout + outcome.stderr).splitlines()) == 1


@pytest.mark.parametrize("line", [["export", ID, "-o", "talk.jsonl"], ["backup", "copy.db"], ["gc", "--yes"]])
def test_a_home_without_conversations_stays_as_it_is(
    home: Home,
    line: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(home.path))
    monkeypatch.chdir(home.work)

    assert main(line) == 1
    assert capsys.readouterr().err.endswith(f": {home.path}: there are no conversations here\n")
    assert (os.listdir(home.path), os.listdir(home.work)) == ([], [])


@pytest.mark.parametrize(
    "line", [["export", ID, "-o", "talk.jsonl"], ["backup", "copy.db"], ["gc", "--yes"], ["token", "ls"], ["ls"]]
)
def test_every_command_says_that_a_home_whose_database_was_removed_is_damaged(
    home: Home,
    line: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home.path / "parley.db-wal").write_bytes(b"x" * 100)
    monkeypatch.setenv("PARLEY_HOME", str(home.path))
    monkeypatch.chdir(home.work)

    assert main(line) == 1
    assert "the database is damaged: parley.db is missing, but its log parley.db-wal" in capsys.readouterr().err


async def test_the_reader_of_an_export_may_close_the_pipe(home: Home) -> None:
    await home.keep(ID, *TALK, *(agent_message("x" * 1000) for _ in range(300)))
    read, write = os.pipe()
    process = await home.start("export", ID, stdout=write)
    os.close(write)
    os.close(read)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        _, err = await process.communicate()

    assert (err, process.returncode) == (b"", -signal.SIGPIPE)


async def test_a_signal_ends_an_export_and_leaves_nothing_of_it(home: Home) -> None:
    await home.keep(ID, *TALK)
    lock = WriteLock(str(home.path))
    with closing(lock), lock:
        process = await home.start("export", ID, "-o", "talk.jsonl", program=LONG_WAIT)
        await until(lambda: bool(os.listdir(home.work)))
        process.terminate()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, err = await process.communicate()

    assert (out, err, process.returncode) == (b"", b"", 128 + signal.SIGTERM)
    assert os.listdir(home.work) == []


# --- many files ------------------------------------------------------------------------------


async def test_a_directory_is_searched_and_each_file_is_reported(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK)
    await home.parley("export", ID, "-o", str(elsewhere.work / "talk.jsonl"))
    day = elsewhere.work / "sessions" / "2025" / "08" / "08"
    day.mkdir(parents=True)
    session = rollout(
        user("go"),
        function_call("c"),
        function_call_output("c"),
        {"type": "web_search_call"},
        assistant("Done"),
    )
    (day / "rollout-a.jsonl").write_bytes(b"".join(session))
    (day / "rollout-b.jsonl").write_bytes(b"".join(rollout(session={**SESSION, "id": str(UUID(int=9))})))
    newer = {"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {}}
    (day / "rollout-c.jsonl").write_bytes(b"".join(rollout(session=newer)))
    (elsewhere.work / "history.jsonl").write_text('{"session_id": "x", "ts": 1, "text": "go"}\n')
    (elsewhere.work / "notes.txt").write_text("not looked at")

    imported = await elsewhere.parley("import", ".")
    again = await elsewhere.parley("import", ".")

    taken = [
        "./history.jsonl: neither an export of Parley nor a rollout file of Codex CLI",
        f"./sessions/2025/08/08/rollout-a.jsonl: imported as {SESSION['id']}, 12 entries;"
        " items left out, because Parley has no equivalent: 1",
        "./sessions/2025/08/08/rollout-b.jsonl: it contains no messages",
        "./sessions/2025/08/08/rollout-c.jsonl: a rollout file of a newer Codex CLI; "
        "Parley reads rollout files of versions up to 0.21",
        f"./talk.jsonl: imported as {ID}, {len(TALK)} entries",
    ]
    assert imported == Outcome("\n".join((*taken, "")), "2 imported, 0 already here, 3 skipped, 0 failed\n", 0)
    assert (again.stderr, again.exit_code) == ("0 imported, 2 already here, 3 skipped, 0 failed\n", 0)
    assert f"./talk.jsonl: already here as {ID}\n" in again.stdout


async def test_a_rollout_is_listed_with_its_time_and_works_in_the_given_directory(home: Home) -> None:
    (home.work / "rollout-x.jsonl").write_bytes(b"".join(rollout(user("go on\nplease"), assistant("Done"))))

    imported = await home.parley("import", "--cwd", "/project", "-c", "model=o3", "rollout-x.jsonl")
    head = await home.head(str(SESSION["id"]))

    assert imported.exit_code == 0
    assert head.summary == Summary(
        title="go on",
        cwd="/project",
        model="o3",
        state="idle",
        updated_at=1754654400.123,
        outcome=TurnOutcome(seq=Seq(head.last - 1), at=1754654400.123, reason="done", text="Done"),
    )


async def test_one_broken_file_does_not_keep_the_others_out(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK)
    whole = (await home.parley("export", ID)).stdout
    (elsewhere.work / "cut.jsonl").write_text(whole.replace(ID, OTHER, 1)[: len(whole) // 2])
    (elsewhere.work / "odd.jsonl").write_text("neither\n")
    (elsewhere.work / "whole.jsonl").write_text(whole)

    imported = await elsewhere.parley("import", "cut.jsonl", "gone.jsonl", "odd.jsonl", ".", "whole.jsonl")
    lines = imported.stderr.splitlines()

    assert (imported.exit_code, lines[-1]) == (1, "1 imported, 1 already here, 1 skipped, 4 failed")
    assert lines[0].startswith("parley import: cut.jsonl: line 9: not an entry: ")
    assert lines[1:3] == [
        "parley import: gone.jsonl: No such file or directory (os error 2)",
        "parley import: odd.jsonl: neither an export of Parley nor a rollout file of Codex CLI",
    ]
    assert (await elsewhere.parley("export", OTHER)).exit_code == 1


async def test_another_conversation_of_that_id_is_left_alone(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK)
    await elsewhere.keep(ID, *TALK[:-3], agent_message("Not seen."), *TALK[-2:])
    await home.parley("export", ID, "-o", str(elsewhere.work / "talk.jsonl"))

    renamed = await elsewhere.parley("import", "talk.jsonl")
    new = await elsewhere.parley("import", "--new-id", "talk.jsonl")
    ids = [said.stdout.split("imported as ")[1][:36] for said in (renamed, new)]

    assert renamed.stdout == (
        f"talk.jsonl: imported as {ids[0]}, because {ID} is the id of another conversation here, "
        f"{len(TALK)} entries\n"
    )
    assert len({ID, *ids}) == 3
    assert [(await elsewhere.head(one)).last for one in ids] == [len(TALK)] * 2
    assert "Not seen." in (await elsewhere.parley("export", ID)).stdout


async def test_a_longer_version_of_a_conversation_does_not_take_its_place(home: Home, elsewhere: Home) -> None:
    await elsewhere.keep(ID, *TALK)
    mine = (await elsewhere.parley("export", ID)).stdout
    (home.work / "mine.jsonl").write_text(mine)
    await home.parley("import", "mine.jsonl")
    last = len(TALK)
    one_more = entries_in(mine)[0].replace('"seq":1,', f'"seq":{last + 1},', 1)
    longer = mine.replace(f'"last":{last},', f'"last":{last + 1},', 1) + one_more
    (home.work / "longer.jsonl").write_text(longer)

    imported = await home.parley("import", "longer.jsonl")
    again = await home.parley("import", "longer.jsonl")

    copy = imported.stdout.split("imported as ")[1][:36]
    assert f", because {ID} is the id of another conversation here" in imported.stdout
    assert again.stdout == f"longer.jsonl: already here as {copy}\n"
    assert entries_in((await home.parley("export", ID)).stdout) == entries_in(mine)


async def test_an_approval_of_another_conversation_is_not_requested_under_its_id(home: Home) -> None:
    await home.keep(ID, *TALK[:6], model_said(call("call1")), *command_approval(1, "make"), state="asking")
    mine = (await home.parley("export", ID)).stdout
    (home.work / "other.jsonl").write_text(mine.replace(ID, OTHER))

    imported = await home.parley("import", "other.jsonl")
    again = await home.parley("import", "other.jsonl")

    theirs = (await home.parley("export", OTHER)).stdout
    assert imported.stdout == f"other.jsonl: imported as {OTHER}, 9 entries\n"
    assert again.stdout == f"other.jsonl: already here as {OTHER}\n"
    assert (approval_id(1) in mine, approval_id(1) in theirs) == (True, False)
    assert [json.loads(one)["type"] for one in entries_in(theirs)] == [
        json.loads(one)["type"] for one in entries_in(mine)
    ]


# --- backup and garbage collection ---------------------------------------------------------------


async def test_a_backup_of_a_home_in_use_is_a_home(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK)
    copy = elsewhere.path / "parley.db"
    async with home.store() as server:
        await server.acquire(ID, address="")
        written = await home.parley("backup", str(copy))
    size = copy.stat().st_size
    refused = await home.parley("backup", str(copy))
    nowhere = await home.parley("backup", "nowhere/copy.db")

    assert written == Outcome(f"{copy}: {size:,} bytes\n", "", 0)
    why = "No such file or directory (os error 2)"
    assert nowhere == Outcome("", f"parley backup: cannot write nowhere/copy.db: {why}\n", 1)
    assert refused == Outcome("", f"parley backup: {copy} already exists; refusing to overwrite it\n", 1)
    assert os.listdir(elsewhere.path) == ["parley.db"]
    exported = [(await one.parley("export", ID)).stdout for one in (home, elsewhere)]
    assert entries_in(exported[0]) == entries_in(exported[1])


OLD = ConversationId(str(UUID(int=1)))
ARCHIVED = ConversationId(str(UUID(int=2)))
ACTIVE = ConversationId(str(UUID(int=3)))


@pytest.fixture
async def full(home: Home) -> Home:
    """Create a home with one conversation that expires after 30 days, two that do not, and an unused blob."""
    long_ago = time.time() - 31 * 86_400
    await home.keep(OLD, *TALK, archived=True, updated_at=long_ago)
    await home.keep(ARCHIVED, *TALK[:3], archived=True, updated_at=time.time() - 29 * 86_400)
    await home.keep(ACTIVE, *TALK[:3], updated_at=long_ago)
    await home.keep(OTHER, settings_chosen(), command_output("c", NOISE[::-1]))
    async with home.store() as store:
        await store.delete(await store.acquire(OTHER, address=""))
    return home


async def conversations_in(home: Home) -> list[str]:
    async with home.store() as store:
        found = [await store.find(Query(archived=archived)) for archived in (True, False)]
    return sorted(listed.conversation_id for page in found for listed in page.items)


async def test_gc_says_one_day(full: Home) -> None:
    (full.path / "config.toml").write_text("[store]\nkeep_days = 1\n")
    would = await full.parley("gc", "--dry-run")

    assert would.stdout.startswith("archived conversations, last active more than 1 day ago: ")


async def test_gc_says_what_it_would_remove_and_then_does_it(full: Home) -> None:
    (full.path / "config.toml").write_text("[store]\nkeep_days = 30\n")

    would = await full.parley("gc", "--dry-run")
    done = await full.parley("gc")
    then = await full.parley("gc")

    first, second, third = would.stdout.splitlines()
    assert (would.stderr, would.exit_code) == ("", 0)
    assert first.startswith("archived conversations, last active more than 30 days ago: 1, ")
    assert second.startswith("unused images and outputs: 1, 30,")
    assert third.startswith("free space in the database: ")
    removed = done.stdout.splitlines()
    assert removed[:3] == [first, second, third]
    assert removed[3] == "removed conversations: 1"
    assert removed[4].startswith("removed images and outputs: 3, ")
    assert then.stdout.splitlines() == [
        "archived conversations, last active more than 30 days ago: 0, 0 bytes",
        "unused images and outputs: 0, 0 bytes",
        "free space in the database: 0 bytes",
    ]
    assert await conversations_in(full) == [ARCHIVED, ACTIVE]


def lines(outcome: Outcome) -> list[dict[str, object]]:
    assert (outcome.stderr, outcome.exit_code) == ("", 0)
    return [json.loads(line) for line in outcome.stdout.splitlines()]


async def test_gc_prints_json(full: Home) -> None:
    (full.path / "config.toml").write_text("[store]\nkeep_days = 30\n")
    would = lines(await full.parley("gc", "--dry-run", "--json"))
    done = lines(await full.parley("gc", "--json"))
    then = lines(await full.parley("gc", "--json"))

    numbers = ("conversations", "conversation_bytes", "blobs", "blob_bytes", "reclaimable_bytes")
    assert would == done[:1]
    assert list(would[0]) == ["type", *numbers]
    assert (would[0]["type"], would[0]["conversations"], would[0]["blobs"]) == ("unneeded", 1, 1)
    assert (done[1]["type"], done[1]["conversations"], done[1]["blobs"]) == ("removed", 1, 3)
    assert then == [{"type": "unneeded", **dict.fromkeys(numbers, 0)}]


async def test_export_import_and_backup_print_json(home: Home, elsewhere: Home) -> None:
    await home.keep(ID, *TALK)
    file, backup = elsewhere.work / "talk.jsonl", elsewhere.work / "copy.db"
    exported = lines(await home.parley("export", ID[:8], "-o", str(file), "--json"))
    imported = lines(await elsewhere.parley("import", str(file), "--json"))
    again = lines(await elsewhere.parley("import", str(file), "--json"))
    broken = elsewhere.work / "broken.jsonl"
    broken.write_text("{}\n")
    failed = await elsewhere.parley("import", str(broken), "--json")
    written = lines(await home.parley("backup", str(backup), "--json"))

    size = {name.name: name.stat().st_size for name in (file, backup)}
    assert exported == [{"type": "export", "conversation_id": ID, "file": str(file), "bytes": size["talk.jsonl"]}]
    for found, outcome in ((imported, "imported"), (again, "already_here")):
        (one,) = found
        assert (one["type"], one["file"], one["outcome"], one["conversation_id"]) == (
            "import",
            str(file),
            outcome,
            ID,
        )
    assert (failed.exit_code, json.loads(failed.stdout)["outcome"]) == (1, "failed")
    assert written == [{"type": "backup", "file": str(backup), "bytes": size["copy.db"]}]


async def test_without_the_setting_every_conversation_is_kept(full: Home) -> None:
    done = await full.parley("gc", "--yes")

    assert (
        done.stdout.splitlines()[0] == "archived conversations: all are kept, because [store] keep_days is not set"
    )
    assert done.stdout.splitlines()[3] == "removed conversations: 0"
    assert done.stdout.splitlines()[4].startswith("removed images and outputs: 1, ")
    assert await conversations_in(full) == [OLD, ARCHIVED, ACTIVE]


async def test_active_conversations_are_kept(full: Home) -> None:
    async with full.store() as server:
        await server.acquire(OLD, address="")
        done = await full.parley("gc", "-c", "store.keep_days=30")

    assert done.exit_code == 0
    assert done.stdout.splitlines()[3] == "removed conversations: 0"
    assert OLD in await conversations_in(full)


async def test_a_damaged_conversation_goes_with_the_others(full: Home) -> None:
    with closing(sqlite3.connect(full.path / "parley.db")) as db, db:
        (row,) = db.execute("SELECT row FROM conversations WHERE id = ?", (OLD,)).fetchone()
        db.execute("DELETE FROM entries WHERE seq = 3 AND row = ?", (row,))

    done = await full.parley("gc", "-c", "store.keep_days=30")

    assert (done.stderr, done.exit_code) == ("", 0)
    assert await conversations_in(full) == [ARCHIVED, ACTIVE]


async def test_the_room_of_deleted_conversations_is_given_back(home: Home) -> None:
    text = "All work and no play. " * 1000
    await home.keep(ID, settings_chosen(), *(agent_message(text) for _ in range(50)))
    await home.keep(OTHER, *TALK[:3])
    async with home.store() as store:
        await store.delete(await store.acquire(ID, address=""))
    before = (home.path / "parley.db").stat().st_size

    done = await home.parley("gc", "--yes")

    assert (before > 1_000_000, (home.path / "parley.db").stat().st_size < 200_000) == (True, True)
    assert done.stdout.splitlines()[2].startswith("free space in the database: 1,")
    assert await conversations_in(home) == [OTHER]


async def test_a_deletion_that_was_broken_off_is_finished(home: Home) -> None:
    await home.keep(ID, *TALK)
    with closing(sqlite3.connect(home.path / "parley.db")) as db, db:
        db.execute("INSERT INTO removed SELECT row, last FROM conversations")
        db.execute("DELETE FROM conversations")

    await home.parley("gc", "--yes")

    with closing(sqlite3.connect(home.path / "parley.db")) as db:
        tables = ("entries", "cuts", "removed", "blobs")
        left = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    assert left == [0, 0, 0, 0]


async def test_gc_ends_if_the_vacuum_mode_of_the_database_was_changed(full: Home) -> None:
    with closing(sqlite3.connect(full.path / "parley.db", isolation_level=None)) as db:
        for change in ("PRAGMA journal_mode = DELETE", "PRAGMA auto_vacuum = NONE", "VACUUM"):
            db.execute(change)

    done = await full.parley("gc", "--yes")

    assert (done.stderr, done.exit_code) == ("", 0)


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 3), (b"yes\n", 2)])
async def test_on_a_terminal_gc_asks_first(full: Home, answer: bytes, left: int) -> None:
    ours, theirs = pty.openpty()
    try:
        process = await full.start("gc", "--config=store.keep_days=30", stdin=theirs)
        os.write(ours, answer)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, err = await process.communicate()
    finally:
        os.close(ours)
        os.close(theirs)

    assert b"Remove them permanently? [y/N] " in out
    assert (err, process.returncode) == (b"", 0)
    assert len(await conversations_in(full)) == left


# --- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["export", "import", "backup", "gc"])
def test_help_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: parley {command} ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["export"], "the following arguments are required: ID"),
        (["export", "a", "b"], "unexpected argument 'b'"),
        (["export", "a", "-o"], "argument -o/--output: expected one argument"),
        (["export", "a", "-x"], "unknown option '-x'"),
        (["import"], "the following arguments are required: FILE"),
        (["import", "--new-id=7", "a"], "argument --new-id: ignored explicit argument '7'"),
        (["backup"], "the following arguments are required: FILE"),
        (["gc", "now"], "unexpected argument 'now'"),
    ],
)
def test_a_usage_error_is_refused(line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert capsys.readouterr().err == f"parley {line[0]}: {said}; see `parley {line[0]} --help`\n"
