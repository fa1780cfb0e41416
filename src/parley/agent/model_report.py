"""Reports requests to the model to logs, metrics and traces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from parley.common.telemetry import Operation, telemetry
from parley.config.types import Settings
from parley.conversation.history import UserItem
from parley.errors import ModelError
from parley.ports.model import ModelRequest
from parley.wire.events import TokenCount
from parley.wire.items import text_of

__all__ = ["ModelReport", "model_request"]

OK: Final = "200"


class ModelReport:
    """Reports one request to the model, with its deltas, retries and tokens, to logs, metrics and traces."""

    __slots__ = ("_operation",)

    def __init__(self, operation: Operation | None) -> None:
        self._operation = operation

    def received(self, deltas: int) -> None:
        """Add `deltas` to the number of deltas that the model has sent. This method must be fast, because it is
        called for every batch of chunks.
        """
        telemetry.deltas += deltas
        if (operation := self._operation) is not None and "first_seconds" not in operation.fields:
            operation.fields["first_seconds"] = time.perf_counter() - operation.began

    def retried(self) -> None:
        """Record that the request will be repeated because the provider temporarily refused it."""
        if self._operation is not None:
            self._operation.fields.pop("first_seconds", None)
            self._operation.add(retries=self._operation.fields.get("retries", 0) + 1)

    def used(self, usage: TokenCount | None) -> None:
        """Record the tokens that the response has used, with their cost.

        `usage` is None if the provider did not report the tokens.
        """
        if self._operation is None or usage is None:
            return
        cost = usage.cost_micros
        self._operation.add(
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens or 0,
            output_tokens=usage.output_tokens,
            reasoning_output_tokens=usage.reasoning_output_tokens or 0,
            cost=cost / 1_000_000 if isinstance(cost, int) else None,
        )

    def said(self, request: ModelRequest, text: str | None) -> None:
        """Record the newest user message of the request and the text of the model's response. Do nothing if
        telemetry does not include the content of conversations.
        """
        if self._operation is None or not telemetry.wants_content:
            return
        messages = [item for item in request.history if isinstance(item, UserItem)]
        if messages:
            self._operation.content["input"] = text_of(messages[-1].content)
        if text is not None:
            self._operation.content["output"] = text


@contextmanager
def model_request(settings: Settings, *, purpose: str = "chat") -> Iterator[ModelReport]:
    """Report the `with` block as a request to the model, and yield the report, to which the caller adds the details
    of the response. `purpose` is `chat` or `compact`.
    """
    provider, model = settings.provider.id, settings.model
    with telemetry.operation("model_request", provider=provider, model=model, purpose=purpose) as operation:
        try:
            yield ModelReport(operation)
        except ModelError as error:
            if operation is not None:
                status = getattr(error, "status", None)
                operation.add(status=str(status) if isinstance(status, int) else error.code)
            raise
        else:
            if operation is not None:
                operation.add(status=OK)
