"""Counters, gauges and histograms, and the function that renders them as text for Prometheus.

The text format is version 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

__all__ = ["MAX_LABEL", "MAX_SERIES", "Counter", "Gauge", "Histogram", "Labels", "Metric", "render"]

MAX_SERIES: Final = 200
"""The maximum number of label sets of one metric. When a metric has this number of label sets, new label sets are
counted together under `other`. The limit exists because clients can influence some labels.
"""
OTHER: Final = "other"
MAX_LABEL: Final = 200
"""The maximum length of the value of a label, in characters. Longer values, such as model names, are truncated."""

Labels = tuple[str, ...]
"""The label values of one series, in the order of the metric's label names."""


class Metric:
    """A metric with its name, its help text and the names of its labels."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, tuple(labels)

    def _bounded(self, series: Mapping[Labels, object], labels: Labels) -> Labels:
        """Return the labels under which a value is recorded: `labels`, or `other` in place of each label if there
        are too many series.
        """
        labels = tuple(value if len(value) <= MAX_LABEL else f"{value[:MAX_LABEL]}..." for value in labels)
        return labels if labels in series or len(series) < MAX_SERIES else (OTHER,) * len(labels)


class Counter(Metric):
    """A counter. For each label set, it holds a number that never decreases."""

    kind: Literal["counter", "gauge", "histogram"] = "counter"

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, about, labels)
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Increase the count for the label set `labels` by `by`."""
        labels = self._bounded(self.values, labels)
        self.values[labels] = self.values.get(labels, 0.0) + by


class Histogram(Metric):
    """The distribution of durations in seconds for each label set."""

    kind: Literal["counter", "gauge", "histogram"] = "histogram"

    def __init__(self, name: str, about: str, labels: Sequence[str] = (), *, bounds: Sequence[float]) -> None:
        """Create an empty histogram. `bounds` are the upper bounds of the buckets in seconds, in ascending order,
        without infinity.
        """
        super().__init__(name, about, labels)
        self.bounds = tuple(bounds)
        self.counts: dict[Labels, list[int]] = {}
        """Maps each label set to the number of durations in each bucket. The last bucket contains the durations
        that exceed all bounds.
        """
        self.sums: dict[Labels, float] = {}
        self.recorded: Callable[[float, Labels], None] | None = None
        """A callback that is called with each duration and its labels; None if there is no callback."""
        if not labels:
            self.counts[()], self.sums[()] = [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float, *labels: str) -> None:
        """Add a duration to the distribution of the label set `labels`."""
        labels = self._bounded(self.counts, labels)
        if labels not in self.counts:
            self.counts[labels], self.sums[labels] = [0] * (len(self.bounds) + 1), 0.0
        self.counts[labels][bisect_left(self.bounds, seconds)] += 1
        self.sums[labels] += seconds
        if self.recorded is not None:
            self.recorded(seconds, labels)


class Gauge(Metric):
    """A gauge. The function `read` computes its value for each label set when the metrics are rendered."""

    kind: Literal["counter", "gauge", "histogram"] = "gauge"

    def __init__(
        self, name: str, about: str, read: Callable[[], Mapping[Labels, float]], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, about, labels)
        self.read = read


def render(metrics: Iterable[Counter | Histogram | Gauge]) -> str:
    """Return the metrics in the text format of Prometheus."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Counter | Histogram | Gauge) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.about, quotes=False)}\n# TYPE {metric.name} {metric.kind}\n"
    if isinstance(metric, Histogram):
        for labels, counts in sorted(metric.counts.items()):
            total = 0
            for bound, count in zip((*metric.bounds, math.inf), counts, strict=True):
                total += count
                named = _named((*metric.labels, "le"), (*labels, _number(bound)))
                yield f"{metric.name}_bucket{named} {total}\n"
            named = _named(metric.labels, labels)
            yield f"{metric.name}_sum{named} {_number(metric.sums[labels])}\n{metric.name}_count{named} {total}\n"
        return
    values = metric.values if isinstance(metric, Counter) else metric.read()
    for labels, value in sorted(values.items()):
        yield f"{metric.name}{_named(metric.labels, labels)} {_number(value)}\n"


def _named(names: Sequence[str], values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"").encode(errors="replace").decode() if quotes else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
