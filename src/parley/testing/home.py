"""The home directory of a server under test, with its settings, working directory, environment and log."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, ClassVar, Final, TypedDict, Unpack

from parley.client import ServerProcess
from parley.testing.model import TIMEOUT_SECONDS, ScriptedModel
from parley.testing.render import Api

__all__ = ["MODEL", "Home", "ServerOptions"]

MODEL: Final = "scripted-model"
"""The name of the model that conversations use."""

_APIS: Final[tuple[Api, ...]] = ("chat", "responses", "anthropic")

_FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""The prefixes of environment variables that would change the behaviour of a server under test. The server does not
inherit these variables.
"""


class ServerOptions(TypedDict, total=False):
    """Options for a server under test."""

    api: Api
    """The API of the model. Default: `chat`."""
    config: str
    """Additional settings for config.toml, which override the default settings of tests."""
    request_max_retries: int
    stream_max_retries: int
    """The maximum number of retries after a broken stream from the model. Default: 0."""
    home: Path
    """The home directory, which several servers can share. Default: a new directory."""
    env: Mapping[str, str]
    """Additional environment variables for the server."""
    arguments: Sequence[str]
    """Additional arguments after `parley mcp`."""
    program: Sequence[str]
    """The command that runs `parley`. Default: `python -P -m parley`, with the Python interpreter of the test."""


class Home:
    """The files and the environment of a server under test. `open` creates them, and `close` removes them."""

    server_class: ClassVar[type[ServerProcess]] = ServerProcess
    """The class of the transport to the server. Parley's own tests replace this class to run servers in the process
    of the test.
    """

    path: Path
    work: Path
    """The working directory of conversations, outside the home."""
    stderr: IO[bytes]

    def __init__(self, model: ScriptedModel, **options: Unpack[ServerOptions]) -> None:
        self._model, self._options = model, options
        self._owned = ExitStack()

    def open(self) -> None:
        path = self._options.get("home")
        if path is None:
            # A killed process may still be writing while the directory is removed.
            created = tempfile.TemporaryDirectory(prefix="parley-", ignore_cleanup_errors=True)
            path = Path(self._owned.enter_context(created)) / "home"
        self.path, self.work = path, path.parent / "work"
        for directory in (self.path, self.work):
            directory.mkdir(parents=True, exist_ok=True)
        self.stderr = self._owned.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self.write_config(self._options.get("config", ""))

    def server(self) -> ServerProcess:
        """Return a transport that starts a server process with this home."""
        server = self.server_class(self.command, env=self.environ, cwd=self.work, stderr=self.stderr)
        server.exit_grace_seconds = TIMEOUT_SECONDS  # a busy computer may need longer than 2 seconds
        return server

    @property
    def command(self) -> tuple[str, ...]:
        program = self._options.get("program", (sys.executable, "-P", "-m", "parley"))
        return (*program, "mcp", *self._options.get("arguments", ()))

    @property
    def environ(self) -> dict[str, str]:
        # Requests to the model on the loopback interface must not go to a proxy.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
        }
        return {**kept, "PARLEY_HOME": str(self.path), **self._options.get("env", {})}

    def write_config(self, text: str) -> None:
        """Write config.toml with `text` and with the default settings that `text` does not contain."""
        given = tomllib.loads(text)
        ours = {
            "model": MODEL,
            "model_provider": self._options.get("api", "chat"),
            "approval_policy": "never",
            "sandbox_mode": "danger-full-access",
        }
        top = [f"{key} = {json.dumps(value)}" for key, value in ours.items() if key not in given]
        providers = [self._provider(api) for api in _APIS if api not in given.get("model_providers", {})]
        # Top-level settings come first, because after a table heading they would belong to that table.
        (self.path / "config.toml").write_text("\n".join([*top, text, *providers]))

    def _provider(self, api: Api) -> str:
        return "\n".join(
            (
                f"[model_providers.{api}]",
                f'name = "Scripted, over {api}"',
                f"base_url = {json.dumps(self._model.base_url)}",
                f'wire_api = "{api}"',
                f"request_max_retries = {self._options.get('request_max_retries', 0)}",
                f"stream_max_retries = {self._options.get('stream_max_retries', 0)}",
                "",
            )
        )

    def stderr_text(self) -> str:
        """Return the text that the server has written to stderr so far."""
        if self.stderr.closed:
            return self._log
        # `pread` does not move the file position, which the server shares.
        descriptor = self.stderr.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        self._log = self.stderr_text()
        self._owned.close()
