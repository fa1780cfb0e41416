"""Sessions that cannot begin, and sessions whose removal from the store failed."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kit.servers.local_server import LocalServer
from kit.system.waiting import until
from parley.errors import StoreFailed
from parley.server.context import LOCAL_USER
from parley.server.http.sessions import HttpSessions
from parley.server.serve import ClientConnection, ServerCore
from parley.stores.memory import MemoryStore


class Unavailable(MemoryStore):
    is_broken = True

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[bytes] = []

    async def remove_sessions(self, digests: Collection[bytes]) -> None:
        if self.is_broken:
            raise StoreFailed("the disk is gone")
        self.removed += digests
        await super().remove_sessions(digests)


@pytest.mark.promises("http.session")
async def test_a_session_whose_removal_failed_is_removed_later(home: str) -> None:
    async with LocalServer(home) as server:
        store = Unavailable()
        sessions = HttpSessions(
            ServerCore(server.context), key=b"k" * 32, max_sessions=9, idle_seconds=60, store=store
        )
        session = await sessions.create(LOCAL_USER)
        removing = sessions.delete(session)
        assert removing is not None
        await removing
        store.is_broken = False
        sessions._check_again()
        await until(lambda: not sessions._removing)

        assert store.removed == [session.digest]
        await sessions.close()


async def test_a_session_that_fails_while_it_begins_is_an_error(home: str) -> None:
    def fail(client: ClientConnection) -> None:
        raise ValueError("a bug")

    async with LocalServer(home) as server:
        core = ServerCore(server.context)
        sessions = HttpSessions(core, key=b"k" * 32, max_sessions=9, idle_seconds=60, on_connected=fail)
        with pytest.raises(RuntimeError, match="could not begin"):
            await sessions.create(LOCAL_USER)
        await sessions.close()
