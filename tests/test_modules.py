"""Every module of Parley has a test file of its name, is imported by a test, or is named in `tests/README.md`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
SOURCE: Final = TESTS.parent / "src" / "parley"


def modules() -> set[str]:
    files = (path for path in SOURCE.rglob("*.py") if not path.name.startswith("__"))
    return {".".join(["parley", *path.relative_to(SOURCE).with_suffix("").parts]) for path in files}


def test_every_module_has_tests_that_name_it() -> None:
    files = sorted(TESTS.rglob("*.py"))
    stems = {path.stem for path in files}
    named = set(re.findall(r"\bparley(?:\.\w+)+", "\n".join(path.read_text() for path in files)))
    listed = set(re.findall(r"`(parley(?:\.\w+)+)`", (TESTS / "README.md").read_text()))
    untested = {name for name in modules() - named if f"test_{name.rpartition('.')[2]}" not in stems}

    assert untested - listed == set()
    assert listed - modules() == set()


def test_the_index_names_files_that_exist() -> None:
    text = (TESTS / "README.md").read_text()

    assert [path for path in re.findall(r"`((?:\w+/)+test_\w+\.py)`", text) if not (TESTS / path).exists()] == []
