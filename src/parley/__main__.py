"""Runs the command `parley` as `python -m parley`.

The syntax of this module is also valid in old versions of Python. The module can therefore report that the Python
version is too old.
"""

from __future__ import annotations

import os
import sys

__all__: list[str] = []

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - pip does not check the version for `python -m parley`
        sys.exit(f"parley: requires Python 3.11 or newer, but this is Python {sys.version.split()[0]}")

    from parley.config.installation import remove_cwd_from_sys_path

    remove_cwd_from_sys_path(os.path.dirname(os.path.abspath(__file__)))
    from parley.cli.main import main

    sys.exit(main())
