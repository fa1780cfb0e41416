"""Connects the parts: the only package that knows all adapters.

Each module imports the adapters that it connects when it needs them.
"""

__all__: list[str] = []
