"""Connects the parts of the program. No other package depends on all adapters.

A module imports the adapters that it connects only when they are needed.
"""

__all__: list[str] = []
