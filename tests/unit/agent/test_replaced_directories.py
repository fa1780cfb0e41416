"""While a directory is repeatedly replaced by a link, no command counts as safe, and no check fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.builders.trees import not_a_link
from kit.models.raw_provider import settings
from parley.agent.prompt import user_instructions
from parley.agent.safe.resolving import is_outside


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a link to a directory with notes. The link is replaced when it is followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/AGENTS.md").write_text("notes")
    (tmp_path / "moved").symlink_to("real")
    monkeypatch.setattr(os, "readlink", not_a_link)
    return str(tmp_path / "moved")


def test_notes_are_not_read(moved: str, tmp_path: Path) -> None:
    assert user_instructions(settings(cwd=moved, home=str(tmp_path))) is None


def test_no_program_is_known(moved: str) -> None:
    assert not is_outside(f"{moved}/AGENTS.md", ("/elsewhere",))
