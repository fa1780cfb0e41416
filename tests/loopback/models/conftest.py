from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kit.models.raw_provider import Caller


@pytest.fixture
async def caller(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    caller = Caller()
    yield caller
    await caller.http.close()
