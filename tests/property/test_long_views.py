"""The long version of `test_views.py`: far more interleavings, and longer ones."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from property.test_views import AnyInterleaving

EXAMPLES: Final = 10_000
STEPS: Final = 60


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_reader_ends_with_the_view_of_one_that_was_always_there_ten_thousand_times() -> None:
    seen: Counter[str] = Counter()

    class Counted(AnyInterleaving):
        def teardown(self) -> None:
            super().teardown()
            seen.update(interleavings=1, entries=len(self.log.entries), readers=len(self.present))

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    print(", ".join(f"{number} {what}" for what, number in seen.items()))
    assert seen["interleavings"] >= EXAMPLES
