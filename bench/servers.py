"""The measured servers, Parley and two peers, and the requests that each of them understands."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.pipe import Arrivals, Pipe

__all__ = [
    "MODEL",
    "ON_DISK",
    "CodexAppServer",
    "CodexMcp",
    "EphemeralParley",
    "Parley",
    "ParleyRunning",
    "PlainParley",
    "Running",
    "Server",
    "process_cpu_seconds",
]

MODEL: Final = "bench-model"

ON_DISK: Final = Path("/var/tmp")
"""The directory for homes. /tmp is not suitable, because it may be in memory, where a sync costs nothing."""

_CONFIG: Final = """\
model = "{model}"
model_provider = "bench"
approval_policy = "never"
sandbox_mode = "danger-full-access"
{more}
[model_providers.bench]
name = "Bench"
base_url = "{base_url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""

_FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")


class Running(ABC):
    """A running server and the requests to it."""

    delta: ClassVar[bytes]
    """A marker that occurs once in each delta notification, and in no other message."""
    end: ClassVar[bytes]
    """A marker that occurs once in the notification that ends a turn, and in no other message."""

    def __init__(self, pipe: Pipe, work: Path) -> None:
        self.pipe, self.work = pipe, work

    @abstractmethod
    def initialize(self) -> None:
        """Initialize the connection. Return when the response to `initialize` has arrived."""

    @abstractmethod
    def open(self) -> str:
        """Create a conversation. Return its id."""

    def open_followed(self) -> str:
        """Create a conversation whose events the server sends to this client. Return its id."""
        return self.open()

    @abstractmethod
    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        """Return the method and the params of the request that starts a turn."""

    def begin(self, text: str) -> int:
        """Start a turn in a new conversation as `open_followed` creates it. Return the id of the request."""
        return self.pipe.request(*self.turn(self.open_followed(), text))

    def run_short_turn(self) -> None:
        """Create a conversation and run one short turn in it. Close its stream afterwards if the server has
        streams."""
        self.run_turns([self.open_followed()], "hello")

    def run_turns(self, conversations: Sequence[str], text: str) -> tuple[float, Arrivals]:
        """Send `text` to all conversations at once, and read until all turns have ended.

        Returns:
            The time of the requests, in seconds of `time.perf_counter()`, and the messages that were counted.
        """
        requests = [
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
            for request_id, (method, params) in zip(
                self.pipe.next_ids(len(conversations)),
                (self.turn(conversation, text) for conversation in conversations),
                strict=True,
            )
        ]
        began = time.perf_counter()
        self.pipe.write(*requests)
        return began, self.pipe.count(self.delta, self.end, turns=len(conversations))

    def resident_kib(self) -> int:
        """Return the resident memory of the process, in KiB."""
        status = Path(f"/proc/{self.pipe.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, in seconds."""
        return process_cpu_seconds(self.pipe.pid)


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(ABC):
    """A kind of server, and the command that starts it."""

    name: ClassVar[str]
    home_variable: ClassVar[str]
    settings: ClassVar[str] = ""
    """Additional lines for the `config.toml` of the server."""
    running: ClassVar[type[Running]]

    def __init__(self, *command: str) -> None:
        self._command = command

    @contextmanager
    def home(self, base_url: str) -> Iterator[tuple[dict[str, str], Path]]:
        """Create a new home whose settings name the model. Remove the home when the block ends.

        Yields:
            The environment that names the home, and a working directory.
        """
        with tempfile.TemporaryDirectory(
            prefix="parley-bench-", dir=ON_DISK, ignore_cleanup_errors=True
        ) as directory:
            home, work = Path(directory, "home"), Path(directory, "work")
            home.mkdir()
            work.mkdir()
            config = _CONFIG.format(model=MODEL, base_url=base_url, more=self.settings)
            (home / "config.toml").write_text(config)
            yield self._environ(home), work

    @contextmanager
    def start(self, base_url: str) -> Iterator[Running]:
        """Run the server with a new home. Do not initialize the server."""
        with self.home(base_url) as (environ, work), self.start_in(environ, work) as running:
            yield running

    @contextmanager
    def start_in(self, environ: dict[str, str], work: Path) -> Iterator[Running]:
        """Run the server with an existing home, which other servers may use as well. Do not initialize the
        server."""
        pipe = Pipe(self._command, env=environ, cwd=work, stderr=work.parent / "stderr.log")
        try:
            yield self.running(pipe, work)
        finally:
            pipe.close()

    @contextmanager
    def ready(self, base_url: str) -> Iterator[Running]:
        """Run the server with a new home, and initialize the server."""
        with self.start(base_url) as running:
            running.initialize()
            yield running

    def _environ(self, home: Path) -> dict[str, str]:
        # A proxy could not reach the model, which listens on the loopback interface.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
        }
        return {**kept, self.home_variable: str(home)}


