"""A program repeatedly replaces a directory in the path of a file while the server reads the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from kit.system.swapped_files import swapped
from parley.common.guarded_files import read_named

READS: Final = 2000
"""The minimum number of reads. The test continues until the path has led to each of the two directories."""


async def test_a_directory_that_is_swapped_for_a_link_never_leads_to_a_hidden_file(tmp_path: Path) -> None:
    project, keys = tmp_path / "project", tmp_path / "keys"
    for folder, content in ((project / "own", b"own"), (keys, b"key")):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(content)
    (tmp_path / "to-own").symlink_to("own")
    (tmp_path / "to-keys").symlink_to(keys)
    (project / "way").symlink_to("own")
    came = Counter[bytes | str]()
    async with swapped(project / "way", tmp_path / "to-own", tmp_path / "to-keys"):
        while came.total() < READS or not (came[b"own"] and came["refused"]):
            try:
                came[read_named("way/file", cwd=str(project), limit=100, hidden=[str(keys)])] += 1
            except OSError:
                came["refused"] += 1

    assert came[b"key"] == 0
