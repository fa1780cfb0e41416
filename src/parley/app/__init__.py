"""Connects the parts of the program. Only this package depends on all adapters.

A module imports the adapters that it connects only when they are needed.
"""

__all__: list[str] = []
