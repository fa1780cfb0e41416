"""Helpers that tests share, grouped by role; README.md is the index."""

__all__: list[str] = []
