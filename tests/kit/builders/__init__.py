"""Builders of values that take many lines to write."""

__all__: list[str] = []
