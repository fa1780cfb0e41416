"""Starts the notify program after a completed turn, without waiting for the program to end."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Sequence
from typing import BinaryIO, Final

import msgspec

from parley.config.search_path import environ_of_programs
from parley.config.types import Settings
from parley.wire.ids import EventId

__all__ = ["run_notify_program"]

log = logging.getLogger(__name__)

MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""The maximum length, in bytes, of one command-line argument on Linux. A longer payload is passed only on stdin."""


class _Payload(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", tag_field="type", tag="agent-turn-complete"
):
    """The JSON payload that describes a completed turn to the notify program."""

    turn_id: EventId
    input_messages: tuple[str, ...]
    last_assistant_message: str | None


def run_notify_program(settings: Settings, event_id: EventId, inputs: Sequence[str], last_text: str | None) -> None:
    """Start the configured notify program with the payload on stdin, without waiting for the program to end. If the
    program cannot be started, log the failure.

    The payload describes the turn with the id `event_id`: `inputs` contains the text of each message from the user,
    and `last_text` is the model's last message, or None if there is none.
    """
    payload = msgspec.json.encode(
        _Payload(turn_id=event_id, input_messages=tuple(inputs), last_assistant_message=last_text)
    )
    argv = list(settings.notify)
    if "/" in argv[0]:
        argv[0] = os.path.join(settings.home, argv[0])
    if settings.notify_argument and len(payload) <= MAX_ARGUMENT_BYTES:
        argv.append(payload.decode())
    hidden = settings.key_variables
    try:
        with _file_with(payload) as stdin:
            process = subprocess.Popen(
                argv,
                # The program does not run in the project, because programs may load modules from their working
                # directory, and commands can write to the project.
                cwd="/",
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the program may outlive the server
                env={
                    name: value
                    for name, value in environ_of_programs(settings).items()
                    if name not in hidden and not _looks_secret(name)
                },
            )
    except (OSError, ValueError) as error:
        log.warning("notify program %r could not be run: %s", argv[0], error)
    else:
        # wait for the program, so that it does not remain a zombie
        threading.Thread(target=process.wait, name="notify", daemon=True).start()


def _file_with(payload: bytes) -> BinaryIO:
    """Return an unnamed file that contains the payload. With a pipe, the server might have to wait until the
    program reads the payload. The program can ignore the file, or read the file after the server has exited.
    """
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("notify", os.MFD_CLOEXEC), "w+b")
    else:
        import tempfile  # imported here: Linux does not need this module

        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(payload)
    file.seek(0)
    return file


def _looks_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN"))
