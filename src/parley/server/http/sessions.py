"""The sessions of HTTP clients.

A session lasts from `initialize` until the client deletes it or is inactive for too long. Sessions are stored, so
that they continue after a restart of the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from parley.common.limited_log import LimitedLog
from parley.errors import ParleyError, ShuttingDown, StoreError, VisibleError
from parley.ports.availability import AVAILABLE
from parley.ports.store import Store, StoredSession
from parley.server.context import Principal, Role
from parley.server.errors import SessionNotSaved, TooManyStreams
from parley.server.http.errors import SessionNotRemoved, SessionNotRestored, StreamEndNotSaved, TooManySessions
from parley.server.http.event_ids import EventIds
from parley.server.http.replies import first_of
from parley.server.http.session import HttpSession
from parley.server.http.session_state import (
    MAX_STATE_BYTES,
    SessionState,
    decode_state,
    encode_state,
    is_same_state,
    merge_states,
    session_digest,
)
from parley.server.serve import ClientConnection, ServerCore
from parley.server.session import StreamState

__all__ = ["HttpSessions"]

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 30.0
"""The interval in seconds between checks for expired sessions."""
COMPARE_SECONDS: Final = 2.0
"""The interval, in seconds, at which this server reads the stored state of the sessions in use. Other servers that
share the store may have changed or ended these sessions.
"""
USE_SECONDS: Final = 300.0
"""The minimum time in seconds between two writes of the time when a session was last used."""
MAX_ATTEMPTS: Final = 5
"""The maximum number of attempts to store a session while other nodes change the same session."""
MAX_STREAMS: Final = 600
"""The maximum number of streams of one session. An event id contains the positions in all streams of the session,
and a client sends it in a header. The limit keeps this header short enough.
"""


T = TypeVar("T")


class HttpSessions:
    """The sessions of all HTTP clients of this process."""

    def __init__(
        self,
        core: ServerCore,
        *,
        key: bytes,
        max_sessions: int,
        idle_seconds: float,
        store: Store | None = None,
        is_shared: bool = False,
        on_connected: Callable[[ClientConnection], None] = lambda client: None,
        is_valid: Callable[[Principal], bool] = lambda principal: True,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an object without sessions.

        `key` signs event ids. `max_sessions` is the maximum number of sessions of the server. `idle_seconds` is the
        time for which a session without requests and streams is kept. `store` contains the stored sessions; if it
        is None, sessions end when the server exits. `is_shared` is True if other servers use the same store and the
        same sessions at the same time. `on_connected` is called when a session begins. `is_valid`
        returns whether the token of a principal is valid.
        """
        self._store, self._is_shared, self._wall_clock = store, is_shared and store is not None, wall_clock
        self._log = LimitedLog(log)
        self._restoring: dict[tuple[str, Principal], asyncio.Task[HttpSession | None]] = {}
        """The attempts to restore a session from the store, by the id of the session and the principal that has
        sent the id. The attempt of a principal that does not own the session must not affect the owner.
        """
        self._removing: set[bytes] = set()
        """The digests of the sessions that have ended but may still be in the store."""
        self._core, self._max_sessions, self._idle_seconds = core, max_sessions, idle_seconds
        self._ids = EventIds(key)
        self._on_connected, self._is_valid, self._now = on_connected, is_valid, now
        self._sessions: dict[str, HttpSession] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._check: asyncio.TimerHandle | None = None
        self._comparing: asyncio.Task[None] | None = None
        """The task that compares the sessions in use with the store at regular intervals; None if no session has
        begun or the store is not shared.
        """

    def __len__(self) -> int:
        return len(self._sessions)

    def apply(self, *, max_sessions: int, idle_seconds: float) -> None:
        """Use new limits. Existing sessions stay open, even if their number exceeds `max_sessions`."""
        self._max_sessions, self._idle_seconds = max_sessions, idle_seconds

    async def create(self, principal: Principal) -> HttpSession:
        """Begin a session for the principal, and return the session.

        Raises:
            TooManySessions: the server or the principal has the maximum number of sessions, and the principal has
                no idle session.
        """
        session = HttpSession(principal, self._ids)
        await self._begin(session)
        return session

    async def _begin(self, session: HttpSession) -> None:
        self.expire()
        if len(self._sessions) >= self._max_sessions or self._has_reached_limit(session.principal):
            self._end_longest_idle(session.principal)
        session.idle_since = self._now()
        self._sessions[session.id] = session
        serving = self._start(self._serve(session))
        if self._is_shared and self._comparing is None:
            self._comparing = asyncio.get_running_loop().create_task(self._compare_regularly())
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_again)
        await first_of(session.wait_connected(), _ended(serving))
        if not session.is_connected:
            raise RuntimeError("an HTTP session could not begin")
        if not self._is_valid(session.principal):  # the token was revoked after the request had been accepted
            self.delete(session)

    def __contains__(self, session_id: str) -> bool:
        """Return whether this process has the session with the id `session_id` in memory."""
        return session_id in self._sessions

    async def find(self, session_id: str, principal: Principal) -> HttpSession | None:
        """Return the session of `principal` that has the id `session_id`; None if the principal has no session with
        this id.

        A session of an earlier server process is restored from the store. If the store is shared, this method first
        adopts the changes that other servers have made to the session.

        Raises:
            TooManySessions: the session cannot be restored, because the server or the principal has the maximum
                number of sessions, and the principal has no idle session.
            SessionNotRestored: the session or one of its conversations cannot be read.
        """
        restoring = self._restoring.get((session_id, principal))
        session = None if restoring is not None else self._sessions.get(session_id)
        if session is None:
            session = await asyncio.shield(restoring or self._restore_soon(session_id, principal))
        if session is None or session.principal != principal:
            return None
        session.idle_since = self._now()
        if restoring is None and self._is_shared and self._core.context.availability == AVAILABLE:
            with session.in_use():
                await asyncio.shield(self._start(self._compare([session])))
            if self._sessions.get(session_id) is not session:
                return None
        return session

    def delete(self, session: HttpSession) -> asyncio.Task[None] | None:
        """End the session. Its turns continue.

        Return a task that removes the session from the store. Return None if the session had already ended, if
        there is no store, or if the server is shutting down.
        """
        if self._forget(session) and self._stores:
            self._removing.add(session.digest)
            return self._start(self._remove(session))
        return None

    def _forget(self, session: HttpSession) -> bool:
        """End the session in this process without changing the store. Return False if the session had already
        ended, and True otherwise.
        """
        is_known = self._sessions.pop(session.id, None) is not None
        session.end()
        return is_known

    async def remove(self, session: HttpSession) -> None:
        """Remove the session from the store, and then end the session. Its turns continue.

        Raises:
            SessionNotRemoved: the store failed. The session is still open.
        """
        if self._stores:
            error = await asyncio.shield(self._start(self._remove_first(session)))
            if error is not None:
                raise SessionNotRemoved(error)
        else:
            self.delete(session)

    async def save_ended_streams(self, session: HttpSession) -> None:
        """Wait until the streams that the client has ended are removed from the stored session.

        Raises:
            StreamEndNotSaved: the session cannot be stored. The server tries again later.
        """
        await session.saved()
        if not self._has_stored_end(session):
            return
        self._save_soon(session)  # an earlier attempt to store the session has failed
        await session.saved()
        if self._has_stored_end(session):
            raise StreamEndNotSaved

    def _has_stored_end(self, session: HttpSession) -> bool:
        """Return whether the stored session may contain a stream that the client has ended."""
        if not self._stores or session.id not in self._sessions or session.client.session.has_left:
            return False
        opening = {stream.conversation for stream in session.opening}
        return not all(map(session.client.has_stream, session.stored_streams - opening))

    @property
    def is_shutting_down(self) -> bool:
        return self._core.is_shutting_down

    # --- the store -----------------------------------------------------------------------

    @property
    def _stores(self) -> bool:
        """True if changes to sessions are stored: there is a store, and the server is not shutting down."""
        return self._store is not None and not self._core.is_shutting_down

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _restore_soon(self, session_id: str, principal: Principal) -> asyncio.Task[HttpSession | None]:
        key = session_id, principal
        task = self._restoring[key] = self._start(self._restore(session_id, principal))
        task.add_done_callback(lambda _: self._restoring.pop(key, None))
        return task

    async def _restore(self, session_id: str, principal: Principal) -> HttpSession | None:
        """Restore a session of an earlier server process from the store, and return the session. Return None if the
        principal has no session with the id `session_id` in the store, or if the session has expired.

        Raises:
            SessionNotRestored: the session or one of its conversations cannot be read.
            TooManySessions: the server or the principal has the maximum number of sessions, and the principal has
                no idle session.
        """
        digest = session_digest(session_id)
        if self._store is None or not self._stores or digest in self._removing:
            return None
        try:
            stored = await self._store.session(digest)
        except StoreError as error:
            raise SessionNotRestored(error) from error
        if stored is None or stored.principal != principal.session_owner:
            return None
        if self._wall_clock() - stored.used_at > self._idle_seconds + USE_SECONDS:
            return None
        state = decode_state(stored.data)
        if state is None:
            return None
        session = HttpSession(principal, self._ids, session_id)
        session.stored_at = stored.used_at
        await self._begin(session)
        session.is_restoring = True
        try:
            # mark the session as in use, because a session without streams could be ended to make room for another
            with session.in_use():
                await session.client.restore(
                    state.initialize,
                    log_level=state.log_level,
                    streams=state.streams,
                    last_stream=state.last_stream,
                    resources=state.resources,
                    has_listed_resources=state.has_listed_resources,
                )
        except BaseException as error:
            self._sessions.pop(session.id, None)  # the session remains in the store, complete, for the next attempt
            session.cut_off()
            if isinstance(error, ParleyError):
                raise SessionNotRestored(error) from error
            raise
        session.is_restoring = False
        session.saved_state = session.base_state = session.stored_state = state
        session.stored_data = session.adopted_data = stored.data
        session.stored_streams = {one.conversation for one in state.streams}
        session.client.session.outlives_server = True
        # The token of the session may have been revoked in the meantime.
        return session if session.id in self._sessions else None

    @asynccontextmanager
    async def _saved_with(self, session: HttpSession, stream: StreamState) -> AsyncIterator[StreamState]:
        """Store the session together with a new stream, and yield the stream. The caller opens the stream inside
        the context. If another node has already used the number of `stream`, the yielded stream has a different
        number.

        Raises:
            TooManyStreams: the session has the maximum number of streams.
            ShuttingDown: the server is shutting down.
            SessionNotSaved: the session cannot be stored.
        """
        if self._store is None:
            yield stream
            return
        if not self._stores:
            raise ShuttingDown
        streams = {one.conversation for one in (*session.client.streams, *session.opening, stream)}
        if len(streams) > MAX_STREAMS:
            raise TooManyStreams(MAX_STREAMS)
        session.opening.append(stream)
        try:
            error = await asyncio.shield(self._start(self._save(session)))
            for _ in range(MAX_ATTEMPTS):
                if not (isinstance(error, SessionNotSaved) and error.is_number_taken):
                    break
                place = session.opening.index(stream)
                stream = session.opening[place] = replace(stream, number=session.client.session.next_stream())
                error = await asyncio.shield(self._start(self._save(session)))
            if error is not None:
                raise error
            yield stream
        finally:
            session.opening.remove(stream)
            session.is_changed = True
        self._save_soon(session)  # the request may have been cancelled in the meantime

    def _save_soon(self, session: HttpSession) -> None:
        if self._stores and not session.is_restoring and not session.client.session.has_left:
            session.is_changed = True
            if session.saving is None:
                session.saving = self._start(self._save_changes(session))

    async def _save_changes(self, session: HttpSession) -> None:
        try:
            while session.is_changed:
                if (error := await self._save(session)) is not None:
                    self._log.warning("a change to a session cannot be stored: %s", error)
                    break  # `_check_again` stores the session later
        finally:
            session.saving = None

    async def _save(self, session: HttpSession) -> VisibleError | None:
        """Write the current state of the session to the store, unless the store already contains this state.

        If the write fails, return the error; otherwise, return None.
        """
        assert self._store is not None
        async with session.save_lock:
            session.is_changed = False
            client = session.client.session
            if session.id not in self._sessions or not self._stores or client.has_left:
                return None
            if (state := self._state(session)) is None:
                return None
            if state == session.saved_state:
                client.outlives_server = True
                return None
            client.outlives_server = True
            streams = {stream.conversation for stream in state.streams}
            session.stored_streams |= streams
            try:
                error = await self._write(session, state)
            except StoreError as failure:
                session.is_changed, session.saved_state = True, None
                return SessionNotSaved(str(failure))
            if error is None:
                session.saved_state = session.base_state = state
                session.stored_streams = streams
            return error

    async def _write(self, session: HttpSession, state: SessionState) -> SessionNotSaved | None:
        """Combine `state` with the changes that other nodes have made to the session, and write the combined state
        to the store. Return None if the state was written. Otherwise, return an error that contains the reason, for
        example that the session has ended.

        Raises:
            StoreError: the store failed.
        """
        assert self._store is not None
        client = session.client.session
        for _ in range(MAX_ATTEMPTS):
            merged: SessionState | None = state
            if (theirs := session.stored_state) is not None:
                base = session.base_state or replace(theirs, streams=(), resources=())
                merged = merge_states(state, base=base, stored=theirs, own_streams=session.stored_streams)
                client.last_stream = max(client.last_stream, theirs.last_stream)
            if merged is None:
                return SessionNotSaved(
                    "another node has changed the session at the same time", is_number_taken=True
                )
            data = encode_state(merged)
            if data is None:
                # If a stream is being opened, only this stream is refused, and the stored session is still
                # complete.
                if not session.opening:
                    client.outlives_server = False
                return SessionNotSaved(f"its state has more than {MAX_STATE_BYTES} bytes")
            now = self._wall_clock()
            stored = StoredSession(
                digest=session.digest, principal=session.principal.session_owner, data=data, used_at=now
            )
            if await self._store.save_session(stored, replacing=session.stored_data):
                if session.adopted_data == session.stored_data:
                    session.adopted_data = data
                session.stored_at, session.stored_state, session.stored_data = now, merged, data
                return None
            found = await self._store.session(session.digest)
            if found is None:
                self._forget(session)  # another node has ended the session
                return SessionNotSaved("the session has ended")
            if (found_state := decode_state(found.data)) is None:
                return SessionNotSaved("another version of Parley has changed the session")
            session.stored_data, session.stored_state = found.data, found_state
        return SessionNotSaved("other nodes change the session all the time")

    def _state(self, session: HttpSession) -> SessionState | None:
        client = session.client
        if client.session.initialize_params is None:
            return None
        streams = {one.conversation: one for one in (*client.streams, *session.opening)}
        return SessionState(
            initialize=client.session.initialize_params,
            log_level=client.session.log_level,
            streams=tuple(streams.values()),
            last_stream=client.session.last_stream,
            resources=client.subscriptions.uris,
            has_listed_resources=client.subscriptions.has_listed,
        )

    async def _remove(self, session: HttpSession) -> None:
        assert self._store is not None
        try:
            async with session.save_lock:
                await self._store.remove_sessions([session.digest])
            self._removing.discard(session.digest)
        except StoreError as error:
            self._log.warning("a session cannot be removed from the store: %s", error)

    async def _remove_first(self, session: HttpSession) -> StoreError | None:
        """Remove the session from the store, and then end the session.

        If the store fails, do not end the session, and return the error. Otherwise, return None.
        """
        assert self._store is not None
        async with session.save_lock:
            try:
                await self._store.remove_sessions([session.digest])
            except StoreError as error:
                session.saved_state = None
                self._save_soon(session)
                return error
            self._forget(session)
            return None

    async def _store_uses(self) -> None:
        """Store the times when the sessions were last used, and remove ended and expired sessions from the
        store.
        """
        assert self._store is not None
        now = self._wall_clock()
        used = {
            one.digest: now - (self._now() - one.idle_since)
            for one in self._sessions.values()
            if now - one.stored_at >= USE_SECONDS
        }
        for session in self._sessions.values():
            if session.digest in used:
                session.stored_at = now
        try:
            if removing := set(self._removing):  # an earlier attempt may have failed
                await self._store.remove_sessions(list(removing))
                self._removing -= removing
            if used:
                await self._store.note_sessions_used(used)
            await self._store.remove_unused_sessions(since=now - self._idle_seconds - 2 * USE_SECONDS)
        except StoreError as error:
            self._log.warning("the last use of sessions cannot be stored: %s", error)

    # --- changes by other servers -----------------------------------------------------------

    async def _compare_regularly(self) -> None:
        """At regular intervals, read the stored state of the sessions in use, and adopt the changes that other
        servers have made to these sessions.
        """
        while True:
            await asyncio.sleep(COMPARE_SECONDS)
            used = [one for one in self._sessions.values() if not one.is_idle]
            if used and self._stores and self._core.context.availability == AVAILABLE:
                try:
                    await asyncio.shield(self._start(self._compare(used)))
                except Exception:
                    log.exception("sessions cannot be compared with the store")

    async def _compare(self, sessions: Collection[HttpSession]) -> None:
        """Adopt the changes that other servers have made to the sessions. If the store fails, log a warning."""
        assert self._store is not None
        known = {one: hashlib.sha256(one.adopted_data).digest() for one in sessions if one.adopted_data is not None}
        if not known or not self._stores:
            return
        try:
            revisions = await self._store.session_revisions([one.digest for one in known])
        except StoreError as error:
            self._log.warning("sessions cannot be compared with the store: %s", error)
            return
        for session, revision in known.items():
            if revisions.get(session.digest) != revision:
                await self._adopt(session)

    async def _adopt(self, session: HttpSession) -> None:
        """Adopt the stored state of the session: end the session if it is not stored, and otherwise open and end
        streams and subscriptions. Changes that this process has not stored yet are kept.
        """
        assert self._store is not None
        async with session.save_lock:
            if not self._is_adoptable(session):
                return
            try:
                found = await self._store.session(session.digest)
                if found is None:
                    self._forget(session)
                    return
                if found.data == session.adopted_data or not self._is_adoptable(session):
                    return
                if (stored := decode_state(found.data)) is not None:
                    await self._apply_state(session, stored, found.data)
            except ParleyError as error:
                self._log.warning("a change to a session by another server cannot be adopted: %s", error)

    def _is_adoptable(self, session: HttpSession) -> bool:
        """Return whether the session is open and stored."""
        return (
            self._sessions.get(session.id) is session
            and self._stores
            and not session.is_restoring
            and not session.client.session.has_left
            and session.base_state is not None
            and session.stored_data is not None
        )

    async def _apply_state(self, session: HttpSession, stored: SessionState, data: bytes) -> None:
        """Open and end streams and subscriptions, so that the session has the state `stored` and the changes that
        this process has not stored yet. `data` is the encoded form of `stored`.

        Raises:
            ParleyError: a conversation cannot be read.
        """
        client, base = session.client, session.base_state
        own = self._state(session)
        assert base is not None
        if own is None:
            return
        merged = merge_states(own, base=base, stored=stored, own_streams=session.stored_streams)
        if merged is None:
            return  # `_saved_with` gives the new stream another number
        is_changed = not is_same_state(own, base)
        client.session.log_level = merged.log_level
        client.session.last_stream = max(client.session.last_stream, merged.last_stream)
        opening = {one.conversation for one in session.opening}
        before = {one.conversation: one for one in own.streams if one.conversation not in opening}
        after = {one.conversation: one for one in merged.streams if one.conversation not in opening}
        for conversation, stream in before.items():
            if after.get(conversation) != stream:
                client.close_stream(conversation)
        await client.open_streams([one for key, one in after.items() if before.get(key) != one])
        for uri in set(own.resources) - set(merged.resources):
            client.subscriptions.unsubscribe(uri)
        await client.subscriptions.restore(
            [uri for uri in merged.resources if uri not in own.resources],
            session.principal,
            has_listed=merged.has_listed_resources,
        )
        session.stored_state = session.base_state = stored
        session.stored_data = session.adopted_data = data
        session.stored_streams = {one.conversation for one in stored.streams}
        session.saved_state = None if is_changed else self._state(session)
        if is_changed:
            self._save_soon(session)

    # --- ending ----------------------------------------------------------------------------

    def end_all_of(self, principal: Principal) -> None:
        """End all sessions of the principal immediately, because its token is no longer valid or its sign-in has
        ended. The turns of the sessions continue.
        """
        for session in tuple(self._sessions.values()):
            if session.principal.belongs_to(principal):
                session.cut_off()
                self.delete(session)

    def expire(self) -> None:
        """End the sessions whose clients have been inactive for at least `idle_seconds`."""
        now = self._now()
        for session in tuple(self._sessions.values()):
            if not session.is_idle:
                session.idle_since = now
            elif now - session.idle_since >= self._idle_seconds:
                if self._is_shared:  # another server may use the session; `_store_uses` removes unused sessions
                    self._forget(session)
                else:
                    self.delete(session)

    async def close(self) -> None:
        """End all sessions, and wait until their tasks have finished. Call this method after `ServerCore.shutdown`
        has returned.
        """
        if self._check is not None:
            self._check.cancel()
        if self._comparing is not None:
            self._comparing.cancel()
        for session in tuple(self._sessions.values()):
            self.delete(session)
            session.stop_answering()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, session: HttpSession) -> None:
        def connected(client: ClientConnection) -> None:
            self._on_connected(client)
            session.connected(client)
            client.session.on_changed(self, lambda: self._save_soon(session))
            client.session.saved_with = lambda stream: self._saved_with(session, stream)

        try:
            await self._core.serve_client(session, session.principal, connected=connected)
        except Exception:
            log.exception("an HTTP session failed")
        finally:
            self.delete(session)
            session.stop_answering()

    def _end_longest_idle(self, principal: Principal) -> None:
        idle = [one for one in self._sessions.values() if one.is_idle and one.principal.key == principal.key]
        if not idle:
            raise TooManySessions
        longest = min(idle, key=lambda one: one.idle_since)
        if self._is_shared and self._stores:
            self._forget(longest)
            self._start(self._remove_if_unused(longest))
        else:
            self.delete(longest)

    async def _remove_if_unused(self, session: HttpSession) -> None:
        """Remove the session from the store, unless another server has used it later than this process."""
        assert self._store is not None
        used_at = self._wall_clock() - (self._now() - session.idle_since)
        try:
            found = await self._store.session(session.digest)
            if found is not None and found.used_at <= used_at + CHECK_SECONDS:
                await self._store.remove_sessions([session.digest])
        except StoreError as error:
            self._log.warning("a session cannot be removed from the store: %s", error)

    def _has_reached_limit(self, principal: Principal) -> bool:
        """Return whether the principal has reached its limit: half of the maximum number of sessions. Return False
        for an admin, who has no such limit.
        """
        if principal.role is Role.ADMIN:
            return False
        return sum(one.principal.key == principal.key for one in self._sessions.values()) >= max(
            1, self._max_sessions // 2
        )

    def _check_again(self) -> None:
        self.expire()
        if self._stores:
            self._start(self._store_uses())
            for session in self._sessions.values():
                if session.is_changed:
                    self._save_soon(session)
        waits = bool(self._sessions or self._removing)
        self._check = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check_again) if waits else None


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
