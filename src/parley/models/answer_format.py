"""Encodes the output schema in the form that Chat Completions and the Responses API accept."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["named_schema"]

SCHEMA_NAME: Final = "answer"
"""The name of the output schema. Chat Completions and the Responses API require a name, and show it to the model.
"""


def named_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request that contains the given output schema and its name. This part asks the provider
    to follow the schema exactly.
    """
    return {"name": SCHEMA_NAME, "strict": True, "schema": schema}
