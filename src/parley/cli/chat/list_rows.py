"""The content of a list on the whole screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["ListSource", "Picked", "Row", "Rows"]


class Row(NamedTuple):
    """A row of a list."""

    key: str
    text: str
    """The text of the row, which has one line."""
    is_marked: bool = False
    """True to show the row in bold."""


class Rows(NamedTuple):
    """A page of rows."""

    rows: Sequence[Row]
    cursor: str | None = None
    """The value with which the source returns the next page; None if there are no more rows."""


class Picked(NamedTuple):
    """The choice of the user."""

    row: Row
    action: str
    """The key that closed the list, such as `enter`."""


class ListSource(Protocol):
    """The content of a list."""

    async def rows(self, text: str, cursor: str | None) -> Rows:
        """Return a page of the rows that match the text of the search line.

        Raises:
            ClientError: the server did not return the rows. The list shows the error.
        """

    async def preview(self, row: Row) -> str:
        """Return a text about a row.

        Raises:
            ClientError: the server did not return the text. The list shows the error.
        """
