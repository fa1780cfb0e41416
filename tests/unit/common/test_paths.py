from __future__ import annotations

import pytest

from parley.common.paths import is_below


@pytest.mark.parametrize(
    ("path", "folder", "below"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/a/b", "/a/", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/", "/", True),
    ],
)
def test_a_directory_contains_itself_and_its_entries(path: str, folder: str, below: bool) -> None:
    assert is_below(path, folder) is below
