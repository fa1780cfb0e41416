"""Results of tests that are printed at the end of a run."""

from __future__ import annotations

from typing import Final

__all__ = ["PRINTED"]

PRINTED: Final = "printed"
"""The property of a test whose value is printed."""
