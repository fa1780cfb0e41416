"""Fixtures for tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> str:
    """Return a home without a config.toml."""
    return str(tmp_path)
