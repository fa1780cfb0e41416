"""Replaces standard streams that were closed when the process started, as by `parley exec hi >&-`."""

from __future__ import annotations

import os
import sys

__all__ = ["open_closed_streams"]


def open_closed_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr. Also set the stream in `sys`, which is None for
    a closed descriptor.

    If a descriptor stayed closed, the next file or pipe that is opened would get its number, and a child process
    would write its output to this file or pipe.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
