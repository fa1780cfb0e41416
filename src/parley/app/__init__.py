"""Connects the parts of the program. No other package depends on all adapters.

Each module imports the adapters that it connects when it needs them.
"""

__all__: list[str] = []
