"""`python -m parley.testing`: a scripted model for trying an integration.

Prints the base URL of the model as one line, and serves until the process is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Final

from parley.testing.dialects import DIALECTS
from parley.testing.model import ScriptedModel
from parley.testing.replies import Bulk, Says

__all__: list[str] = []

LAST_PORT: Final = 65535


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to {LAST_PORT}, got {text!r}")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m parley.testing", description="Serve a model with scripted replies."
    )
    parser.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1 (default: a free port)")
    parser.add_argument("--text", help="text of each reply (default: Done)")
    parser.add_argument("--deltas", type=int, help="repeat the text N times, as fast as the client reads it")
    parser.add_argument(
        "--dialect", choices=DIALECTS, default="openai", help="provider of Chat Completions to imitate"
    )
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when stdin is closed")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if arguments.until_stdin_closes:
        # No input is expected, so a readable stdin has ended.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    async with ScriptedModel(port=arguments.port, dialect=arguments.dialect) as model:
        if arguments.deltas is not None:
            text = {} if arguments.text is None else {"text": arguments.text}
            model.default = Bulk(deltas=arguments.deltas, **text)
        elif arguments.text is not None:
            model.default = Says((arguments.text,))
        sys.stdout.write(f"{model.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


if __name__ == "__main__":
    given = _arguments()
    try:
        asyncio.run(_serve(given))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.exit(f"python -m parley.testing: cannot listen on 127.0.0.1:{given.port}: {reason}")
