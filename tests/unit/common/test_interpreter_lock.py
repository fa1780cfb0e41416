"""The switch interval of the interpreter during imports (`parley.common.interpreter_lock`)."""

from __future__ import annotations

import sys

import pytest

from parley.common.interpreter_lock import SWITCH_SECONDS, short_switch_interval


def test_imports_that_overlap_in_two_threads_restore_the_switch_interval() -> None:
    before = sys.getswitchinterval()
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    during = sys.getswitchinterval()
    second.__exit__(None, None, None)

    assert during == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == before
