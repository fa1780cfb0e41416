"""The log of a server in the background: `parley.app.background`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.app.background import KEPT_LOG_BYTES, MAX_LOG_BYTES, shorten_log

LINE = b"%d: a line of the log\n"


@pytest.mark.parametrize("extra", [0, 1])
def test_a_log_that_is_too_long_keeps_its_newest_lines(tmp_path: Path, extra: int) -> None:
    log = tmp_path / "serve.log"
    lines = b"".join(LINE % number for number in range(MAX_LOG_BYTES // len(LINE)))
    log.write_bytes(lines[-MAX_LOG_BYTES:].rjust(MAX_LOG_BYTES + extra, b" "))
    stderr = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        shorten_log(str(tmp_path), stderr)
        os.write(stderr, b"the next line\n")
    finally:
        os.close(stderr)
    found = log.read_bytes()

    assert found.endswith(lines[-1000:] + b"the next line\n")
    assert (len(found) <= KEPT_LOG_BYTES + 100) == bool(extra)
    assert found.splitlines()[1].endswith(b": a line of the log")


def test_the_log_of_another_process_stays_as_it_is(tmp_path: Path) -> None:
    log, own = tmp_path / "serve.log", tmp_path / "own"
    for file in (log, own):
        file.write_bytes(b" " * (MAX_LOG_BYTES + 1))
    stderr = os.open(own, os.O_WRONLY)
    try:
        shorten_log(str(tmp_path), stderr)
    finally:
        os.close(stderr)

    assert [file.stat().st_size for file in (log, own)] == [MAX_LOG_BYTES + 1] * 2
