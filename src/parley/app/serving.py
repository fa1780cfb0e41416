"""The server process: creates the parts of a server, serves a client, and shuts down."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from parley.app.allocator import release_memory, return_large_blocks
from parley.app.available_memory import why_too_large
from parley.app.commands import sandboxed_commands
from parley.app.garbage_collection import collect_rarely, skip_final_collection
from parley.app.home_key import home_key
from parley.app.lazy_workspaces import LazyWorkspaces
from parley.app.node_membership import NodeMembership
from parley.app.signals import SIGNALS, ignore_signals
from parley.app.stores import on_changes, server_store
from parley.app.system_clock import SystemClock
from parley.app.webhook import WebhookSender
from parley.common.threads import checked_pool, start_thread
from parley.config.load import Loader
from parley.config.types import ServeSettings
from parley.config.working_directory import working_directory
from parley.errors import ConfigError
from parley.models import model_opener
from parley.models.http import Http
from parley.peers import UnixPeers
from parley.ports.availability import AVAILABLE, ReportsAvailability
from parley.ports.nodes import Nodes
from parley.ports.store import Store
from parley.ports.workspaces import Workspaces
from parley.runtime.registry import ConversationRegistry
from parley.server.context import ServerContext
from parley.server.peering import PeerTransport, serve_peer
from parley.server.serve import ServerCore, Transport
from parley.stores.sqlite.files import log_bytes
from parley.tools import AgentTools
from parley.tools.patch.threads import all_written
from parley.tools.rlimits import raise_own_limit
from parley.transports.descriptors import DescriptorTransport
from parley.wire.ids import ConversationId
from parley.wire.nodes import NODE_VERSIONS
from parley.wire.principals import LOCAL
from parley.wire.tools import AttentionState

if TYPE_CHECKING:
    from parley.app.metrics import ServerMetrics
    from parley.app.otel import OpenTelemetry
    from parley.app.push import PushSender
    from parley.server.http.sign_ins import SignIns

__all__ = ["Server", "prepare_process", "report_unknown_keys", "serve_stdio"]

log = logging.getLogger(__name__)

_MAX_REPORTED: Final = 20
"""The maximum number of unknown keys in config.toml that are logged. The number is limited because another program
may use the same file, and all settings of that program are unknown keys.
"""

SECOND_INTERRUPT_SECONDS: Final = 2.0
"""The time, in seconds, after a Ctrl-C during which another Ctrl-C shuts the server down instead of interrupting
running turns.
"""


WARM_UP_SECONDS: Final = 0.25
"""The delay, in seconds, between the first response to the client and the loading of the HTTP library, unless a
turn needs the library earlier. Loading the library immediately would delay the first requests from the client.
"""


class Server:
    """A server with all its parts except the transport."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        server_dir: str,
        overrides: Sequence[str] = (),
        is_ephemeral: bool = False,
        is_resident: bool = False,
        prepare_process: Callable[[], None] = lambda: None,
        node_versions: Sequence[str] = NODE_VERSIONS,
    ) -> None:
        """Create the parts of the server. Nothing is read, written or started yet.

        An ephemeral server (`is_ephemeral`) stores nothing. A resident server (`is_resident`) limits the number of
        running commands, because any number of clients may begin turns. A resident server also signs request states
        and event ids, which clients send back, with the key of the nodes or of the home directory.
        `prepare_process` is called after the first response to the client. `node_versions` are the supported
        versions of the protocol between nodes, the newest first.

        Raises:
            ConfigError: the overrides, the home directory, the URL of the database or the token of the nodes cannot
                be used.
        """
        clock = SystemClock()
        loader = Loader(environ=environ, server_dir=server_dir, overrides=overrides)
        self.loader, self._http, self._prepare_process = loader, Http(), prepare_process
        self._is_resident = is_resident
        self._warming: asyncio.TimerHandle | None = None
        self._commands = sandboxed_commands(
            lambda: _home(loader), warns=True, max_commands=lambda: _max_commands(loader) if is_resident else 0
        )
        self._tools = AgentTools(commands=self._commands)

        async def serve_other(transport: PeerTransport, version: str = "") -> None:
            await serve_peer(transport, self._context, version)

        self._webhook = WebhookSender(loader.webhook, self._http, clock, environ)
        self._clock, self._environ = clock, environ
        self._push: PushSender | None = None
        self._metrics: ServerMetrics | None = None
        self._otel: OpenTelemetry | None = None
        self.store: Store = _memory_store() if is_ephemeral else server_store(loader)
        local = UnixPeers(lambda: loader.home, serve_other)
        self.nodes: NodeMembership | None = None
        """The cluster membership of this process; None if the server has no token for nodes or no PostgreSQL
        database.
        """
        if isinstance(self.store, Nodes) and (token := loader.node_token()) is not None:
            self.nodes = NodeMembership(self.store, local, loader, token, serve=serve_other, versions=node_versions)
        self.conversations = ConversationRegistry(
            peers=None if is_ephemeral else local if self.nodes is None else self.nodes.peers,
            placement=self.nodes,
            workspaces=self._workspaces(environ),
            store=self.store,
            choose=loader.choose,
            store_settings=loader.store_settings,
            clock=clock,
            open_model=model_opener(http=self._http, clock=clock),
            tools=self._tools,
            commands=self._commands,
            release_memory=release_memory,
            has_other_clients=lambda: len(self.core.clients) > 1,
            on_attention=self._on_attention,
            continues_queues=is_resident,
        )
        on_changes(self.store, self.conversations.changed)
        self._context = ServerContext(
            conversations=self.conversations,
            loader=loader,
            on_initialized=self._on_initialized,
            find_key=self._find_key if is_resident else None,
        )
        self.core = ServerCore(self._context)
        if isinstance(self.store, ReportsAvailability):
            self.store.on_availability(self.core.on_availability)

    def _workspaces(self, environ: Mapping[str, str]) -> Workspaces:
        nodes = self.nodes
        return LazyWorkspaces(
            self._commands,
            self.loader.workspace_settings,
            environ,
            node=lambda: None if nodes is None else nodes.node_id,
        )

    def _find_key(self) -> bytes:
        """Return the key with which the server signs request states and event ids, which clients send back. This is
        the key of the nodes, or the key of the home if this process cannot be a node.
        """
        return home_key(self.loader.home) if self.nodes is None else self.nodes.signing_key

    def _on_initialized(self) -> None:
        """Prepare the process and schedule the loading of the HTTP library. Unless the server is resident, also log
        the unknown keys in config.toml.

        The server calls this method after the first response to a client, so that this work does not delay the
        response.
        """
        self._prepare_process()
        if self._warming is None:
            self._warming = asyncio.get_running_loop().call_later(WARM_UP_SECONDS, self._http.warm_up)
        if not self._is_resident:  # a resident server reports unknown keys when it starts
            report_unknown_keys(self.loader)

    def open_push(self, sign_ins: SignIns, load: Callable[[], ServeSettings]) -> PushSender:
        """Create the sender that notifies the browsers in `sign_ins`. `load` returns the current settings.

        Raises:
            OSError: the key of the home directory cannot be read or created.
        """
        from parley.app.push import PushSender

        key = self._context.signing_key
        self._push = PushSender(sign_ins, key, load, self._http, self._clock, self._environ)
        return self._push

    def _on_attention(self, conversation_id: ConversationId, state: AttentionState) -> None:
        self._webhook.notify(conversation_id, state)
        if self._push is not None:
            self._push.notify(conversation_id, state)

    def open_telemetry(self) -> None:
        """Begin to send traces and metrics to a collector if the variables `OTEL_*` enable this."""
        if any(name.startswith("OTEL_") for name in self._environ):
            from parley.app.otel import open_telemetry

            self._otel = open_telemetry(self._environ, self.metrics)

    def metrics(self, clients: Callable[[], int] | None = None) -> ServerMetrics:
        """Return the metrics of this server. The collection of the metrics begins with the first call of this
        method. `clients` returns the number of connected clients; by default, the clients of the server core are
        counted.
        """
        if self._metrics is None:
            from parley.app.metrics import ServerMetrics

            self._metrics = ServerMetrics(
                self.conversations,
                clients=clients or (lambda: len(self.core.clients)),
                wal_bytes=self._wal_bytes,
                free_bytes=self._free_bytes,
                is_store_available=lambda: self._context.availability == AVAILABLE,
            )
        return self._metrics

    def _wal_bytes(self) -> int | None:
        """Return the size of SQLite's write-ahead log in bytes. Return None if the conversations are in a
        PostgreSQL database, or if the size cannot be read.
        """
        try:
            return None if self.loader.store_url() is not None else log_bytes(self.loader.home)
        except (ConfigError, OSError):
            return None

    def _free_bytes(self) -> int | None:
        """Return the free space on the disk of the home in bytes. Return None if the conversations are in a
        PostgreSQL database, or if the free space cannot be read.
        """
        try:
            if self.loader.store_url() is not None:
                return None
            found = os.statvfs(self.loader.home)
        except (ConfigError, OSError):
            return None
        return found.f_bavail * found.f_frsize

    async def serve(self, transport: Transport) -> None:
        """Serve one client until the client leaves or the transport stops reading. Then release all resources."""
        try:
            await self.core.serve_only_client(transport)
        finally:
            await self.close()

    async def close(self) -> None:
        """Release all resources. The server core must have shut down first."""
        if self._warming is not None:
            self._warming.cancel()
        if self._otel is not None:
            await self._otel.close(seconds=self.core.shutdown_seconds_left)
        if self._metrics is not None:
            self._metrics.close()
        await all_written()
        await self._tools.close()
        await self._commands.close()
        await self._webhook.close(seconds=self.core.shutdown_seconds_left)
        if self._push is not None:
            await self._push.close(seconds=self.core.shutdown_seconds_left)
        await self._http.close()


