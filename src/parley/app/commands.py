"""Creates the runner of sandboxed commands."""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.ports.commands import Starter
from parley.sandbox import Sandboxed

__all__ = ["sandboxed_commands"]

log = logging.getLogger(__name__)


def sandboxed_commands(
    home: Callable[[], str | None], *, warns: bool = False, max_commands: Callable[[], int] = lambda: 0
) -> Sandboxed:
    """Return the runner of sandboxed commands.

    The runner starts no process before the first command. `home` returns the home directory, in which the self-test
    of the sandbox runs; None if there is no home directory. A failure of the self-test is logged as a warning if
    `warns` is True, and otherwise as a debug message. `max_commands` returns the maximum number of concurrent
    commands; 0 means no limit. `max_commands` is called before the first command.
    """

    def executor() -> Starter:
        from parley.tools.commands.executor import Executor

        return Executor(max_commands=max_commands())

    def preload() -> None:
        from parley.app.preloading import load_all_modules

        load_all_modules()

    return Sandboxed(executor, home=home, warn=log.warning if warns else log.debug, preload=preload)
