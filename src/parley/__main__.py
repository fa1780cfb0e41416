"""`python -m parley` is the command `parley`."""

from __future__ import annotations

import sys

from parley.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
