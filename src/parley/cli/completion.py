"""`parley completion`: prints the completion script for a shell."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from parley.cli.runner import UsageError

if TYPE_CHECKING:
    import argparse

__all__ = ["DESCRIPTION", "SHELLS", "configure", "run"]

DESCRIPTION: Final = """\
Print a script with which bash, zsh or fish completes commands, options, values, the
keys of settings, and the ids of conversations and of open approvals.

Install it once, and again after an update of Parley:

  bash  mkdir -p ~/.local/share/bash-completion/completions
        parley completion bash > ~/.local/share/bash-completion/completions/parley
        (needs the package bash-completion; without it, add this line to ~/.bashrc:
        eval "$(parley completion bash)")
  zsh   add this line to ~/.zshrc, after compinit:
        eval "$(parley completion zsh)"
  fish  parley completion fish > ~/.config/fish/completions/parley.fish

Ids come from the database in the home. Completing them starts no server.

exit code: 0 on success, 2 for wrong arguments."""

SHELLS: Final = ("bash", "zsh", "fish")
IDS: Final = ("conversations", "approvals")
"""Additional values of the operand SHELL. With these values, the completion scripts request ids instead of a
script. The help does not list them.
"""

_ID: Final = re.compile(r"[0-9A-Za-z_.-]+")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    if args.shell in IDS:
        return _print_ids(args.shell)
    if args.shell not in SHELLS:
        raise UsageError(f"unknown shell {args.shell!r} (choose from {', '.join(SHELLS)})")
    from parley.cli.completion_scripts import completion_script

    sys.stdout.write(completion_script(args.shell))
    return 0


def _print_ids(kind: str) -> int:
    """Print each id of the given kind and its title, separated by a tab, and return the exit code. Control
    characters in a title are escaped, because the title may come from a model.
    """
    from parley.app.completion_ids import completion_ids
    from parley.wire.text import visible

    try:
        directory = os.getcwd()
    except OSError:
        directory = "/"
    for one, title in completion_ids(kind, os.environ, directory):
        if _ID.fullmatch(one):
            print(f"{one}\t{visible(title)[:60]}")
    return 0
