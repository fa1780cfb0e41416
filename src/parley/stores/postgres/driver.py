"""The parts of asyncpg that the store uses, with types, and functions that classify errors from asyncpg.

asyncpg is imported when the first connection is opened, because most processes do not use PostgreSQL.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakSet

from parley.common.os_errors import OUT_OF_MEMORY, limit_reached
from parley.errors import ParleyError, StoreFailed

__all__ = [
    "Connection",
    "connect",
    "execute_until",
    "is_lost",
    "is_permanent",
    "is_rolled_back",
    "reason_of",
    "refusal_of",
    "replicated",
]

T = TypeVar("T")

STATEMENT_SECONDS: Final = 120
"""The time, in seconds, after which the database server cancels a statement. Parley uses shorter deadlines while it
is connected; this limit ends statements whose client has disconnected.
"""

LOCK_SECONDS: Final = 10
"""The time, in seconds, after which the database server cancels a statement that waits for a lock. Parley uses
shorter deadlines while it is connected; this limit ends waits whose client has disconnected.
"""

SETTINGS: Final = {
    "application_name": "parley",
    "search_path": "parley, public",
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{STATEMENT_SECONDS}s",
    "jit": "off",
    "client_encoding": "UTF8",
}


class Connection(Protocol):
    """A connection of asyncpg. A row is a sequence of values."""

    async def execute(self, query: str, *args: object) -> str: ...

    async def fetch(self, query: str, *args: object) -> list[Sequence[Any]]: ...

    async def fetchrow(self, query: str, *args: object) -> Sequence[Any] | None: ...

    async def fetchval(self, query: str, *args: object) -> Any: ...

    async def add_listener(self, channel: str, callback: Callable[[Any, int, str, Any], None]) -> None: ...

    def add_log_listener(self, callback: Callable[[Any, Any], None]) -> None: ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...

    def transaction(self) -> AbstractAsyncContextManager[object]: ...

    def get_server_pid(self) -> int: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...


async def connect(url: str, *, seconds: float) -> Connection:
    """Open a connection to the database at `url`. If the URL names several hosts, connect to all hosts at the same
    time, and use the first host that accepts writes. A host that does not respond therefore causes no delay.

    Raises:
        ImportError: asyncpg is not installed.
        Exception: no host accepted the connection within `seconds`. The error comes from asyncpg or the OS.
    """
    connection: Connection | None = None
    attempts = [asyncio.ensure_future(_connect_to(one, seconds)) for one in _each_host(url)]
    try:
        for attempt in asyncio.as_completed(attempts):
            try:
                connection = await attempt
            except Exception:
                continue  # another host may accept the connection
            return connection
        errors = [error for one in attempts if (error := one.exception()) is not None]
        raise next((error for error in errors if not is_permanent(error)), errors[0])
    finally:
        for one in attempts:
            one.add_done_callback(lambda done: _discard(done, unless=connection))
            one.cancel()


def _discard(attempt: asyncio.Future[Connection], *, unless: Connection | None) -> None:
    """If `attempt` has opened a connection other than `unless`, terminate this connection."""
    if not attempt.cancelled() and attempt.exception() is None and attempt.result() is not unless:
        attempt.result().terminate()


async def _connect_to(url: str, seconds: float) -> Connection:
    import asyncpg

    try:
        connection: Connection = await asyncpg.connect(
            url, timeout=seconds, server_settings=SETTINGS, target_session_attrs="read-write"
        )
    except ValueError as error:
        if isinstance(error, (OSError, asyncpg.InterfaceError)):  # TLS errors, or errors from asyncpg itself
            raise
        # The text of the error may contain a part of the URL.
        raise asyncpg.ClientConfigurationError("the URL or a variable such as PGPORT is invalid") from None
    connection.add_log_listener(_note_cancelled_wait)
    return connection


_WARNING: Final = "01000"
"""The SQLSTATE of the warning that PostgreSQL sends if a commit has stopped waiting for a standby because the wait
was cancelled.

