"""The pytest plugin: fixtures with a scripted model and with servers.

Every pytest run loads this plugin if Parley is installed, so the plugin imports no other Parley modules before a
fixture is used.
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

__all__ = ["parley_model", "parley_process", "parley_server"]


def _async_fixture(function: Callable[..., Any]) -> Any:
    """Convert an async function to a fixture.

    Without pytest-asyncio, the fixture fails with an error that names the missing plugin.
    """
    try:
        import pytest_asyncio
    except ImportError:

        @pytest.fixture(name=function.__name__)
        def missing() -> None:
            pytest.fail(f"the fixture `{function.__name__}` requires pytest-asyncio", pytrace=False)

        return missing
    return pytest_asyncio.fixture(function)


@_async_fixture
async def parley_model() -> AsyncIterator[ScriptedModel]:
    """Yield a scripted model that replies as the test specifies."""
    from parley.testing.model import ScriptedModel

    async with ScriptedModel() as model:
        yield model


@_async_fixture
async def parley_process(
    parley_model: ScriptedModel, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[ParleyProcess]]]:
    """Yield an async function that starts a server, for example `await parley_process(api="responses")`. The
    function takes the options of `ParleyProcess`. The server stops at the end of the test.
    """
    from parley.testing.process import ParleyProcess

    made = 0

    async def make(**options: Any) -> ParleyProcess:
        nonlocal made
        made += 1
        given = {"home": tmp_path / f"parley-{made}" / "home", **options}
        return await stack.enter_async_context(ParleyProcess(parley_model, **given))

    async with AsyncExitStack() as stack:
        yield make


@_async_fixture
async def parley_server(parley_process: Callable[..., Awaitable[ParleyProcess]]) -> ParleyProcess:
    """Return a server with a client. The server uses the scripted model `parley_server.model` over the Chat
    Completions API.
    """
    return await parley_process()
