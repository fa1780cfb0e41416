"""An interpreter for BPF, which determines the decision of a seccomp program about a system call.

The interpreter accepts only programs that the kernel accepts. It is written from the kernel's description of the
instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["ALLOW", "KILL", "LONGEST", "Call", "Filter", "fails_with"]

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
LONGEST: Final = 4096
"""The maximum number of instructions that the kernel accepts."""

_WORD: Final = 0xFFFFFFFF


def fails_with(error: int) -> int:
    """Return the result that makes a call fail with this error."""
    return 0x00050000 | error


class Call(NamedTuple):
    """A system call, as a filter sees it."""

    architecture: int
    number: int
    arguments: Sequence[int] = ()
    """The first arguments of the call. The other arguments, up to six, are 0."""

    def seen(self) -> list[int]:
        """The call as words of 32 bits: number, architecture, two for the caller's address, and the arguments."""
        words = [self.number & _WORD, self.architecture, 0xDEAD_BEEF, 0x7FFF]
        for argument in (*self.arguments, *(0,) * (6 - len(self.arguments))):
            words += [argument & _WORD, argument >> 32 & _WORD]
        return words


class Filter:
    """A program, checked as the kernel checks it."""

    def __init__(self, program: bytes) -> None:
        self.instructions = list(struct.iter_unpack("<HBBI", program))
        if not 0 < len(self.instructions) <= LONGEST:
            raise ValueError(f"{len(self.instructions)} instructions")
        for position, (operation, if_so, if_not, number) in enumerate(self.instructions):
            left = len(self.instructions) - position - 1
            match operation:
                case 0x20:
                    in_order = number % 4 == 0 and number < 64
                case 0x05:
                    in_order = number < left
                case 0x15 | 0x25:
                    in_order = max(if_so, if_not) < left
                case 0x54 | 0x06:
                    in_order = True
                case _:
                    in_order = False
            if not in_order:
                raise ValueError(f"instruction {position}: {operation:#x} {if_so} {if_not} {number:#x}")
        if self.instructions[-1][0] != 0x06:
            raise ValueError("the last instruction does not end it")

    def answer(self, call: Call) -> int:
        """Return the decision of the filter about a system call."""
        words = call.seen()
        register = 0
        position = 0
        while True:
            operation, if_so, if_not, number = self.instructions[position]
            position += 1
            match operation:
                case 0x20:
                    register = words[number // 4]
                case 0x54:
                    register &= number
                case 0x05:
                    position += number
                case 0x15:
                    position += if_so if register == number else if_not
                case 0x25:
                    position += if_so if register > number else if_not
                case _:
                    return int(number)
