"""The garbage collector runs rarely, and still collects cycles."""

from __future__ import annotations

import gc
import weakref

from parley.app.garbage_collection import COLLECT_AFTER, collect_rarely


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_a_cycle_is_collected_after_many_new_objects() -> None:
    before = gc.get_threshold()
    gc.disable()
    try:
        collect_rarely()
        collected = weakref.ref(Cycle())
        few: list[list[int]] = [[] for _ in range(COLLECT_AFTER[0] // 2)]
        lives_after_few = collected() is not None
        many: list[list[int]] = [[] for _ in range(COLLECT_AFTER[0])]

        assert (len(few) + len(many), lives_after_few, collected()) == (COLLECT_AFTER[0] * 3 // 2, True, None)
    finally:
        gc.set_threshold(*before)
        gc.enable()
