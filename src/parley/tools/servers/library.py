"""Imports the MCP client library when the first tool server is needed.

It is the slowest import of all, so a thread does it: only users of tool servers wait.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from parley.common.threads import start_thread

__all__ = ["load", "loaded"]

SWITCH_SECONDS: Final = 0.0005
"""The interpreter's switch interval during the import. The event loop never waits longer than this at a time."""

_loading: Future[None] | None = None


async def load() -> None:
    """Wait until `parley.tools.servers.session`, which imports the library, can be imported without delay.

    Raises:
        ImportError: the library is not installed.
    """
    global _loading
    if _loading is None or (_loading.done() and _loading.exception() is not None):
        loading = Future[None]()
        loading.set_running_or_notify_cancel()  # so that a cancelled caller does not cancel it
        start_thread(_import, loading, name="import-mcp")
        _loading = loading
    await asyncio.wrap_future(_loading)


async def loaded() -> None:
    """Wait until the import has succeeded or failed."""
    with suppress(ImportError):
        await load()


def _import(loading: Future[None]) -> None:
    before = sys.getswitchinterval()
    if before > SWITCH_SECONDS:
        sys.setswitchinterval(SWITCH_SECONDS)
    try:
        from parley.tools.servers.session import warm_up

        warm_up()
    except BaseException as error:
        loading.set_exception(error)
    else:
        loading.set_result(None)
    finally:
        if before > SWITCH_SECONDS:
            sys.setswitchinterval(before)