Other warnings have the same SQLSTATE. The text of the warning cannot be used to recognise it, because the text
depends on the language of the server.
"""

_unreplicated: Final[WeakSet[Any]] = WeakSet()
"""The connections whose last commits may not have reached the synchronous standby."""


def _note_cancelled_wait(connection: Any, message: Any) -> None:
    if message.sqlstate == _WARNING:
        _unreplicated.add(connection)


async def execute_until(until: float, connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    """Execute the statements of `work` on `connection`, and return the result of `work`. If the statements are not
    finished at the time `until` on the event loop's clock, terminate the connection.

    This function never cancels a statement: if a commit that waits for a standby is cancelled, other processes see
    the transaction although no standby has it. If an administrator cancels the wait for a standby, this function
    waits again.

    Raises:
        TimeoutError: the statements were not finished at the time `until`, and the connection was terminated.
        Exception: a statement failed.
    """
    from asyncpg import QueryCanceledError

    async def confirmed() -> T:
        result = await work
        while connection in _unreplicated:
            _unreplicated.discard(connection)
            try:
                await replicated(connection)
            except QueryCanceledError:
                _unreplicated.add(connection)
        return result

    task = asyncio.ensure_future(confirmed())
    try:
        if (await asyncio.wait((task,), timeout=max(0.0, until - asyncio.get_running_loop().time())))[0]:
            return task.result()
        raise TimeoutError
    finally:
        if not task.done():
            connection.terminate()
            await asyncio.gather(task, return_exceptions=True)


def _each_host(url: str) -> list[str]:
    """Split a URL that names several hosts into one URL for each host."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{host}")) for host in hosts.split(",")]


async def replicated(connection: Connection) -> None:
    """Wait until the synchronous standbys, if there are any, have received all earlier transactions.

    A transaction whose connection was lost may be visible on the primary before a standby has it. This function
    therefore commits another writing transaction, and this commit waits for the standby.
    """
    await connection.execute("SELECT pg_logical_emit_message(true, 'parley', '')")


def is_lost(error: BaseException, connection: Connection | None) -> bool:
    """Return whether `error` means that `connection` is lost. If `connection` is None, return whether `error` means
    that no connection could be opened.

    After the loss of a connection, the last statement may or may not have been committed.
    """
    from asyncpg import exceptions

    if isinstance(error, (OSError, TimeoutError, EOFError)):  # an `OSError` may be an error of TLS
        return True
    lost = (
        exceptions.PostgresConnectionError,
        exceptions.AdminShutdownError,
        exceptions.CrashShutdownError,
        exceptions.CannotConnectNowError,
        exceptions.IdleSessionTimeoutError,
        exceptions.TooManyConnectionsError,
        exceptions.ReadOnlySQLTransactionError,  # the server has become a standby
        exceptions.TargetServerAttributeNotMatched,
    )
    if isinstance(error, lost):
        return True
    if connection is not None:
        # A statement whose connection is terminated may also return nothing, so that any error can follow.
        return connection.is_closed()
    return isinstance(error, (exceptions.InterfaceError, exceptions.InternalClientError))


def is_permanent(error: BaseException) -> bool:
    """Return whether further attempts to connect will fail until a person changes the settings or the server."""
    from asyncpg import exceptions

    permanent = (
        ImportError,
        ssl.SSLCertVerificationError,
        exceptions.InvalidAuthorizationSpecificationError,  # this class includes the error for a wrong password
        exceptions.InvalidCatalogNameError,
        exceptions.InsufficientPrivilegeError,
        exceptions.ClientConfigurationError,
    )
    return isinstance(error, permanent)


def is_rolled_back(error: BaseException) -> bool:
    """Return whether the server has rolled the transaction back because of a conflict with another transaction.

    After such an error, the caller may execute the transaction again.
    """
    from asyncpg import exceptions

    return isinstance(error, exceptions.TransactionRollbackError)


def refusal_of(error: Exception) -> Exception:
    """Convert `error`, which was raised by a statement that had no effect, to `StoreFailed`. Return a `ParleyError`
    or an unknown error unchanged.
    """
    if isinstance(error, ParleyError):
        return error
    from asyncpg import PostgresError

    if isinstance(error, MemoryError):
        return StoreFailed(OUT_OF_MEMORY)
    if isinstance(error, PostgresError):
        return StoreFailed(reason_of(error))
    why = limit_reached(error)
    return error if why is None else StoreFailed(why)


def reason_of(error: BaseException) -> str:
    """Return a description of an error on one line. The description contains no password, because asyncpg never
    puts the password into a message.
    """
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not accepted: {error.verify_message}"
    if type(error).__name__ == "TargetServerAttributeNotMatched":
        return "the server does not accept writes"
    text = " ".join(str(error).split())
    if text.startswith("unexpected connection_lost()"):
        return "the connection was closed"
    return text or type(error).__name__
