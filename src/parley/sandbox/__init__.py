"""Runs commands in a sandbox: bubblewrap or Landlock on Linux, Seatbelt on macOS."""

from parley.sandbox.sandboxed import MechanismStatus, Report, Sandboxed

__all__ = ["MechanismStatus", "Report", "Sandboxed"]
