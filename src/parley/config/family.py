"""What can be told of a model by its name."""

from __future__ import annotations

__all__ = ["family"]


def family(model: str) -> str:
    """The name without who offers it and in lower case: models whose names begin alike are alike.

    Services that offer many put the maker in front: `openai/gpt-5`.
    """
    return model.rpartition("/")[2].lower()
