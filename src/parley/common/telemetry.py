"""Reports the operations of the server to observers, which are the log, the metrics and the traces.

If there are no observers, each report costs only one comparison. The text of messages and the arguments of tool
calls are reported only to observers that ask for content.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

__all__ = ["Observer", "Operation", "Telemetry", "telemetry"]

MAX_CAUSES: Final = 1024
"""The maximum number of conversations for which the operation that caused the next turn is stored. If there are
more, the oldest operation is discarded.
"""


class Operation:
    """An operation with a beginning and an end, such as a turn or a request to a model."""

    __slots__ = ("began", "content", "fields", "handle", "name", "outcome", "parent", "seconds")

    def __init__(self, name: str, parent: Operation | None, fields: dict[str, Any]) -> None:
        self.name, self.parent, self.fields = name, parent, fields
        self.content: dict[str, str] = {}
        """The text from users, models and tools, which is reported only to observers that ask for content."""
        self.outcome = "ok"
        """The result of the operation: `ok`, `cancelled`, `failed`, or a more specific word."""
        self.seconds = 0.0
        """The duration of the operation in seconds, set when the operation has ended."""
        self.handle: Any = None
        """The trace span of the operation; None if traces are disabled."""
        self.began = time.perf_counter()

    def add(self, **fields: Any) -> None:
        """Add fields to the operation. Observers receive them when the operation ends."""
        self.fields.update(fields)


class Observer(Protocol):
    """Receives the reports of a `Telemetry`. The methods of an observer must not raise errors and must not wait."""

    wants_content: bool
    """True if the observer asks for the text of messages and the arguments of tool calls."""

    def started(self, operation: Operation) -> None: ...

    def ended(self, operation: Operation) -> None: ...

    def noted(self, name: str, fields: dict[str, Any]) -> None:
        """Receive the report of the event `name`, which has no duration. `fields` describes the event."""
        ...

    def measured(self, name: str, seconds: float, outcome: str) -> None:
        """Receive the duration, in seconds, and the outcome of the operation `name`. A very frequent operation is
        reported in this way, without an `Operation` object and its fields.
        """
        ...


class Telemetry:
    """Forwards reports to the observers of this process."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self.is_active = False
        """True if there are observers."""
        self.wants_content = False
        """True if an observer asks for the content of operations."""
        self.takes_parents = False
        """True if an observer continues the traces of clients. The observer then needs the parent span that a
        client names in a request.
        """
        self.deltas = 0
        """The number of deltas of text and command output that this process has produced."""
        self.events = 0
        """The number of events that this process has appended to logs."""
        self._current: ContextVar[Operation | None] = ContextVar("operation", default=None)
        self._causes: OrderedDict[str, Operation] = OrderedDict()

    def add(self, observer: Observer) -> None:
        """Add an observer, which receives all reports from now on."""
        self._set((*self._observers, observer))

    def remove(self, observer: Observer) -> None:
        """Stop reporting to an observer."""
        self._set(tuple(one for one in self._observers if one is not observer))

    def _set(self, observers: tuple[Observer, ...]) -> None:
        self._observers, self.is_active = observers, bool(observers)
        self.wants_content = any(one.wants_content for one in observers)

    # --- operations --------------------------------------------------------------------

    def start(self, name: str, *, parent: Operation | None = None, **fields: Any) -> Operation | None:
        """Report the beginning of an operation, and return the operation; return None if there is no observer.

        `parent` is the operation that caused the new operation. The default is the operation of the current task.
        """
        if not self.is_active:
            return None
        operation = Operation(name, parent or self._current.get(), fields)
        for one in self._observers:
            one.started(operation)
        return operation

    def end(self, operation: Operation | None, outcome: str | None = None, **fields: Any) -> None:
        """Report the end of an operation with the result `outcome`. If `outcome` is None, the operation keeps its
        result. Do nothing if `operation` is None.
        """
        if operation is None:
            return
        operation.seconds = time.perf_counter() - operation.began
        operation.fields.update(fields)
        if outcome is not None:
            operation.outcome = outcome
        for one in self._observers:
            one.ended(operation)

    @contextmanager
    def operation(self, name: str, **fields: Any) -> Iterator[Operation | None]:
        """Report the `with` block as an operation, and yield the operation; yield None if there is no observer. The
        operation is the parent of the operations that begin in the block.
        """
        if not self.is_active:
            yield None
            return
        operation = self.start(name, **fields)
        token = self._current.set(operation)
        try:
            yield operation
        except asyncio.CancelledError:
            self.end(operation, "cancelled")
            raise
        except BaseException as error:
            code = getattr(error, "code", None)
            self.end(operation, "failed", error=code if isinstance(code, str) else type(error).__name__)
            raise
        else:
            self.end(operation)
        finally:
            self._current.reset(token)

    @contextmanager
    def within(self, operation: Operation | None) -> Iterator[None]:
        """Make an operation the parent of all operations that begin in the `with` block, or in tasks that are
        created in the block.
        """
        if operation is None:
            yield
            return
        token = self._current.set(operation)
        try:
            yield
        finally:
            self._current.reset(token)

    def annotate(self, **fields: Any) -> None:
        """Add fields to the operation of the current task, if there is one."""
        if self.is_active and (operation := self._current.get()) is not None:
            operation.fields.update(fields)

    def cause(self, conversation_id: str) -> None:
        """Store the operation of the current task as the cause of the next turn of a conversation. Do nothing if
        there is no observer or the current task has no operation.
        """
        if self.is_active and (operation := self._current.get()) is not None:
            self._causes[conversation_id] = operation
            if len(self._causes) > MAX_CAUSES:
                self._causes.popitem(last=False)

    def take_cause(self, conversation_id: str) -> Operation | None:
        """Return and remove the stored cause of the next turn of a conversation; None if the cause is unknown."""
        return self._causes.pop(conversation_id, None)

    # --- other reports -----------------------------------------------------------------

    def note(self, name: str, **fields: Any) -> None:
        """Report the event `name`, which has no duration, to the observers."""
        for one in self._observers:
            one.noted(name, fields)

    def measure(self, name: str, seconds: float, outcome: str = "ok") -> None:
        """Report the duration, in seconds, and the outcome of an operation that has ended. This method is for very
        frequent operations, which are reported without an `Operation` object and its fields.
        """
        for one in self._observers:
            one.measured(name, seconds, outcome)


telemetry: Final = Telemetry()
"""The object to which all modules of this process report operations, events and durations."""
