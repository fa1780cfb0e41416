"""The key of a home."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from parley.app.home_key import home_key


def test_the_key_is_created_once_and_only_the_user_can_read_it(tmp_path: Path) -> None:
    first = home_key(str(tmp_path))

    assert (len(first), home_key(str(tmp_path))) == (32, first)
    assert stat.S_IMODE((tmp_path / "serve.key").stat().st_mode) == 0o600


def test_a_damaged_key_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "serve.key").write_bytes(b"short")
    key = home_key(str(tmp_path))
    (tmp_path / "serve.key").unlink()
    (tmp_path / "serve.key").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"k" * 32)

    assert len(key) == 32
    with pytest.raises(OSError, match="symbolic links"):
        home_key(str(tmp_path))
