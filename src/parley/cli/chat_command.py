"""`parley chat`: an interactive conversation on a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from parley.cli.printing import uses_colour
from parley.cli.runner import USAGE_ERROR, CommandFailed
from parley.cli.server_address import server_address
from parley.cli.turn_options import add_turn_options, check_turn_options, image_items
from parley.common.home import named_home
from parley.config.working_directory import working_directory

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Talk with the agent on a terminal. The messages, commands and changes of the agent
appear above the input, and stay in the scrollback of the terminal. The turns run in
the resident server of the home, which is started if none runs, or in the server at
--url. They continue when the chat ends, and `parley chat --resume ID` returns to
them.

Enter sends the message, which joins a running turn. Tab queues it for the end of the
turn. Alt-Enter begins a new line. Esc interrupts the turn. Ctrl-C clears the input,
and ends the chat when it is pressed twice; Ctrl-D ends the chat. Ctrl-O shows
reasoning and output that are folded. One key answers an approval request: `a` allows
the action once, `s` allows it for the session, `d` denies it with a reason, and `x`
denies it and interrupts the turn. Lines that begin with `/` are commands, which /help
lists.

exit code: 0 when the user ends the chat, 2 for wrong arguments or settings or without
a terminal, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the first message")
    add_turn_options(parser, picks=True)


async def run(args: argparse.Namespace) -> int:
    address = server_address(args)
    check_turn_options(args, address)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("needs a terminal; without one, use `parley exec PROMPT`", code=USAGE_ERROR)
    images = image_items(args.image)

    # Other commands start without these modules, which import prompt_toolkit.
    from parley.cli.chat.chat import Chat
    from parley.cli.chat.history import FILE, InputHistory
    from parley.cli.chat.plain import PlainTerminal
    from parley.cli.chat.screen import Screen, width_of

    home = named_home(os.environ, working_directory())
    history = InputHistory(None if home is None else os.path.join(home.path, FILE))
    colour = uses_colour(sys.stdout)
    chat = Chat(args, address, images, colour=colour, width_of=width_of)
    if os.environ.get("TERM") == "dumb":
        return await chat.run(PlainTerminal(chat))
    return await chat.run(Screen(chat, history=history, colour=colour))
