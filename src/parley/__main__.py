"""Runs the command `parley` as `python -m parley`."""

from __future__ import annotations

import os
import sys

from parley.config.installation import remove_cwd_from_sys_path

__all__: list[str] = []

if __name__ == "__main__":
    remove_cwd_from_sys_path(os.path.dirname(os.path.abspath(__file__)))
    from parley.cli.main import main

    sys.exit(main())
