"""The module that the fork server loads for Landlock; `tests/loopback` restricts real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit.system.needs import LANDLOCK
from parley.common import landlock
from parley.common.landlock import abi_version, create_ruleset

IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import landlock
print(sorted({"typing", "enum", "re"} & set(sys.modules)))
"""


def test_it_imports_no_module_that_delays_the_fork_server() -> None:
    folder = str(Path(landlock.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT, folder], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


@LANDLOCK
def test_the_kernel_names_its_version_and_refuses_rights_that_it_does_not_know() -> None:
    assert abi_version() >= 1
    with pytest.raises(OSError, match="Invalid argument"):
        create_ruleset(1 << 63)
