"""`python -m parley` is the command `parley`."""

from __future__ import annotations

import os
import sys

from parley.config.installation import load_nothing_from_here

__all__: list[str] = []

if __name__ == "__main__":
    load_nothing_from_here(os.path.dirname(os.path.abspath(__file__)))
    from parley.cli.main import main

    sys.exit(main())
