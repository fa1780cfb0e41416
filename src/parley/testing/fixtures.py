"""The pytest plugin: a scripted model and real servers, as fixtures.

Every pytest run loads it where Parley is installed, so it imports nothing of Parley by itself:
a run that uses no fixture pays for none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from parley.testing.model import ScriptedModel
    from parley.testing.process import ParleyProcess

__all__ = ["parley_process", "parley_server", "scripted_model"]


def _async_fixture(function: Callable[..., Any]) -> Any:
    """A fixture for async tests; without pytest-asyncio, one that says so once somebody wants it."""
    try:
        import pytest_asyncio
    except ImportError:

        @pytest.fixture(name=function.__name__)
        def missing() -> None:
            pytest.fail(f"the fixture `{function.__name__}` needs pytest-asyncio", pytrace=False)

        return missing
    return pytest_asyncio.fixture(function)


@_async_fixture
async def scripted_model() -> AsyncIterator[ScriptedModel]:
    """A model that says what the test tells it to."""
    from parley.testing.model import ScriptedModel

    async with ScriptedModel() as model:
        yield model


@_async_fixture
async def parley_process(
    scripted_model: ScriptedModel, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[ParleyProcess]]]:
    """Makes servers: `await parley_process(api="responses")`, with the options of `ParleyProcess`."""
    from parley.testing.process import ParleyProcess

    made = 0

    async def make(**options: Any) -> ParleyProcess:
        nonlocal made
        made += 1
        given = {"home": tmp_path / f"parley-{made}" / "home", **options}
        return await stack.enter_async_context(ParleyProcess(scripted_model, **given))

    async with AsyncExitStack() as stack:
        yield make


@_async_fixture
async def parley_server(parley_process: Callable[..., Awaitable[ParleyProcess]]) -> ParleyProcess:
    """A server that speaks chat with `parley_server.model`, and a client connected to it."""
    return await parley_process()
