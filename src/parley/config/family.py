"""Determines from the name of a model to which family the model belongs."""

from __future__ import annotations

__all__ = ["family"]


def family(model: str) -> str:
    """Return a model's name in lower case, without the prefix of a service, such as `openai/` in `openai/gpt-5`.

    Models whose names begin with the same family name have the same properties.
    """
    return model.rpartition("/")[2].lower()
