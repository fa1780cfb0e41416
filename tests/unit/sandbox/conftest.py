from __future__ import annotations

from pathlib import Path

import pytest

from kit.system.protected import write_files_of_git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with a repository."""
    write_files_of_git(tmp_path / "wide/project/.git")
    return tmp_path / "wide/project"
