"""The long version of `test_hostile_lines.py`: a hundred thousand lines, with different lines in each round."""

from __future__ import annotations

from typing import Final

import pytest

from property import test_hostile_lines

ROUNDS: Final = 80
"""The number of rounds.

Each round has its own server, whose conversation and open requests grow with every line.
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_line_of_a_hundred_thousand_kills_a_server_or_makes_it_silent() -> None:
    for _ in range(ROUNDS):
        test_hostile_lines.test_no_line_kills_the_server_or_makes_it_silent()
    lines = ROUNDS * test_hostile_lines.BATCHES * test_hostile_lines.LINES_A_BATCH
    print(f"{lines} lines to {ROUNDS} servers")
    assert lines == 100_000
