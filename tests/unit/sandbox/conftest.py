from __future__ import annotations

from pathlib import Path

import pytest

from kit.system.protected import furnish


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with a repository."""
    furnish(tmp_path / "wide/project/.git")
    return tmp_path / "wide/project"
