"""Errors of a tool, and the outputs that the model gets for them."""

from __future__ import annotations

from typing import Any

import pytest

from parley.conversation.records import CallItem
from parley.errors import LeaseLost, StoreFailed
from parley.tools import OpenTools
from parley.wire.ids import CallId

CALL = CallItem(call_id=CallId("c1"), name="fails", arguments="{}")


class Failing:
    names = ("fails",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def spec(self) -> None:
        return None

    async def run(self, call: CallItem) -> str:
        raise self._error


def tools(error: Exception) -> OpenTools:
    own: Any = (Failing(error),)
    return OpenTools(own, None)


@pytest.mark.promises("keeping.full")
@pytest.mark.parametrize("error", [StoreFailed("the disk is full"), LeaseLost()])
async def test_an_error_of_the_store_ends_the_turn(error: Exception) -> None:
    with pytest.raises(type(error)):
        await tools(error).run(CALL)


async def test_the_model_reads_that_a_tool_has_a_bug() -> None:
    assert await tools(KeyError("x")).run(CALL) == "internal error: KeyError"
