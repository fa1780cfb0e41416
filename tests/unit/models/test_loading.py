"""The HTTP library is loaded in a thread, which must have ended before the process ends."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Event

import pytest

from parley.models import http


@pytest.mark.parametrize("error", [None, ImportError("there is none")])
async def test_closing_waits_for_the_import_of_the_library(
    monkeypatch: pytest.MonkeyPatch, error: ImportError | None
) -> None:
    go_on = Event()

    def load(library: Future[None]) -> None:
        go_on.wait()
        library.set_exception(error) if error else library.set_result(None)

    monkeypatch.setattr(http, "_import_library", load)
    way_out = http.Http()
    way_out.warm_up()
    closing = asyncio.create_task(way_out.close())
    for _ in range(5):
        await asyncio.sleep(0)
    was_done = closing.done()
    go_on.set()
    await closing

    assert not was_done