class _Mcp(Running):
    delta = b'"method":"agent_message_delta"'
    end = b'"method":"task_complete"'
    version: ClassVar[str]

    def initialize(self) -> None:
        client = {"name": "bench", "version": "1"}
        self.pipe.call("initialize", {"protocolVersion": self.version, "capabilities": {}, "clientInfo": client})
        self.pipe.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def open(self) -> str:
        settings = {"prompt": "", "model": MODEL, "cwd": str(self.work)}
        return str(self.tool("conversationCreate", settings)["structuredContent"]["conversation_id"])

    def tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return self.pipe.call("tools/call", {"name": name, "arguments": arguments})


SNAPSHOT: Final = b'"method":"notifications/initial_state"'


class ParleyRunning(_Mcp):
    version = "2025-11-25"
    event_meta: ClassVar[bool] = True

    def open_followed(self) -> str:
        conversation = self.open()
        self.stream(conversation, event_meta=self.event_meta)
        return conversation

    def stream(self, conversation: str, *, event_meta: bool) -> tuple[int, bytes]:
        """Stream a conversation. Return the id of the request and the complete snapshot."""
        return self.begin_stream(conversation, event_meta=event_meta), self.snapshot()

    def begin_stream(self, conversation: str, *, event_meta: bool) -> int:
        """Stream a conversation. Return the id of the request as soon as the snapshot begins to arrive."""
        arguments = {"conversation_id": conversation, "event_meta": event_meta}
        stream = self.pipe.request("tools/call", {"name": "conversationStream", "arguments": arguments})
        self.pipe.until(SNAPSHOT)
        return stream

    def snapshot(self) -> bytes:
        """Return the complete snapshot of the stream that `begin_stream` started."""
        return self.pipe.line_with(SNAPSHOT)

    def pause(self, stream: int) -> None:
        """End a stream. `stream` is the id of the request that started it."""
        self.pipe.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stream}})

    def run_short_turn(self) -> None:
        conversation = self.open()
        stream, _ = self.stream(conversation, event_meta=self.event_meta)
        self.run_turns([conversation], "hello")
        self.pause(stream)

    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        arguments = {"conversation_id": conversation, "content": [{"type": "text", "text": text}]}
        return "tools/call", {"name": "conversationSendMessage", "arguments": arguments}


class _PlainParley(ParleyRunning):
    event_meta = False


class Parley(Server):
    name = "parley"
    home_variable = "PARLEY_HOME"
    running = ParleyRunning

    def __init__(self, *arguments: str) -> None:
        super().__init__(sys.executable, "-m", "parley", "mcp", *arguments)


class PlainParley(Parley):
    """Parley without `event_meta`. The events then have the same form as the events of `codex mcp` 0.21.0."""

    name = "parley, plain events"
    running = _PlainParley


class EphemeralParley(Parley):
    """Parley with `--ephemeral`, which stores nothing on disk."""

    name = "parley, ephemeral"

    def __init__(self) -> None:
        super().__init__("--ephemeral")


class _CodexMcp(_Mcp):
    version = "2025-06-18"

    def open_followed(self) -> str:
        """Create a conversation with the tool `codex`, which sends the events. Return its id after its first turn.

        `codex mcp` has no tool that streams a conversation.
        """
        request = self.begin("hello")
        found = re.search(rb'"session_id":"([^"]+)"', self.pipe.line_with(b'"session_id"'))
        assert found is not None
        self.pipe.answer(request)
        return found[1].decode()

    def begin(self, text: str) -> int:
        # `codex-reply` is not used here: this server may lose a reply that it gets just after the end of a turn.
        arguments = {"prompt": text, "model": MODEL, "cwd": str(self.work)}
        return self.pipe.request("tools/call", {"name": "codex", "arguments": arguments})

    def run_short_turn(self) -> None:
        self.open_followed()

    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        return "tools/call", {"name": "codex-reply", "arguments": {"sessionId": conversation, "prompt": text}}


class CodexMcp(Server):
    """`codex mcp` 0.21.0, the origin of Parley's protocol."""

    name = "codex mcp 0.21.0"
    home_variable = "CODEX_HOME"
    running = _CodexMcp

    def __init__(self, binary: Path) -> None:
        super().__init__(str(binary), "mcp")
        self.binary = str(binary)


class _CodexAppServer(Running):
    delta = b'"method":"item/agentMessage/delta"'
    end = b'"method":"turn/completed"'

    def initialize(self) -> None:
        self.pipe.call("initialize", {"clientInfo": {"name": "bench", "version": "1"}})
        self.pipe.write({"jsonrpc": "2.0", "method": "initialized"})

    def open(self) -> str:
        return str(self.pipe.call("thread/start", {"cwd": str(self.work)})["thread"]["id"])

    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        return "turn/start", {"threadId": conversation, "input": [{"type": "text", "text": text}]}


class CodexAppServer(Server):
    """`codex app-server` 0.166.0, the successor of `codex mcp`."""

    name = "codex app-server 0.166.0"
    home_variable = "CODEX_HOME"
    settings = "check_for_update_on_startup = false\n[analytics]\nenabled = false"
    running = _CodexAppServer

    def __init__(self, binary: Path) -> None:
        super().__init__(str(binary), "app-server")
