"""The servers that are measured: Parley and two of its peers, each in its own words."""

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
]

MODEL: Final = "bench-model"

ON_DISK: Final = Path("/var/tmp")
"""Where homes are made: /tmp may be memory, and it would cost nothing to keep something there."""

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
    """A running server, after `initialize`."""

    delta: ClassVar[bytes]
    """Stands in every notification of one delta, and nowhere else."""
    end: ClassVar[bytes]
    """Stands in the notification that ends a turn, once."""

    def __init__(self, pipe: Pipe, work: Path) -> None:
        self.pipe, self.work = pipe, work

    @abstractmethod
    def initialize(self) -> None:
        """Return when the answer to `initialize` has come."""

    @abstractmethod
    def open(self) -> str:
        """Open a conversation and return its id."""

    def open_followed(self) -> str:
        """Open a conversation whose events are sent to us."""
        return self.open()

    @abstractmethod
    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        """Method and params of the request that starts a turn."""

    def begin(self, text: str) -> int:
        """Start a turn in a new conversation whose events are sent to us; the id of the request."""
        return self.pipe.request(*self.turn(self.open_followed(), text))

    def run_short_turn(self) -> None:
        """Open a conversation and run one short turn in it; nobody follows it any more afterwards."""
        self.run_turns([self.open_followed()], "hello")

    def run_turns(self, conversations: Sequence[str], text: str) -> tuple[float, Arrivals]:
        """Say `text` in all of them at once; when that was, and what came until all turns had ended."""
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
        """The memory that the process holds."""
        status = Path(f"/proc/{self.pipe.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def cpu_seconds(self) -> float:
        """The CPU time that the process has used."""
        fields = Path(f"/proc/{self.pipe.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(ABC):
    """A kind of server, and how it is started."""

    name: ClassVar[str]
    home_variable: ClassVar[str]
    settings: ClassVar[str] = ""
    """More of its config.toml."""
    running: ClassVar[type[Running]]

    def __init__(self, *command: str) -> None:
        self._command = command

    @contextmanager
    def home(self, base_url: str) -> Iterator[tuple[dict[str, str], Path]]:
        """A fresh home with the model in its settings: the environment that names it, and a working directory."""
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
        """Start it with a fresh home, before `initialize`."""
        with self.home(base_url) as (environ, work), self.start_in(environ, work) as running:
            yield running

    @contextmanager
    def start_in(self, environ: dict[str, str], work: Path) -> Iterator[Running]:
        """Start it with a home that others may have as well."""
        pipe = Pipe(self._command, env=environ, cwd=work, stderr=work.parent / "stderr.log")
        try:
            yield self.running(pipe, work)
        finally:
            pipe.close()

    @contextmanager
    def ready(self, base_url: str) -> Iterator[Running]:
        """Start it and initialize it."""
        with self.start(base_url) as running:
            running.initialize()
            yield running

    def _environ(self, home: Path) -> dict[str, str]:
        # A proxy would be asked for the model on the loopback.
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
        """Stream it, and return the id of the request and the whole snapshot."""
        return self.begin_stream(conversation, event_meta=event_meta), self.snapshot()

    def begin_stream(self, conversation: str, *, event_meta: bool) -> int:
        """Stream it, and return the id of the request when the snapshot begins."""
        arguments = {"conversation_id": conversation, "event_meta": event_meta}
        stream = self.pipe.request("tools/call", {"name": "conversationStream", "arguments": arguments})
        self.pipe.until(SNAPSHOT)
        return stream

    def snapshot(self) -> bytes:
        """Return the whole snapshot of a stream that has begun."""
        return self.pipe.line_with(SNAPSHOT)

    def pause(self, stream: int) -> None:
        """End a stream."""
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
    """Without `event_meta`: the shapes of the original."""

    name = "parley, plain events"
    running = _PlainParley


class EphemeralParley(Parley):
    """Keeps nothing."""

    name = "parley, ephemeral"

    def __init__(self) -> None:
        super().__init__("--ephemeral")


class _CodexMcp(_Mcp):
    version = "2025-06-18"

    def open_followed(self) -> str:
        """Conversations cannot be streamed here; the `codex` tool sends their events, and runs a turn."""
        request = self.begin("hello")
        found = re.search(rb'"session_id":"([^"]+)"', self.pipe.line_with(b'"session_id"'))
        assert found is not None
        self.pipe.answer(request)
        return found[1].decode()

    def begin(self, text: str) -> int:
        # Not by a reply: one that comes right behind the end of another turn may be lost here.
        arguments = {"prompt": text, "model": MODEL, "cwd": str(self.work)}
        return self.pipe.request("tools/call", {"name": "codex", "arguments": arguments})

    def run_short_turn(self) -> None:
        self.open_followed()

    def turn(self, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
        return "tools/call", {"name": "codex-reply", "arguments": {"sessionId": conversation, "prompt": text}}


class CodexMcp(Server):
    """`codex mcp` 0.21.0: the original."""

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
    """`codex app-server` 0.166.0: the newest."""

    name = "codex app-server 0.166.0"
    home_variable = "CODEX_HOME"
    settings = "check_for_update_on_startup = false\n[analytics]\nenabled = false"
    running = _CodexAppServer

    def __init__(self, binary: Path) -> None:
        super().__init__(str(binary), "app-server")
