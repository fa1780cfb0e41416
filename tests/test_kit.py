"""The index of `tests/kit` names every module."""

from __future__ import annotations

import re
from pathlib import Path

KIT = Path(__file__).parent / "kit"


def test_the_index_names_every_module_and_no_other() -> None:
    modules = {path.stem for path in KIT.rglob("*.py")} - {"__init__"}
    listed = set(re.findall(r"`([a-z_]+)`", (KIT / "README.md").read_text()))
    assert modules - listed == set()
    assert listed - modules - {"codex", "until", "until_state"} == set()
