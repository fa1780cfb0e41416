from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.errors import BadHome
from parley.stores.sqlite.files import (
    COARSE_SETTLING_NS,
    DATABASE,
    LOG,
    NETWORK_FILE_SYSTEMS,
    SHARED_MEMORY,
    DatabaseFiles,
    file_system,
    prepare_home,
)

MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
24 21 0:22 / /dev/shm rw,nosuid - tmpfs tmpfs rw
30 21 0:40 / /home/of\\040people rw,relatime shared:7 - nfs4 server:/home rw,vers=4.2
31 21 0:41 / /mnt/c rw - 9p C: rw
"""


def test_the_file_system_of_a_device_is_read_off_the_mounts() -> None:
    assert file_system(MOUNTS, 254, 0) == "ext4"
    assert file_system(MOUNTS, 0, 40) in NETWORK_FILE_SYSTEMS
    assert file_system(MOUNTS, 0, 41) in NETWORK_FILE_SYSTEMS
    assert file_system(MOUNTS, 0, 2) is None
    assert file_system("", 0, 2) is None


def test_a_home_is_made_for_its_user_alone(tmp_path: Path) -> None:
    home = tmp_path / "not" / "there"
    prepare_home(str(home))
    prepare_home(str(home))

    assert home.stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    prepare_home(str(tmp_path))

    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").touch()

    with pytest.raises(BadHome):
        prepare_home(str(tmp_path / "home"))


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[DatabaseFiles]:
    """Return the files of a home that was last changed long ago, after a check that found them in place."""
    for name in (DATABASE, LOG, SHARED_MEMORY):
        (tmp_path / name).write_bytes(b"x")
    hours_ago = time.time() - 3600
    os.utime(tmp_path, (hours_ago, hours_ago))
    now = time.time_ns
    with pytest.MonkeyPatch.context() as patched:
        # setting the times is a change, too
        patched.setattr(time, "time_ns", lambda: now() + 2 * COARSE_SETTLING_NS)
        files = DatabaseFiles(str(tmp_path))
        assert files.changed(has_written=True) == []
        yield files
    files.close()


@pytest.mark.parametrize("name", [DATABASE, LOG, SHARED_MEMORY])
def test_a_file_that_is_replaced_or_removed_is_noticed(unchanged: DatabaseFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "copy").write_bytes(b"x")
    assert unchanged.changed(has_written=True) == []
    (tmp_path / "copy").replace(tmp_path / name)
    assert unchanged.changed(has_written=True) == [name]
    (tmp_path / name).unlink()
    assert unchanged.changed(has_written=True) == [name]


def test_a_home_that_is_moved_away_has_lost_all_files(unchanged: DatabaseFiles, tmp_path: Path) -> None:
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert unchanged.changed(has_written=True) == [DATABASE, LOG, SHARED_MEMORY]
    moved.rename(tmp_path)
    assert unchanged.changed(has_written=True) == []


def test_a_log_that_is_emptied_counts_as_removed_only_after_a_write(
    unchanged: DatabaseFiles, tmp_path: Path
) -> None:
    os.truncate(tmp_path / LOG, 0)
    assert (unchanged.changed(has_written=False), unchanged.changed(has_written=True)) == ([], [LOG])


def test_files_in_an_unchanged_directory_are_not_examined(
    unchanged: DatabaseFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[str] = []
    stat = os.stat

    def noted(path: str) -> os.stat_result:
        examined.append(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", noted)
    unchanged.changed(has_written=True)
    assert not [path for path in examined if DATABASE in path]
