"""The notify program: run when a turn is done, and not waited for."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Sequence

import msgspec

from parley.wire.ids import EventId

__all__ = ["run_notify_program"]

log = logging.getLogger(__name__)


class _Argument(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", tag_field="type", tag="agent-turn-complete"
):
    """What the program is given as its last argument, as JSON."""

    turn_id: EventId
    input_messages: tuple[str, ...]
    last_assistant_message: str | None


def run_notify_program(
    program: Sequence[str], event_id: EventId, inputs: Sequence[str], last_text: str | None
) -> None:
    """Start the program. That it cannot be started is logged; the turn is over anyway."""
    argument = _Argument(turn_id=event_id, input_messages=tuple(inputs), last_assistant_message=last_text)
    argv = (*program, msgspec.json.encode(argument).decode())
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it may outlive us
            env={name: value for name, value in os.environ.items() if not _looks_secret(name)},
        )
    except (OSError, ValueError) as error:
        log.warning("notify program %r could not be run: %s", argv[0], error)
    else:
        threading.Thread(target=process.wait, name="notify", daemon=True).start()  # leaves no zombie


def _looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN"))
