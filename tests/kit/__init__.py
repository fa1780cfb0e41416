"""Builders that tests share: short names for values that are long to write."""

__all__: list[str] = []
