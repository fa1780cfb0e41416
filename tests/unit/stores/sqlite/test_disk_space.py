"""The size of the write-ahead log on disks of different sizes (`parley.stores.sqlite.disk_space`)."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from parley.stores.sqlite.disk_space import CHECKPOINT_BYTES, FEW_BYTES, MIN_CHECKPOINT_BYTES, DiskSpace


def test_the_log_gets_a_share_of_the_free_space_and_a_warning_is_written_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimpleNamespace(f_bavail=FEW_BYTES, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    space = DiskSpace("/home/ada/.parley")
    found = []
    for disk.f_bavail in (FEW_BYTES, FEW_BYTES // 2, 0, FEW_BYTES, FEW_BYTES // 2, 2 * FEW_BYTES, FEW_BYTES // 4):
        space.measure()
        found.append((space.checkpoint_bytes, len(caplog.records)))

    half, quarter = CHECKPOINT_BYTES // 2, CHECKPOINT_BYTES // 4
    assert found == [
        (CHECKPOINT_BYTES, 0),
        (half, 1),
        (MIN_CHECKPOINT_BYTES, 1),
        (CHECKPOINT_BYTES, 1),
        (half, 1),
        (CHECKPOINT_BYTES, 1),
        (quarter, 2),
    ]
    assert "the disk of /home/ada/.parley has only 32.0 MiB of free space" in caplog.text


def test_a_disk_that_cannot_be_measured_changes_nothing(tmp_path: os.PathLike[str]) -> None:
    space = DiskSpace(os.path.join(tmp_path, "missing"))

    assert (space.checkpoint_bytes, space.is_short) == (CHECKPOINT_BYTES, False)
