"""Creates recordings of the requests to a model, for commands."""

from __future__ import annotations

from parley.models.recording import create_recording

__all__ = ["create_recording"]
