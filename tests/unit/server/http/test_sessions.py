"""Sessions that cannot begin, sessions whose removal from the store failed, and sessions that several principals
try to restore at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from kit.servers.local_server import LocalServer
from kit.system.waiting import until
from parley.errors import StoreFailed
from parley.server.context import LOCAL_USER, PAGE_USER, Principal, Role
from parley.server.http.sessions import HttpSessions
from parley.server.serve import ClientConnection, ServerCore
from parley.stores.memory import MemoryStore
from parley.wire.mcp import ClientCapabilities, Implementation, InitializeParams


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


OWNER = Principal(name="phone", role=Role.DRIVER, token_id="1")
INITIALIZE = InitializeParams(
    protocol_version="2025-11-25",
    capabilities=ClientCapabilities(),
    client_info=Implementation(name="test", version="1"),
)


@pytest.mark.promises("http.session")
@pytest.mark.parametrize(
    ("owner", "other"),
    [
        (OWNER, Principal(name="laptop", role=Role.DRIVER, token_id="2")),
        (OWNER, replace(OWNER, sign_in="aa")),
        (replace(OWNER, sign_in="aa"), OWNER),
        (replace(PAGE_USER, sign_in="aa"), replace(PAGE_USER, sign_in="bb")),
    ],
)
async def test_a_stored_session_is_restored_only_for_its_principal(
    home: str, owner: Principal, other: Principal
) -> None:
    store = MemoryStore()
    async with LocalServer(home) as server:
        before, after = (
            HttpSessions(ServerCore(server.context), key=b"k" * 32, max_sessions=9, idle_seconds=60, store=store)
            for _ in range(2)
        )
        session = await before.create(owner)
        session.client.session.initialize_params = INITIALIZE
        assert await before._save(session) is None
        wrong, right, again = await asyncio.gather(*(after.find(session.id, one) for one in (other, owner, other)))
        later = await after.find(session.id, other)

        assert (wrong, again, later) == (None, None, None)
        assert right is not None
        assert right.principal == owner
        await before.close()
        await after.close()
