"""`parley` without a command: opens the chat, after the set-up if nothing is configured."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.runner import run_command

__all__ = ["DEFAULTS", "DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = "Open the chat, after the set-up if nothing is configured."

DEFAULTS: Final = argparse.Namespace()
"""The parsed arguments. They are empty, because this command has no options."""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from parley.cli import chat_command  # imported here: commands are imported when they run
    from parley.cli.config_init import is_configured, run_setup

    if not is_configured() and (code := run_setup()) != 0:
        return code
    return run_command("chat", chat_command, ())
