"""The interface between a full-screen list (`list_overlay.py`) and the source of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["ListSource", "Picked", "Row", "Rows"]


class Row(NamedTuple):
    """A row of a `ListOverlay`."""

    key: str
    """The id of the row, which is unique in the list, such as a conversation id."""
    text: str
    """The text of the row, on one line."""
    is_marked: bool = False
    """True to show the row in bold."""


class Rows(NamedTuple):
    """A page of rows of a `ListOverlay`."""

    rows: Sequence[Row]
    cursor: str | None = None
    """The cursor to pass to `ListSource.rows` for the next page; None if there are no more rows."""


class Picked(NamedTuple):
    """The row that the user chose."""

    row: Row
    action: str
    """The keyboard key with which the user chose the row, such as `enter`."""


class ListSource(Protocol):
    """Provides the rows of a list, and a preview of each row."""

    async def rows(self, text: str, cursor: str | None) -> Rows:
        """Return a page of the rows that match `text`, the text of the search line. `cursor` is the cursor of the
        previous page; None for the first page.

        Raises:
            ClientError: the server did not return the rows. The list shows the error.
        """

    async def preview(self, row: Row) -> str:
        """Return the text that the list shows as the preview of a row.

        Raises:
            ClientError: the server did not return the text. The list shows the error.
        """
