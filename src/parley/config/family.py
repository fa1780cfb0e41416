"""Normalizes the name of a model, so that the name begins with the name of the model's family."""

from __future__ import annotations

__all__ = ["family"]


def family(model: str) -> str:
    """Return a model's name in lower case, without the prefix of a service, such as `openai/` in `openai/gpt-5`.

    The returned name begins with the name of the model's family, such as `gpt-5`. Callers compare this beginning,
    because the models of one family support the same features.
    """
    return model.rpartition("/")[2].lower()
