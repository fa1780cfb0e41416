from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.errors import BadHome
from parley.stores.sqlite.files import NETWORK_FILE_SYSTEMS, file_system, prepare_home

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
