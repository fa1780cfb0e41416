"""What runs commands and keeps them within bounds."""

from __future__ import annotations

from parley.ports.commands import Starter
from parley.sandbox import Sandboxed

__all__ = ["sandboxed_commands"]


def sandboxed_commands() -> Sandboxed:
    """Nothing is started before the first command is."""

    def executor() -> Starter:
        from parley.tools.commands.executor import Executor

        return Executor()

    return Sandboxed(executor)