def _memory_store() -> Store:
    from parley.stores.memory import MemoryStore  # imported here: few servers need this module

    return MemoryStore()


async def serve_stdio(overrides: Sequence[str] = (), *, is_ephemeral: bool = False) -> None:
    """Serve an MCP client on stdin and stdout until the client leaves or a signal arrives.

    An ephemeral server stores nothing, and other servers do not see its conversations.

    Raises:
        ConfigError: the overrides or the home directory cannot be used. Nothing was read or written.
    """
    raise_own_limit()
    server = Server(
        environ=os.environ,
        server_dir=working_directory(),
        overrides=overrides,
        is_ephemeral=is_ephemeral,
        prepare_process=prepare_process,
    )
    transport = DescriptorTransport(why_too_large=why_too_large)
    _take_signals(transport, server.conversations)
    server.open_telemetry()
    collect_rarely()
    try:
        await server.serve(transport)
    finally:
        ignore_signals()
        skip_final_collection()


def prepare_process() -> None:
    """Install a thread pool that checks whether enough memory is free before it starts a thread.

    Also make the allocator return each large block to the operating system as soon as the block is freed.
    """
    asyncio.get_running_loop().set_default_executor(checked_pool(name="asyncio"))
    with suppress(MemoryError, RuntimeError):  # the server also works without this thread
        start_thread(return_large_blocks, name="return-large-blocks")


