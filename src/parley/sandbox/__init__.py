"""Runs commands in a sandbox, with the mechanisms of the operating system."""

from parley.sandbox.sandboxed import Report, Sandboxed, Tried

__all__ = ["Report", "Sandboxed", "Tried"]
