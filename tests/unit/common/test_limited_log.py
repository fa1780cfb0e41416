"""The log limits the number of lines that another party can cause."""

from __future__ import annotations

import logging

import pytest

from parley.common.limited_log import LimitedLog


def test_there_is_one_counted_line_per_kind_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    time = 1000.0
    log = LimitedLog(logging.getLogger("parley.test"), now=lambda: time)
    for number in range(100):
        log.warning("refused %d", number)
        log.warning("closed")
    time += 61
    log.warning("refused %d", 100)
    time += 61
    log.warning("refused %d", 101)

    assert [record.getMessage() for record in caplog.records] == [
        "refused 0",
        "closed",
        "refused 100 (and 99 more times since the last line of this kind)",
        "refused 101",
    ]
