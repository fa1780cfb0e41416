"""Keeping commands within their bounds, by what the system has for that."""

from parley.sandbox.sandboxed import Report, Sandboxed, Tried

__all__ = ["Report", "Sandboxed", "Tried"]
