"""The files that `parley export` and `parley backup` write never replace files of the home or each other."""

from __future__ import annotations

import fcntl
import os
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from kit.builders.events import task_complete, task_started, user_message
from kit.builders.logs import AT, log_of
from kit.builders.records import settings_chosen, turn_ended, turn_started
from kit.servers.command_line import outcome_of, start_parley
from kit.system.waiting import until
from parley.ports.store import Summary
from parley.stores.sqlite.locks import WriteLock
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId

ID = ConversationId(str(UUID(int=7)))
HAS = {"config.toml": "", "auth.json": "{}", "AGENTS.md": "Be kind.", "sub/notes.jsonl": "mine\n"}


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """Return a home with a conversation and files of its owner. A working directory is beside it."""
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "sub").mkdir(parents=True)
    work.mkdir()
    (work / "link").symlink_to(home / "sub")
    for name, text in HAS.items():
        (home / name).write_text(text)
    payloads = settings_chosen(), turn_started(), task_started(), user_message("go"), task_complete(), turn_ended()
    store = SqliteStore(str(home))
    summary = Summary(title="go", cwd="/project", model="mock-model", state="idle", updated_at=AT)
    await store.create(ID, log_of(*payloads).entries, summary)
    await store.close()
    return home


async def start(home: Path, *arguments: str) -> Process:
    return await start_parley(home, *arguments, cwd=home.parent / "work")


async def ended(process: Process) -> tuple[int | None, str]:
    """Wait for the process, and return its exit code and its errors."""
    done = await outcome_of(process)
    return done.exit_code, done.stderr


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


NEEDED = "is a file that the home itself needs"
NO_PLACE = "is in the home, where commands create only *.jsonl and *.db files, and replace only exports"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("link/../parley.db", NEEDED),
        ("link/../config.toml", NO_PLACE),
        ("../home/auth.json", NO_PLACE),
        ("../home/AGENTS.md", NO_PLACE),
        ("link/notes.jsonl", NO_PLACE),
        ("link/AGENTS.md", NO_PLACE),
        ("link/", "names no file"),
    ],
)
async def test_files_of_the_home_that_are_no_exports_are_not_overwritten(home: Path, path: str, why: str) -> None:
    before = files_in(home)

    refused = await ended(await start(home, "export", "--force", ID, "-o", path))

    assert refused == (1, f"parley export: {path} {why}\n")
    assert files_in(home) == before


async def test_an_export_may_lie_in_the_home_and_be_written_over(home: Path) -> None:
    for _ in range(2):
        assert await ended(await start(home, "export", "--force", ID, "-o", "link/../talk.jsonl")) == (0, "")

    assert len((home / "talk.jsonl").read_text().splitlines()) == 7


def begun(folder: Path) -> Iterator[str]:
    return (name for name in os.listdir(folder) if name.endswith(".part"))


async def test_of_two_exports_to_one_file_one_fails_because_it_exists(home: Path) -> None:
    lock = WriteLock(str(home))
    with closing(lock), lock:  # an export waits half a second for the lock, and then reads without it
        both = [await start(home, "export", ID, "-o", "talk.jsonl") for _ in range(2)]
        await until(
            lambda: len(list(begun(home.parent / "work"))) == 2 or all(one.returncode is not None for one in both)
        )

    results = sorted([await ended(process) for process in both])
    assert results == [
        (0, ""),
        (1, "parley export: talk.jsonl already exists; refusing to overwrite it without --force\n"),
    ]
    assert sorted(os.listdir(home.parent / "work")) == ["link", "talk.jsonl"]


async def test_of_two_backups_to_one_file_one_fails_because_it_exists(home: Path) -> None:
    both = [await start(home, "backup", "copy.db") for _ in range(2)]

    results = sorted([await ended(process) for process in both])
    assert results == [(0, ""), (1, "parley backup: copy.db already exists; refusing to overwrite it\n")]
    assert sorted(os.listdir(home.parent / "work")) == ["copy.db", "link"]


@pytest.mark.parametrize("line", [("backup", "new"), ("export", ID, "-o", "new")], ids=["backup", "export"])
async def test_leftovers_of_a_killed_process_are_removed_by_the_next_writer(
    home: Path, line: tuple[str, ...]
) -> None:
    work = home.parent / "work"
    left, held, other = (f".parley-{number:016x}.part" for number in range(3))
    for name in (left, f"{left}-journal", held, f"{other}-wal", ".parley-new.part", "new.part"):
        (work / name).touch()
    holder = os.open(work / held, os.O_RDWR)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert (await ended(await start(home, *line)))[0] == 0
    finally:
        os.close(holder)

    assert sorted(os.listdir(work)) == sorted([held, ".parley-new.part", "new.part", "link", "new"])
