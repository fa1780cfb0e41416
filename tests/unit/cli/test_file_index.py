"""The search in the files of a working directory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.cli.chat import file_index
from parley.cli.chat.file_index import FileIndex, PathTable

LARGE = [f"package_{folder}/module_{folder}/file_{number}.py" for folder in range(500) for number in range(200)]


async def test_names_that_begin_with_the_text_come_first(tmp_path: Path) -> None:
    for name in ("reader.py", "docs/read.md", "src/thread.py", "readings/notes.txt", "other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    index = FileIndex(str(tmp_path))

    assert await index.search("READ", limit=10) == [
        "reader.py",
        "readings/",
        "docs/read.md",
        "src/thread.py",
        "readings/notes.txt",
    ]
    assert await index.search("srthr", limit=10) == ["src/thread.py"]
    assert await index.search("nothing like it", limit=10) == []
    assert await index.search("", limit=2) == ["docs/", "other.py"]
    index.close()


async def test_a_search_in_100000_files_uses_less_than_50_milliseconds() -> None:
    table = PathTable(LARGE)
    searches = ["f", "file_19", "module_499/file_7", "absent", "pkg7fl9"]
    used: dict[str, float] = {}
    for text in searches:
        attempts = []
        for _ in range(3):
            began = time.process_time()
            await table.find(text, limit=50)
            attempts.append(time.process_time() - began)
        used[text] = min(attempts)

    assert max(used.values()) < 0.05, used


async def test_a_directory_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert await FileIndex(str(tmp_path / "absent")).search("a", limit=5) == []


async def test_a_new_file_is_found_after_the_list_was_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_index, "RENEW_SECONDS", 0)
    monkeypatch.setattr(file_index, "RENEW_SHARE", 0)
    index = FileIndex(str(tmp_path))
    assert await index.search("new", limit=5) == []
    (tmp_path / "new.py").touch()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not (found := await index.search("new", limit=5)):  # noqa: ASYNC110 - a thread lists the files
            await asyncio.sleep(0)
    assert found == ["new.py"]
