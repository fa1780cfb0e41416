"""Puts the parts together: the only package that knows which adapters there are.

Importing it costs nothing; each file in it loads what it puts together.
"""

__all__: list[str] = []
