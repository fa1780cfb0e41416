"""An assembler for the kernel's packet filter (BPF), with named labels.

This module encodes the instructions and computes the distances of jumps. The module `seccomp` builds the program.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

__all__ = ["Code"]

_INSTRUCTION: Final = struct.Struct("<HBBI")
"""The format of a `struct sock_filter`: the operation, the jump distances for a true and for a false condition, and
a number. All supported architectures are little-endian.
"""

_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_ABOVE: Final = 0x25
_RETURN: Final = 0x06

_REACH: Final = 254
"""The maximum distance of a conditional jump, in instructions. A distance is stored in one byte. The limit is one
less than the largest value of a byte: after the distance to the label `then` was checked, a long jump to the label
`otherwise` may be inserted.
"""


class _Plain(Struct, frozen=True):
    """An instruction that does not jump. It continues with the next instruction or ends the program."""

    operation: int
    number: int


class _Condition(Struct, frozen=True):
    operation: int
    number: int
    then: str | None
    """The label to jump to if the condition holds; None to continue with the next instruction."""
    otherwise: str | None
    """The label to jump to if the condition does not hold; None to continue with the next instruction."""


class _Label(Struct, frozen=True):
    name: str


class Code:
    """A BPF program that is being built. The program uses one register and jumps only forward. Each method except
    `assembled` appends an instruction or a label.
    """

    def __init__(self) -> None:
        self._steps: list[_Plain | _Condition | _Label] = []

    def load(self, offset: int) -> None:
        """Append an instruction that loads four bytes into the register. `offset` is their offset, in bytes, in the
        data of the system call (`struct seccomp_data`).
        """
        self._steps.append(_Plain(_LOAD, offset))

    def keep(self, mask: int) -> None:
        """Append an instruction that clears all bits of the register that are not set in `mask`."""
        self._steps.append(_Plain(_AND, mask))

    def if_equal(self, number: int, *, then: str | None = None, otherwise: str | None = None) -> None:
        """Append an instruction that jumps to the label `then` if the register equals `number`, and otherwise to
        the label `otherwise`. None means the next instruction.
        """
        self._steps.append(_Condition(_JUMP_IF_EQUAL, number, then, otherwise))

    def if_above(self, number: int, *, then: str | None = None, otherwise: str | None = None) -> None:
        """Append an instruction that jumps to the label `then` if the register is greater than `number`, and
        otherwise to the label `otherwise`. None means the next instruction. The comparison is unsigned.
        """
        self._steps.append(_Condition(_JUMP_IF_ABOVE, number, then, otherwise))

    def answer(self, number: int) -> None:
        """Append a return instruction. When the kernel executes it, the program ends with the filter result
        `number`.
        """
        self._steps.append(_Plain(_RETURN, number))

    def label(self, name: str) -> None:
        """Append a label with the given name. The label marks the instruction that is appended next, so that
        earlier instructions can jump to this instruction.
        """
        self._steps.append(_Label(name))

    def assembled(self) -> bytes:
        """Return the encoded program.

        Raises:
            ValueError: two labels have the same name.
            KeyError: a jump leads to a label that does not come after it.
        """
        # The program is assembled from its end, so that the distance of each jump is already known, even if a long
        # jump needs two instructions.
        backwards: list[bytes] = []
        labels: dict[str, int] = {}

        def distance(remaining: int) -> int:
            """Return the number of instructions that a jump skips if the jump is inserted now. Instructions are
            added from the end of the program to its start, so the jump comes before all instructions that were
            already added. `remaining` is the number of instructions from the jump target to the end of the program.
            """
            return len(backwards) - remaining

        for step in reversed(self._steps):
            match step:
                case _Plain(operation, number):
                    backwards.append(_INSTRUCTION.pack(operation, 0, 0, number))
                case _Label(name):
                    if name in labels:
                        raise ValueError(f"two labels have the name `{name}`")
                    labels[name] = len(backwards)
                case _Condition(operation, number, then, otherwise):
                    following = len(backwards)
                    ends: list[int] = []
                    for goal in (then, otherwise):
                        end = following if goal is None else labels[goal]
                        if distance(end) > _REACH:
                            backwards.append(_INSTRUCTION.pack(_JUMP, 0, 0, distance(end)))
                            end = len(backwards)
                        ends.append(end)
                    backwards.append(_INSTRUCTION.pack(operation, *map(distance, ends), number))
        return b"".join(reversed(backwards))
