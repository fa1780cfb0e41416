"""Runs commands in a sandbox, using mechanisms of the operating system."""

from parley.sandbox.sandboxed import MechanismStatus, Report, Sandboxed

__all__ = ["MechanismStatus", "Report", "Sandboxed"]
