"""Programs for the kernel's packet filter, written with names for the places that are jumped to.

Knows the instructions and how far each can jump. Does not know what a program decides;
`seccomp.py` does.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

__all__ = ["Code"]

_INSTRUCTION: Final = struct.Struct("<HBBI")
"""A `struct sock_filter`: operation, how far to jump if so, how far if not, and a number. Both
machines that we know are little-endian."""

_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_ABOVE: Final = 0x25
_RETURN: Final = 0x06

_REACH: Final = 254
"""Over how many instructions a condition jumps by itself: its byte holds one more, which is needed
where both of its ways are too long."""


class _Plain(Struct, frozen=True):
    """An instruction that goes on to the next, or ends the program."""

    operation: int
    number: int


class _Condition(Struct, frozen=True):
    operation: int
    number: int
    then: str | None
    """Where to go on; None: with the next instruction."""
    otherwise: str | None


class _Place(Struct, frozen=True):
    name: str


class Code:
    """A program in the making. It has one register, and jumps forwards only."""

    def __init__(self) -> None:
        self._steps: list[_Plain | _Condition | _Place] = []

    def load(self, offset: int) -> None:
        """Take the four bytes that stand there."""
        self._steps.append(_Plain(_LOAD, offset))

    def keep(self, mask: int) -> None:
        """Clear all other bits."""
        self._steps.append(_Plain(_AND, mask))

    def if_equal(self, number: int, *, then: str | None = None, otherwise: str | None = None) -> None:
        """Go on at one of two places; None: with the next instruction."""
        self._steps.append(_Condition(_JUMP_IF_EQUAL, number, then, otherwise))

    def if_above(self, number: int, *, then: str | None = None, otherwise: str | None = None) -> None:
        """The same, where both are taken as unsigned."""
        self._steps.append(_Condition(_JUMP_IF_ABOVE, number, then, otherwise))

    def answer(self, number: int) -> None:
        """End with this."""
        self._steps.append(_Plain(_RETURN, number))

    def place(self, name: str) -> None:
        """What comes next can be jumped to, from whatever stands before it."""
        self._steps.append(_Place(name))

    def assembled(self) -> bytes:
        """All of it.

        Raises:
            ValueError: two places have the same name.
            KeyError: a jump leads to a place that is not behind it.
        """
        # From the end to the beginning: then it is known how much each jump has to pass over, also
        # where a long one has become two.
        backwards: list[bytes] = []
        places: dict[str, int] = {}

        def distance(behind: int) -> int:
            """From the next instruction that is written down to the one with so many at and behind it."""
            return len(backwards) - behind

        for step in reversed(self._steps):
            match step:
                case _Plain(operation, number):
                    backwards.append(_INSTRUCTION.pack(operation, 0, 0, number))
                case _Place(name):
                    if name in places:
                        raise ValueError(f"there are two places `{name}`")
                    places[name] = len(backwards)
                case _Condition(operation, number, then, otherwise):
                    following = len(backwards)
                    ends: list[int] = []
                    for goal in (then, otherwise):
                        end = following if goal is None else places[goal]
                        if distance(end) > _REACH:
                            backwards.append(_INSTRUCTION.pack(_JUMP, 0, 0, distance(end)))
                            end = len(backwards)
                        ends.append(end)
                    backwards.append(_INSTRUCTION.pack(operation, *map(distance, ends), number))
        return b"".join(reversed(backwards))
