"""Creates the runner of sandboxed commands."""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.ports.commands import Starter
from parley.sandbox import Sandboxed

__all__ = ["sandboxed_commands"]

log = logging.getLogger(__name__)


def sandboxed_commands(home: Callable[[], str | None], *, warns: bool = False) -> Sandboxed:
    """Return the runner. It starts nothing before the first command. The self-test of the sandbox runs in the home,
    and its failures are logged."""

    def executor() -> Starter:
        from parley.tools.commands.executor import Executor

        return Executor()

    def preload() -> None:
        from parley.app.preloading import load_all_modules

        load_all_modules()

    return Sandboxed(executor, home=home, warn=log.warning if warns else log.debug, preload=preload)
