"""Whether two paths name the same place as far as their letters tell: the same for every store."""

from __future__ import annotations

__all__ = ["plain_path"]


def plain_path(path: str) -> str:
    """A path without the slashes and `.` that change nothing. `..` stays: what it means depends on links."""
    parts = "/".join(part for part in path.split("/") if part not in ("", "."))
    return f"/{parts}" if path.startswith("/") else parts
