"""The official client library, loaded when the first tool server is needed.

It is the heaviest import of all, so a thread does it: nobody waits but who needs a tool server.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from parley.common.threads import start_thread

__all__ = ["load", "loaded"]

POLITE_SECONDS: Final = 0.0005
"""How long loading may keep everybody else from running, at a time."""

_loading: Future[None] | None = None


async def load() -> None:
    """Return when `parley.tools.servers.session`, which speaks through the library, can be imported at once.

    Raises:
        ImportError: the library is not installed.
    """
    global _loading
    if _loading is None or (_loading.done() and _loading.exception() is not None):
        loading = Future[None]()
        loading.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel it
        start_thread(_import, loading, name="import-mcp")
        _loading = loading
    await asyncio.wrap_future(_loading)


async def loaded() -> None:
    """Return when it is known whether that is so."""
    with suppress(ImportError):
        await load()


def _import(loading: Future[None]) -> None:
    before = sys.getswitchinterval()
    if before > POLITE_SECONDS:
        sys.setswitchinterval(POLITE_SECONDS)
    try:
        from parley.tools.servers.session import warm_up

        warm_up()
    except BaseException as error:
        loading.set_exception(error)
    else:
        loading.set_result(None)
    finally:
        if before > POLITE_SECONDS:
            sys.setswitchinterval(before)
