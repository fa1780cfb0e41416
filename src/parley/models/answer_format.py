"""Encodes the output schema in the form that both Chat Completions and the Responses API accept."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["named_schema"]

SCHEMA_NAME: Final = "answer"
"""The name of the schema. These APIs require a name, and show it to the model."""


def named_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the member of a request that contains a schema and its name. The member asks the provider to follow
    the schema exactly.
    """
    return {"name": SCHEMA_NAME, "strict": True, "schema": schema}
