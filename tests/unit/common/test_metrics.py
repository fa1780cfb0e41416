"""Counters, gauges and histograms, and their text (`parley.common.metrics`)."""

from __future__ import annotations

from parley.common.metrics import MAX_LABEL, MAX_SERIES, Counter, Gauge, Histogram, render

EXPECTED = r"""# HELP calls_total Calls, by tool.
# TYPE calls_total counter
calls_total{tool="a\"b\\c\nd"} 2.5
# HELP empty_total Nothing.
# TYPE empty_total counter
empty_total 0
# HELP seconds Durations.
# TYPE seconds histogram
seconds_bucket{le="0.1"} 2
seconds_bucket{le="1"} 2
seconds_bucket{le="+Inf"} 3
seconds_sum 7.15
seconds_count 3
# HELP size Size.
# TYPE size gauge
size 3
"""


def test_the_text_follows_the_format_of_prometheus() -> None:
    calls = Counter("calls_total", "Calls, by tool.", ("tool",))
    calls.add('a"b\\c\nd', by=2.5)
    seconds = Histogram("seconds", "Durations.", bounds=(0.1, 1.0))
    for one in (0.05, 0.1, 7.0):
        seconds.observe(one)

    text = render((calls, Counter("empty_total", "Nothing."), seconds, Gauge("size", "Size.", lambda: {(): 3})))

    assert text == EXPECTED


def test_the_number_of_series_is_limited() -> None:
    tools, times = (
        Counter("tools_total", "Tools.", ("tool",)),
        Histogram("times", "Times.", ("tool",), bounds=(1.0,)),
    )
    for number in range(MAX_SERIES * 2):
        tools.add(f"tool-{number}")
        times.observe(0.5, f"tool-{number}")
    tools.add("tool-0")

    assert len(tools.values) == len(times.counts) == MAX_SERIES + 1
    assert (tools.values["other",], tools.values["tool-0",]) == (MAX_SERIES, 2)


def test_the_values_of_labels_are_cut() -> None:
    tools = Counter("tools_total", "Tools.", ("tool",))
    tools.add("t" * 100_000)
    tools.add("t" * MAX_LABEL)

    assert set(tools.values) == {("t" * MAX_LABEL + "...",), ("t" * MAX_LABEL,)}
