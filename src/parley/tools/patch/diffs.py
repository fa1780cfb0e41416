"""Compares two versions of a file, and returns the hunks of a unified diff in Git's format.

The module compares lines as bytes, and limits the number of steps. `turndiff.py` adds paths and modes.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from parley.tools.patch.deadline import CancelToken

__all__ = ["STEPS", "Effort", "unified_diff"]

STEPS: Final = 3_000_000
"""The maximum number of steps for one diff, which take about a second. An ordinary edit needs far fewer steps."""

STEPS_PER_LINE: Final = 2
"""The number of steps that are counted for splitting and numbering one line."""

LINES_AROUND: Final = 1_000
"""The maximum number of lines by which a change can be moved into the common lines before or after it."""

NO_NEWLINE: Final = b"\n\\ No newline at end of file\n"


class Effort:
    """Counts the remaining steps of a comparison, and stops the comparison when the work is cancelled. A step
    compares one line, or 64 equal lines.
    """

    __slots__ = ("_cancel", "cut", "left")

    def __init__(self, steps: int = STEPS, *, cancel: CancelToken | None = None) -> None:
        self.left = steps
        self._cancel = cancel or CancelToken()
        self.cut = False
        """True if the limit on steps was reached. Some lines are then shown as replaced although both versions
        contain them.
        """

    def check(self) -> None:
        """Check that the work was not cancelled. The number of steps is not checked.

        Raises:
            PatchNotApplied: the work was cancelled.
        """
        self._cancel.check()


def unified_diff(before: bytes, after: bytes, *, context: int, effort: Effort | None = None) -> str:
    """Return the hunks that change `before` into `after`, without file headers. The result is empty if `before` and
    `after` are equal. Each change has up to `context` unchanged lines before and after it.

    The result is the shortest diff, unless the limit of `effort` was reached. In both cases, Git can apply the
    result if both versions are UTF-8. Bytes that are not UTF-8 are replaced in the result.

    Raises:
        PatchNotApplied: the work was cancelled.
    """
    if before == after:
        return ""
    effort = Effort() if effort is None else effort
    effort.check()
    region = _differing(before, after, around=LINES_AROUND + context)
    cost = STEPS_PER_LINE * (_count(region.before) + _count(region.after))
    if cost < effort.left:
        effort.left -= cost
        hunks = list(_compared(region, context=context, effort=effort))
    else:
        effort.cut = True
        hunks = [_replaced(region, context=context)]
    return b"".join(hunks).decode(errors="replace")


# --- lines, and common lines at both ends ------------------------------------------------


class _Region(NamedTuple):
    """The lines that differ, and the common lines before and after them that a diff may need."""

    skipped: int
    """The number of lines before `lead`."""
    lead: bytes
    """The common lines before the lines that differ."""
    before: bytes
    """The lines of the old version that differ."""
    after: bytes
    """The lines of the new version that differ."""
    tail: bytes
    """The common lines after the lines that differ."""


def _differing(before: bytes, after: bytes, *, around: int) -> _Region:
    shorter = min(len(before), len(after))
    start = before.rfind(b"\n", 0, _same_after(before, 0, after, 0, shorter)) + 1

    same = _same_before(before, len(before), after, len(after), shorter - start)
    end = len(before) - same
    new_end = len(after) - same
    if not (_begins_line(before, end, start) and _begins_line(after, new_end, start)):
        skipped = _skip(before, end, lines=1) - end
        end, new_end = end + skipped, new_end + skipped

    lead = start
    for _ in range(around):
        if lead == 0:
            break
        lead = before.rfind(b"\n", 0, lead - 1) + 1
    return _Region(
        skipped=before.count(b"\n", 0, lead),
        lead=before[lead:start],
        before=before[start:end],
        after=after[start:new_end],
        tail=before[end : _skip(before, end, lines=around)],
    )


def _begins_line(text: bytes, at: int, start: int) -> bool:
    """Return whether a line begins at the position `at`. `start` is an earlier position at which a line begins."""
    return at == start or text[at - 1 : at] == b"\n"


def _skip(text: bytes, at: int, *, lines: int) -> int:
    """Return the position after the given number of lines, counted from `at`."""
    for _ in range(lines):
        newline = text.find(b"\n", at)
        if newline < 0:
            return len(text)
        at = newline + 1
    return at


def _count(text: bytes) -> int:
    """Return the number of lines. The last line may lack its newline."""
    return text.count(b"\n") + (text[-1:] not in (b"", b"\n"))


def _split(text: bytes) -> list[bytes]:
    """Return the lines of `text` without their newlines. If `text` does not end with a newline, the last returned
    line ends with a newline, so that it differs from a complete line with the same content.
    """
    lines = text.split(b"\n")
    if last := lines.pop():
        lines.append(last + b"\n")
    return lines


def _same_after(one: bytes, at: int, other: bytes, there: int, limit: int) -> int:
    """Return the number of equal bytes at the start of `one[at:]` and `other[there:]`, but at most `limit`."""
    return _extent(limit, lambda low, high: one[at + low : at + high] == other[there + low : there + high])


def _same_before(one: bytes, at: int, other: bytes, there: int, limit: int) -> int:
    """Return the number of equal bytes at the end of `one[:at]` and `other[:there]`, but at most `limit`."""
    return _extent(limit, lambda low, high: one[at - high : at - low] == other[there - high : there - low])


def _extent(limit: int, same: Callable[[int, int], bool]) -> int:
    """Return the length of the longest common prefix of two sequences, or `limit` if that is less.

    `same` returns whether the sequences are equal from its first offset up to, but not including, its second
    offset. The length is found by an exponential search and then a binary search.
    """
    reached, stride = 0, 64
    ahead = min(stride, limit)
    while reached < ahead and same(reached, ahead):
        stride = min(2 * stride, 1 << 16)
        reached, ahead = ahead, min(ahead + stride, limit)
    while ahead - reached > 1:
        middle = (reached + ahead) // 2
        if same(reached, middle):
            reached = middle
        else:
            ahead = middle
    return reached


# --- hunks -----------------------------------------------------------------------------------


class _Edit(NamedTuple):
    """An edit that replaces the old lines from `at` up to but not including `end` with the new lines from `new_at`
    up to but not including `new_end`. Lines are numbered from 0. Line 0 is the first line of `_Region.lead`.
    """

    at: int
    end: int
    new_at: int
    new_end: int


class _Block(NamedTuple):
    """Adjacent lines of a hunk that have the same sign: a space, `-` or `+`."""

    sign: bytes
    lines: int
    text: bytes


def _replaced(region: _Region, *, context: int) -> bytes:
    hidden = _skip(region.lead, 0, lines=max(_count(region.lead) - context, 0))
    lead, tail = region.lead[hidden:], region.tail[: _skip(region.tail, 0, lines=context)]
    at = region.skipped + _count(region.lead[:hidden])
    blocks = ((b" ", lead), (b"-", region.before), (b"+", region.after), (b" ", tail))
    return _hunk([_Block(sign, _count(text), text) for sign, text in blocks if text], at=at, new_at=at)


def _compared(region: _Region, *, context: int, effort: Effort) -> Iterator[bytes]:
    old, new = region.lead + region.before + region.tail, region.lead + region.after + region.tail
    lines, new_lines = _split(old), _split(new)
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]
    new_offsets = [0, *accumulate(len(line) + 1 for line in new_lines)]

    def block(sign: bytes, start: int, end: int) -> _Block:
        text = new[new_offsets[start] : new_offsets[end]] if sign == b"+" else old[offsets[start] : offsets[end]]
        return _Block(sign, end - start, text)

    for edits in _near_each_other(_edits(lines, new_lines, region, effort), context=context):
        start = max(edits[0].at - context, 0)
        end = min(edits[-1].end + context, len(lines))
        blocks: list[_Block] = []
        shown = start
        for edit in edits:
            blocks.append(block(b" ", shown, edit.at))
            blocks.append(block(b"-", edit.at, edit.end))
            blocks.append(block(b"+", edit.new_at, edit.new_end))
            shown = edit.end
        blocks.append(block(b" ", shown, end))
        new_start = edits[0].new_at - (edits[0].at - start)
        yield _hunk(
            [block for block in blocks if block.lines],
            at=region.skipped + start,
            new_at=region.skipped + new_start,
        )


def _near_each_other(edits: list[_Edit], *, context: int) -> Iterator[list[_Edit]]:
    """Yield groups of edits whose context lines are adjacent or overlap."""
    together = edits[:1]
    for earlier, later in pairwise(edits):
        if later.at - earlier.end > 2 * context:
            yield together
            together = []
        together.append(later)
    yield together


def _hunk(blocks: list[_Block], *, at: int, new_at: int) -> bytes:
    """Return one hunk. `at` is the number of lines before the hunk in the old version, and `new_at` is the number
    of lines before the hunk in the new version.
    """
    lines = sum(block.lines for block in blocks if block.sign != b"+")
    new_lines = sum(block.lines for block in blocks if block.sign != b"-")
    header = b"@@ -%s +%s @@\n" % (_range(at, lines), _range(new_at, new_lines))
    return header + b"".join(_signed(block.sign, block.text) for block in blocks)


def _range(at: int, lines: int) -> bytes:
    if lines == 1:
        return b"%d" % (at + 1)
    return b"%d,%d" % (at + 1 if lines else at, lines)


def _signed(sign: bytes, text: bytes) -> bytes:
    whole = text.endswith(b"\n")
    body = text[:-1] if whole else text
    return sign + body.replace(b"\n", b"\n" + sign) + (b"\n" if whole else NO_NEWLINE)


# --- which lines change ----------------------------------------------------------------------


def _edits(lines: list[bytes], new_lines: list[bytes], region: _Region, effort: Effort) -> list[_Edit]:
    numbers: defaultdict[bytes, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    old = [numbers[line] for line in lines]
    new = [numbers[line] for line in new_lines]

    lead, tail = _count(region.lead), _count(region.tail)
    shared = set(old) & set(new)
    removed, added = _uncommon(old[lead : len(old) - tail], new[lead : len(new) - tail], shared, effort)

    # Lines beyond `LINES_AROUND` can only be context of a moved change.
    hidden, hidden_after = max(lead - LINES_AROUND, 0), max(tail - LINES_AROUND, 0)
    old, new = old[hidden : len(old) - hidden_after], new[hidden : len(new) - hidden_after]
    runs, new_runs = _runs(removed, lead - hidden), _runs(added, lead - hidden)
    runs = _slid(old, runs, new_runs, effort)
    new_runs = _slid(new, new_runs, runs, effort)

    edits: list[_Edit] = []
    shift = new_shift = hidden
    for kept in sorted(runs.keys() | new_runs.keys()):
        at, new_at = kept + shift, kept + new_shift
        shift += runs.get(kept, 0)
        new_shift += new_runs.get(kept, 0)
        edits.append(_Edit(at, kept + shift, new_at, kept + new_shift))
    return edits


Runs = dict[int, int]
"""The changed lines of one version, in runs. The key of a run is the number of unchanged lines before it, and the
value is its length.
"""


def _runs(changed: bytearray, kept: int) -> Runs:
    runs: Runs = {}
    at, end = changed.find(1), 0
    while at >= 0:
        kept += at - end
        end = changed.find(0, at)
        if end < 0:
            end = len(changed)
        runs[kept] = end - at
        at = changed.find(1, end)
    return runs


def _slid(lines: list[int], runs: Runs, others: Runs, effort: Effort) -> Runs:
    """Move each run of changed lines in `runs` down as far as possible, or next to a run of the other version.
    Return the moved runs. `others` are the runs of the other version.

    A run can move up by one line if the line before the run equals the last line of the run. A run can move down by
    one line if the line after the run equals the first line of the run. Each run is moved up and then down as far
    as possible, and runs that meet are joined. If the run passes runs of the other version on the way down, it is
    placed at the last of those runs instead.
    """
    slid: Runs = {}
    ahead = dict(runs)
    settled = 0
    for first in runs:
        if first not in ahead:
            continue
        effort.check()
        kept, size = first, ahead.pop(first)
        start = kept + settled
        grown = True
        while grown and effort.left > 0:
            size_before = size
            while kept and lines[start - 1] == lines[start + size - 1] and effort.left > 0:
                kept -= 1
                met = slid.pop(kept, 0)
                start -= 1 + met
                size += met
                effort.left -= 1
            top = kept
            beside = kept if kept in others else None
            while start + size < len(lines) and lines[start] == lines[start + size] and effort.left > 0:
                kept += 1
                start += 1
                size += ahead.pop(kept, 0)
                if kept in others:
                    beside = kept
                effort.left -= 1
            grown = size != size_before
            if not grown and kept != top and beside is not None:
                start -= kept - beside
                kept = beside
        slid[kept] = size
        settled = start + size - kept
    return slid


def _uncommon(old: list[int], new: list[int], shared: set[int], effort: Effort) -> tuple[bytearray, bytearray]:
    """Return two arrays with one flag for each line. A flag of 1 marks a removed line of `old` in the first array,
    and an added line of `new` in the second array.

    The lines in `shared` occur in both versions. All other lines are marked as changed without a search. For most
    edits, there are few shared lines to search.
    """
    places = [at for at, line in enumerate(old) if line in shared]
    new_places = [at for at, line in enumerate(new) if line in shared]
    search = _Search([old[at] for at in places], [new[at] for at in new_places], effort)
    search.run()

    removed, added = bytearray(b"\1") * len(old), bytearray(b"\1") * len(new)
    for at, flag in zip(places, search.removed, strict=True):
        removed[at] = flag
    for at, flag in zip(new_places, search.added, strict=True):
        added[at] = flag
    return removed, added


class _Box(NamedTuple):
    """A part of the old sequence and a part of the new sequence that have not been compared with each other yet."""

    start: int
    end: int
    new_start: int
    new_end: int


class _Point(NamedTuple):
    at: int
    new_at: int


class _Search:
    """Finds a shortest edit script by Myers' method in linear space (Algorithmica 1, 1986).

    Paths are followed from the first and the last corner of a box. The box is divided into two where the paths
    meet.
    """

    def __init__(self, old: list[int], new: list[int], effort: Effort) -> None:
        self.removed, self.added = bytearray(len(old)), bytearray(len(new))
        self._effort = effort
        self._head = _Front(old, new, effort, from_end=False)
        self._tail = _Front(old[::-1], new[::-1], effort, from_end=True)

    def run(self) -> None:
        boxes = [_Box(0, len(self.removed), 0, len(self.added))]
        while boxes:
            self._effort.check()
            box = self._trimmed(boxes.pop())
            if box.start == box.end or box.new_start == box.new_end:
                self._mark(box)
            elif self._effort.left <= 0:
                self._effort.cut = True
                self._mark(box)
            else:
                boxes.extend(self._parts(box))

    def _mark(self, box: _Box) -> None:
        self.removed[box.start : box.end] = b"\1" * (box.end - box.start)
        self.added[box.new_start : box.new_end] = b"\1" * (box.new_end - box.new_start)

    def _trimmed(self, box: _Box) -> _Box:
        start, end, new_start, new_end = box
        same = self._head.same(start, new_start, min(end - start, new_end - new_start))
        start, new_start = start + same, new_start + same
        there = self._mirrored(_Point(end, new_end))
        same = self._tail.same(*there, min(end - start, new_end - new_start))
        return _Box(start, end - same, new_start, new_end - same)

    def _mirrored(self, point: _Point) -> _Point:
        """Return a point with its positions counted from the other end of the sequences."""
        return _Point(len(self.removed) - point.at, len(self.added) - point.new_at)

    def _parts(self, box: _Box) -> tuple[_Box, _Box]:
        """Divide `box` at the point where a path from its first corner meets a path from its last corner. Return
        the box before this point and the box after it.

        If no paths meet within half of the remaining steps, mark all lines between the furthest points of the paths
        as changed, and return the box before and the box after the marked lines. The other half of the steps
        suffices to compare the lines in these two boxes.
        """
        head, tail, effort = self._head, self._tail, self._effort
        first, last = _Point(box.start, box.new_start), _Point(box.end, box.new_end)
        head.enter(first, last)
        tail.enter(self._mirrored(last), self._mirrored(first))
        head_meets = (box.end - box.start + box.new_end - box.new_start) % 2 == 1
        stop = effort.left // 2
        while effort.left > stop:
            effort.check()
            met = head.advance(tail if head_meets else None, stop)
            if met is None and effort.left > stop:
                met = tail.advance(None if head_meets else head, stop)
                met = met and self._mirrored(met)
            if met is not None:
                return _Box(box.start, met.at, box.new_start, met.new_at), _Box(
                    met.at, box.end, met.new_at, box.new_end
                )

        effort.cut = True
        from_first, from_last = head.furthest(), self._mirrored(tail.furthest())
        if from_first.at > from_last.at or from_first.new_at > from_last.new_at:
            from_last = last
        self._mark(_Box(from_first.at, from_last.at, from_first.new_at, from_last.new_at))
        return (
            _Box(box.start, from_first.at, box.new_start, from_first.new_at),
            _Box(from_last.at, box.end, from_last.new_at, box.new_end),
        )


class _Front:
    """One of the two search fronts of Myers' diff algorithm. All paths of a front begin at the same corner of a
    box. For each diagonal, the front holds the furthest point that a path has reached.

    The number of a diagonal is the position in the old sequence minus the position in the new one, plus a constant
    that keeps it positive.
    """

    def __init__(self, old: list[int], new: list[int], effort: Effort, *, from_end: bool) -> None:
        self._old, self._new, self._effort = old, new, effort
        # The lines as numbers of fixed size, so that many lines are compared in one step.
        self._packed, self._new_packed = array("I", old).tobytes(), array("I", new).tobytes()
        self._width = array("I").itemsize
        self._zero = len(new) + 1
        self._reached = [0] * (len(old) + len(new) + 3)
        """The furthest position in the old sequence, indexed by diagonal."""
        self._upwards = from_end
        self._first = self._last = _Point(0, 0)
        self._low = self._high = 0

    def enter(self, first: _Point, last: _Point) -> None:
        """Discard all paths, and begin a search at the corner `first` of a new box. `last` is the opposite corner
        of the box.
        """
        self._first, self._last = first, last
        self._low = self._high = middle = first.at - first.new_at + self._zero
        self._reached[middle - 1 : middle + 2] = -1, first.at, -1

    def same(self, at: int, new_at: int, limit: int) -> int:
        """Return the number of equal lines at the start of `old[at:]` and `new[new_at:]`, but at most `limit`."""
        old, new, same = self._old, self._new, 0
        while same < limit and old[at + same] == new[new_at + same]:
            same += 1
            if same == 8:
                here, there, size = (count * self._width for count in (at, new_at, limit))
                same = _same_after(self._packed, here, self._new_packed, there, size) // self._width
                break
        self._effort.left -= 1 + (same >> 6)
        return same

    def advance(self, other: _Front | None, stop: int) -> _Point | None:
        """Extend every path by one change, and then by all equal lines. Stop early when the effort has only `stop`
        steps left.

        Return the point where a path meets a path of the front `other`; None if no paths meet or `other` is None.
        """
        old, new, zero, reached, effort = self._old, self._new, self._zero, self._reached, self._effort
        end, new_end = self._last
        self._widen()
        low, high = self._low, self._high
        effort.left -= (high - low) // 2 + 1
        for k in range(low, high + 1, 2) if self._upwards else range(high, low - 1, -2):
            below, above = reached[k - 1], reached[k + 1]
            at = below + 1 if below >= above else above
            new_at = at - k + zero
            if at < end and new_at < new_end and old[at] == new[new_at]:
                at += self.same(at, new_at, min(end - at, new_end - new_at))
            reached[k] = at
            if other is not None and other.has_passed(k, at):
                return _Point(at, at - k + zero)
            if effort.left <= stop:
                break
        return None

    def _widen(self) -> None:
        """Add the next diagonal on each side to the diagonals that this front searches. At an edge of the box,
        remove the outermost diagonal instead.
        """
        if self._low > self._first.at - self._last.new_at + self._zero:
            self._low -= 1
            self._reached[self._low - 1] = -1
        else:
            self._low += 1
        if self._high < self._last.at - self._first.new_at + self._zero:
            self._high += 1
            self._reached[self._high + 1] = -1
        else:
            self._high -= 1

    def has_passed(self, k: int, at: int) -> bool:
        """Return whether this front has reached a point of the opposite front.

        The point is given by the diagonal `k` and the position `at`, in the numbering of the opposite front.
        """
        k = len(self._reached) - 1 - k
        return self._low <= k <= self._high and self._reached[k] >= len(self._old) - at

    def furthest(self) -> _Point:
        """Return the point of this front, within the box, after which the fewest lines remain to be compared."""
        first, last = self._first, self._last
        points = [first]
        for k in range(self._low, self._high + 1):
            at, new_at = self._reached[k], self._reached[k] - k + self._zero
            if first.at <= at <= last.at and first.new_at <= new_at <= last.new_at:
                points.append(_Point(at, new_at))
        return max(points, key=sum)
