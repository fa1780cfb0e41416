"""The interface of a store that may become unreachable, such as a database on another computer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

__all__ = ["AVAILABLE", "AvailabilityState", "ReportsAvailability"]

AvailabilityState = Literal["available", "unreachable", "turns_stopped"]
"""The availability of a store. `available` means that the store responds. `unreachable` means that the store does
not respond. `turns_stopped` means that the store has not responded for so long that this process has given up its
leases and its turns have stopped.
"""

AVAILABLE: AvailabilityState = "available"


@runtime_checkable
class ReportsAvailability(Protocol):
    """A store that may become unreachable for some time, and that reports its availability."""

    @property
    def availability(self) -> AvailabilityState:
        """The availability of the store at the last time that this process observed it."""
        ...

    @property
    def is_silent(self) -> bool:
        """True if a request to the store has been waiting for some seconds, or if `availability` is not
        `available`.
        """
        ...

    def on_availability(self, call: Callable[[AvailabilityState], None]) -> None:
        """Register `call`, a callback that receives the new state after each change of the availability. It is
        called in the event loop. Earlier callbacks stay registered.
        """
        ...
