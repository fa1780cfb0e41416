"""Compares the size of one reply from a model with the limits in the settings of its provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parley.config.types import ReplyLimits
from parley.errors import ReplyTooLarge
from parley.models.errors import TooManyValues
from parley.wire.sse import LARGE_BYTES

__all__ = ["DEFAULT_LIMITS", "ReplySize", "check_values"]

DEFAULT_LIMITS: Final = ReplyLimits()

MAX_VALUES: Final = 50_000
"""The maximum number of JSON values in one event. A limit on the size of an event is not sufficient to limit the
memory for the decoded event: two bytes such as `{}` become an object of 64 bytes.
"""


class ReplySize:
    """The numbers of characters and tool calls that one reply contains so far, and their limits in the settings of
    the provider.
    """

    __slots__ = ("arguments", "calls", "limits", "text")

    def __init__(self, limits: ReplyLimits) -> None:
        self.limits = limits
        self.text = self.arguments = self.calls = 0

    def check_text(self, size: int) -> None:
        """Check text of `size` characters before it is decoded and counted.

        Raises:
            ReplyTooLarge: the text alone exceeds the limit.
        """
        limit = self.limits.max_reply_characters
        if size > limit:
            raise ReplyTooLarge("characters of text", limit, setting="max_reply_characters")

    def check(self) -> None:
        """Check the sizes counted so far.

        Raises:
            ReplyTooLarge: the reply exceeds a limit.
        """
        limits = self.limits
        self.check_text(self.text)
        if self.arguments > limits.max_argument_characters:
            raise ReplyTooLarge(
                "characters in the arguments of its calls",
                limits.max_argument_characters,
                setting="max_argument_characters",
            )
        if self.calls > limits.max_calls:
            raise ReplyTooLarge("calls", limits.max_calls, setting="max_calls")

    def check_pieces(self, number: int) -> None:
        """Check `number`, the number of tool call fragments in one event, before the fragments are joined.

        Raises:
            ReplyTooLarge: the number of fragments exceeds the allowed number of tool calls.
        """
        if number > self.limits.max_calls:
            raise ReplyTooLarge("calls", self.limits.max_calls, setting="max_calls")


def check_values(payloads: Iterable[bytes]) -> None:
    """Check the number of JSON values in each event before the events are decoded. Events of at most `LARGE_BYTES`
    are not checked.

    Raises:
        TooManyValues: an event contains more than `MAX_VALUES` values.
    """
    for payload in payloads:
        if len(payload) > LARGE_BYTES and _values(payload) > MAX_VALUES and _has_too_many(payload):
            raise TooManyValues(MAX_VALUES)


def _has_too_many(data: bytes) -> bool:
    """Return whether an event contains more than `MAX_VALUES` JSON values. Commas and brackets inside strings do
    not count. The beginning of the event is examined first, because an event with too many values nearly always has
    too many in its beginning.
    """
    size = LARGE_BYTES
    while size < len(data):
        size *= 8
        if _values_outside_strings(data[:size]) > MAX_VALUES:
            return True
    return False


def _values(data: bytes) -> int:
    """Return an upper bound on the number of JSON values in `data`. Commas and brackets inside strings count as
    well.
    """
    return data.count(b",") + data.count(b"{") + data.count(b"[")


def _values_outside_strings(data: bytes) -> int:
    """Return the number of commas and opening brackets in `data` that are not inside a string. `data` may be only
    the beginning of an event. If the result exceeds `MAX_VALUES`, it may be lower than the exact number.
    """
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # after this, each quote begins or ends a string
    quotes = data.count(b'"')
    # A comma separates at most two strings: a value and the name of the next member.
    if quotes > 4 * MAX_VALUES + 4:
        return quotes // 4
    return _values(b"".join(data.split(b'"')[::2]))
