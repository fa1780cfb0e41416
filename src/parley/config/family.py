"""Reduces the name of a model to its family."""

from __future__ import annotations

__all__ = ["family"]


def family(model: str) -> str:
    """Return the name in lower case and without the prefix of a service, as in `openai/gpt-5`.

    Models whose names begin with the same family have the same properties.
    """
    return model.rpartition("/")[2].lower()
