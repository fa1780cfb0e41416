"""The notify program: run when a turn is done, and not waited for."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from parley.conversation.records import TurnEnded
from parley.wire.ids import EventId

__all__ = ["run_notify_program"]

log = logging.getLogger(__name__)

_running: Final[set[asyncio.Task[None]]] = set()
"""The loop holds tasks weakly; these hold them until the program ended."""


class _TurnComplete(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", tag_field="type"):
    turn_id: EventId
    input_messages: tuple[str, ...]
    last_assistant_message: str | None


class _Argument(_TurnComplete, frozen=True, kw_only=True, tag="agent-turn-complete"):
    """What the program is given as its last argument, as JSON."""


def run_notify_program(program: Sequence[str], event_id: EventId, inputs: Sequence[str], ended: TurnEnded) -> None:
    """Start the program. That it cannot be started is logged; the turn is over anyway."""
    argument = _Argument(turn_id=event_id, input_messages=tuple(inputs), last_assistant_message=ended.message)
    task = asyncio.create_task(_run((*program, msgspec.json.encode(argument).decode())))
    _running.add(task)
    task.add_done_callback(_running.discard)


def _looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN"))


async def _run(argv: tuple[str, ...]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not _looks_secret(name)},
        )
        await process.wait()
    except (OSError, ValueError) as error:
        log.warning("notify program %r could not be run: %s", argv[0], error)
