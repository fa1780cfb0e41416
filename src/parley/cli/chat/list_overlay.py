"""A full-screen list with a search line and a preview. Importing this module imports prompt_toolkit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, VSplit, Window
from prompt_toolkit.layout.controls import UIContent, UIControl
from prompt_toolkit.utils import get_cwidth

from parley.cli.chat.context import ChatContext
from parley.cli.chat.list_rows import ListSource, Picked, Row, Rows
from parley.cli.chat.live import wrapped
from parley.client import ClientError
from parley.wire.text import visible

__all__ = ["ListOverlay"]

SEARCH_DELAY_SECONDS: Final = 0.15
"""The number of seconds without a change of the search line after which a search begins."""

PREVIEW_DELAY_SECONDS: Final = 0.1

PREVIEW_LINES: Final = 7
MIN_HEIGHT: Final = 16
"""The minimum height of the terminal, in lines, at which a preview is shown."""

AHEAD: Final = 20
"""The number of rows after the selected one that are loaded in advance."""


class ListOverlay:
    """A full-screen list from which the user chooses one row."""

    def __init__(
        self,
        title: str,
        source: ListSource,
        *,
        actions: Mapping[str, str],
        has_preview: bool = False,
        selected: str | None = None,
        empty: str = "nothing found",
    ) -> None:
        """Create a list with the rows of `source`.

        `actions` maps each keyboard key that chooses a row to its description. If `has_preview` is True, a preview
        of the selected row is shown. `selected` is the `Row.key` of the row that is selected first. `empty` is the
        text that is shown if no row matches.
        """
        self._title, self._source, self._actions = title, source, actions
        self._has_preview, self._wanted, self._empty = has_preview, selected, empty
        self._rows: list[Row] = []
        self._cursor: str | None = None
        self._selected = self._top = 0
        self._height = 1
        self._message = "loading"
        self._previews: dict[str, str] = {}
        self._loading: asyncio.Task[None] | None = None
        self._previewing: asyncio.Task[None] | None = None
        self._invalidate: Callable[[], None] = lambda: None
        self._search = Buffer(multiline=False, on_text_changed=lambda _: self._begin_search(SEARCH_DELAY_SECONDS))

    async def show(self, context: ChatContext) -> Picked | None:
        """Show the list, and return the row that the user chose; None if the user chose no row."""
        self._begin_search(0)
        control = BufferControl(self._search)
        try:
            picked: Picked | None = await context.overlay(
                self._container(control), focus=control, key_bindings=self._key_bindings()
            )
        finally:
            for task in (self._loading, self._previewing):
                if task is not None:
                    task.cancel()
        return picked

    # --- keys ------------------------------------------------------------------------------

    def _key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        moves = {
            ("up", "c-p"): lambda: -1,
            ("down", "c-n"): lambda: 1,
            ("pageup",): lambda: -self._height,
            ("pagedown",): lambda: self._height,
            ("c-home",): lambda: -len(self._rows),
            ("c-end",): lambda: len(self._rows),
        }
        for names, distance in moves.items():
            for name in names:
                keys.add(name)(lambda event, distance=distance: self._move(distance()))
        for name in self._actions:
            keys.add(name)(lambda event, name=name: self._pick(event, name))

        @keys.add("escape", eager=True)
        @keys.add("c-c")
        def _cancel(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        return keys

    def _pick(self, event: KeyPressEvent, action: str) -> None:
        if self._rows:
            event.app.exit(result=Picked(self._rows[self._selected], action))

    def _move(self, distance: int) -> None:
        if not self._rows:
            return
        self._selected = max(0, min(self._selected + distance, len(self._rows) - 1))
        if self._cursor is not None and self._selected + AHEAD >= len(self._rows):
            self._begin(self._load_more())
        self._begin_preview()

    # --- content ---------------------------------------------------------------------------

    def _begin_search(self, delay_seconds: float) -> None:
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        self._begin(self._load_first(self._search.text, delay_seconds))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which loads rows, in a new task. If rows are already being loaded, discard `work`."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(work)
        else:
            work.close()

    async def _load_first(self, text: str, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        self._message = "searching" if text else "loading"
        self._invalidate()
        found = await self._page(text, None)
        self._rows, self._cursor = list(found.rows), found.cursor
        places = [place for place, row in enumerate(self._rows) if row.key == self._wanted]
        self._selected, self._top = (places[0] if places and not text else 0), 0
        self._begin_preview()
        self._invalidate()

    async def _load_more(self) -> None:
        found = await self._page(self._search.text, self._cursor)
        self._rows += found.rows
        self._cursor = found.cursor
        self._invalidate()

    async def _page(self, text: str, cursor: str | None) -> Rows:
        """Return the page after `cursor` of the rows that match `text`. Skip empty pages. The returned page is
        empty only if there are no more rows or if the source fails.
        """
        try:
            found = await self._source.rows(text.strip(), cursor)
            while not found.rows and found.cursor is not None:
                found = await self._source.rows(text.strip(), found.cursor)
        except ClientError as error:
            self._message = str(error)
            return Rows(())
        self._message = ""
        return found

    def _begin_preview(self) -> None:
        if self._previewing is not None:
            self._previewing.cancel()
            self._previewing = None
        if self._has_preview and self._rows and self._rows[self._selected].key not in self._previews:
            self._previewing = asyncio.create_task(self._load_preview(self._rows[self._selected]))

    async def _load_preview(self, row: Row) -> None:
        await asyncio.sleep(PREVIEW_DELAY_SECONDS)
        try:
            self._previews[row.key] = await self._source.preview(row)
        except ClientError as error:
            self._previews[row.key] = str(error)
        self._invalidate()

    # --- appearance ------------------------------------------------------------------------

    def _container(self, search: BufferControl) -> HSplit:
        parts = [
            Window(FormattedTextControl(self._head), height=1),
            VSplit([Window(FormattedTextControl("Search: "), width=8), Window(search)], height=1),
            Window(_RowsControl(self), always_hide_cursor=True),
        ]
        if self._has_preview and get_app().output.get_size().rows >= MIN_HEIGHT:
            parts.append(Window(char="─", height=1, style="class:dim"))
            parts.append(Window(FormattedTextControl(self._preview), height=PREVIEW_LINES, wrap_lines=True))
        parts.append(Window(FormattedTextControl(self._footer), height=1))
        return HSplit(parts)

    def _head(self) -> StyleAndTextTuples:
        count = f"{len(self._rows)}{'' if self._cursor is None else '+'}" if self._rows else ""
        return [("bold", visible(self._title)), ("", f"  {count}")]

    def _footer(self) -> StyleAndTextTuples:
        keys = ", ".join(f"{_KEY_NAMES.get(name, name)}: {what}" for name, what in self._actions.items())
        text = self._message or f"{keys}, Esc: close"
        return [("reverse", f" {visible(text)} ")]

    def _preview(self) -> str:
        if not self._rows:
            return ""
        text = self._previews.get(self._rows[self._selected].key, "")
        width = get_app().output.get_size().columns
        lines = [visible(line) for line in text.splitlines()[:PREVIEW_LINES]]
        rows = [row.strip() for line in lines for row in wrapped(line, width, get_cwidth)]
        return "\n".join(rows[:PREVIEW_LINES])

    def visible_rows(self, height: int) -> list[tuple[str, str]]:
        """Scroll to the selected row, and return the rows that fit into `height` lines, each with its style."""
        app = get_app()
        self._invalidate = app.invalidate
        self._height = max(1, height)
        if not self._rows:
            return [("", "" if self._message else f"  {self._empty}")]
        self._top = max(self._selected - self._height + 1, min(self._top, self._selected))
        shown: list[tuple[str, str]] = []
        for place, row in enumerate(self._rows[self._top : self._top + self._height], self._top):
            is_selected = place == self._selected
            style = " ".join(["reverse"] * is_selected + ["bold"] * row.is_marked)
            shown.append((style, f"{'>' if is_selected else ' '} {visible(row.text)}"))
        return shown


_KEY_NAMES: Final = {"enter": "Enter", "tab": "Tab", "c-f": "Ctrl-F", "c-t": "Ctrl-T"}


class _RowsControl(UIControl):
    """Draws only the rows that fit on the screen, so that a long list is drawn as fast as a short one."""

    def __init__(self, overlay: ListOverlay) -> None:
        self._overlay = overlay

    def create_content(self, width: int, height: int) -> UIContent:
        rows = self._overlay.visible_rows(height)
        return UIContent(get_line=lambda number: [rows[number]], line_count=len(rows), show_cursor=False)
