"""Builders of values that are long to write."""

__all__: list[str] = []