def report_unknown_keys(loader: Loader) -> None:
    """Log the unknown keys in config.toml, because a misspelt key has no effect."""
    try:
        unknown = loader.unknown_keys()
    except ConfigError:
        return  # the first call that needs the settings reports the error
    for sentence in islice(unknown, _MAX_REPORTED):
        log.warning("%s", sentence)
    if next(unknown, None) is not None:
        log.warning("config.toml has more unknown settings; `parley doctor` lists them")


def _max_commands(loader: Loader) -> int:
    try:
        return loader.serve_settings().max_commands
    except ConfigError:
        return ServeSettings().max_commands


def _home(loader: Loader) -> str | None:
    """Return the path of the home directory; None if the directory has been removed."""
    try:
        return loader.home
    except ConfigError:
        return None


def _take_signals(transport: DescriptorTransport, conversations: ConversationRegistry) -> None:
    """Install the signal handlers. SIGTERM and SIGHUP shut the server down.

    If stdin is not a terminal, SIGINT also shuts the server down, because Claude Code sends SIGINT to stop its
    servers. On a terminal, SIGINT interrupts the running turns. But SIGINT shuts the server down if no turns are
    running, or if the previous SIGINT arrived less than `SECOND_INTERRUPT_SECONDS` before.
    """
    loop = asyncio.get_running_loop()
    on_terminal = os.isatty(0)
    last_interrupt = -SECOND_INTERRUPT_SECONDS

    def interrupt() -> None:
        nonlocal last_interrupt
        again = loop.time() - last_interrupt < SECOND_INTERRUPT_SECONDS
        last_interrupt = loop.time()
        running = conversations.running
        if again or not running:
            transport.stop_reading()  # running turns record that the server was stopped
            return
        for conversation in running:
            conversation.interrupt(principal=LOCAL)

    loop.add_signal_handler(signal.SIGTERM, transport.stop_reading)
    loop.add_signal_handler(signal.SIGINT, interrupt if on_terminal else transport.stop_reading)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under `nohup`, SIGHUP stays ignored
        loop.add_signal_handler(signal.SIGHUP, transport.stop_reading)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
