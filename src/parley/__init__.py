"""A conversation server for coding agents."""

from parley.version import __version__

__all__ = ["__version__"]
