"""Records whether the database can be reached.

Three parts of the store record whether they get responses from the database: the methods that use the connection
pool (`calls`), the writer (`writes`), and the renewal of the leases (`leases`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

from parley.ports.availability import AVAILABLE, AvailabilityState

__all__ = ["NO_ANSWER_SECONDS", "Availability", "Part"]

log = logging.getLogger(__name__)

NO_ANSWER_SECONDS: Final = 2.0
"""The time without a response, in seconds, after which the database counts as unreachable."""

Part = Literal["calls", "writes", "leases"]


class Availability:
    """Determines the availability of a database (`AvailabilityState`), and calls callbacks when the availability
    changes.
    """

    def __init__(self, location: str) -> None:
        """Create the object. `location` describes the database in log messages."""
        self._location = location
        self._failing: set[Part] = set()
        self._has_given_up = False
        self._callbacks: list[Callable[[AvailabilityState], None]] = []
        self.state: AvailabilityState = AVAILABLE

    def on_change(self, call: Callable[[AvailabilityState], None]) -> None:
        """Register the callback `call`, which is called with the new state after each change of the availability.
        Earlier callbacks stay registered.
        """
        self._callbacks.append(call)

    def failed(self, part: Part, reason: str) -> None:
        """Record that the part `part` of the store got no response from the database. `reason` is the error text
        for the log.
        """
        if not self._failing and not self._has_given_up:
            log.warning("%s cannot be reached: %s", self._location, reason)
        self._failing.add(part)
        self._update()

    def gave_up(self) -> None:
        """Record that this process has given up its leases, so its turns have stopped."""
        self._has_given_up = True
        self._update()

    def answered(self, part: Part) -> None:
        """Record that the part `part` of the store got a response from the database. The database is available
        again when every part that recorded a failure has recorded a response.

        A renewal of the leases counts as a response for all parts. Only a renewal ends the state `turns_stopped`.
        """
        if part == "leases":
            self._has_given_up = False
            self._failing.clear()
        else:
            self._failing.discard(part)
        self._update()

    def _update(self) -> None:
        before = self.state
        self.state = "turns_stopped" if self._has_given_up else "unreachable" if self._failing else AVAILABLE
        if self.state == before:
            return
        if self.state == AVAILABLE:
            log.warning("%s can be reached again", self._location)
        for call in self._callbacks:
            call(self.state)
