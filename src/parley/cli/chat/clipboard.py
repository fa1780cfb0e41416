"""Copies text to the clipboard of the terminal, also over ssh."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from typing import Final

from parley.cli.runner import CommandFailed

__all__ = ["copy_to_clipboard"]

MAX_BYTES: Final = 74_994
"""The maximum size, in bytes, of text to copy. Many terminals accept at most 100,000 characters of base64."""

TMUX_SECONDS: Final = 5.0


async def copy_to_clipboard(text: str) -> str:
    """Copy text to the clipboard, and return a note for the user.

    The function sends the sequence OSC 52 to the terminal. By default, tmux ignores this sequence. In tmux, the
    function therefore runs `tmux load-buffer` instead.

    Raises:
        CommandFailed: the text is longer than `MAX_BYTES`.
    """
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        raise CommandFailed(f"the answer has {len(data):,} bytes, too many for a terminal; /export writes a file")
    if os.environ.get("TMUX") and await _to_tmux(data):
        return f"copied {len(text):,} characters to tmux, and to the clipboard if tmux allows it"
    from prompt_toolkit.application import get_app_or_none, get_app_session  # imported here for a fast start

    app = get_app_or_none()
    output = get_app_session().output if app is None else app.output
    output.write_raw(f"\x1b]52;c;{b64encode(data).decode()}\x07")
    output.flush()
    return f"copied {len(text):,} characters, if the terminal allows it (OSC 52)"


async def _to_tmux(data: bytes) -> bool:
    """Copy text, encoded as UTF-8, with `tmux load-buffer`. Return whether tmux has accepted the text."""
    try:
        process = await asyncio.create_subprocess_exec(
            "tmux",
            "load-buffer",
            "-w",
            "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(TMUX_SECONDS):
            await process.communicate(data)
    except TimeoutError:
        process.kill()
        await process.wait()
    return process.returncode == 0
