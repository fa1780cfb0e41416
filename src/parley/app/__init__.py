"""Connects the parts of the program. Only this package depends on all adapters.

A module of this package imports an adapter only when the adapter is needed.
"""

__all__: list[str] = []
