"""A home directory for a server under test: its settings, its work directory, its environment, its log."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, TypedDict, Unpack

from parley.testing.model import ScriptedModel
from parley.testing.render import Api

__all__ = ["MODEL", "Home", "ServerOptions"]

MODEL: Final = "scripted-model"
"""The model that conversations are created with."""

_APIS: Final[tuple[Api, ...]] = ("chat", "responses")

_FOREIGN: Final = ("PARLEY_", "CODEX_", "OPENAI_")
"""Variables of the person who runs the tests that would change what the server does."""


class ServerOptions(TypedDict, total=False):
    """How a server under test differs from the usual one."""

    api: Api
    """Which API it speaks with the model; `chat` by default."""
    config: str
    """More of config.toml; where it names a setting of ours, it wins."""
    request_max_retries: int
    stream_max_retries: int
    """How often the model is asked again; by default never."""
    home: Path
    """A home that others use as well, or used before; by default one of its own."""
    env: Mapping[str, str]
    """More environment."""
    arguments: Sequence[str]
    """More of the command line, after `parley mcp`."""
    program: Sequence[str]
    """The words that run `parley`; by default it is run by the Python of the test."""


class Home:
    """Everything a server finds around itself; made by `open`, and what is ours alone is removed by `close`."""

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
            path = Path(self._owned.enter_context(tempfile.TemporaryDirectory(prefix="parley-"))) / "home"
        self.path, self.work = path, path.parent / "work"
        for directory in (self.path, self.work):
            directory.mkdir(parents=True, exist_ok=True)
        self.stderr = self._owned.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self.write_config(self._options.get("config", ""))

    @property
    def command(self) -> tuple[str, ...]:
        program = self._options.get("program", (sys.executable, "-P", "-m", "parley"))
        return (*program, "mcp", *self._options.get("arguments", ()))

    @property
    def environ(self) -> dict[str, str]:
        # A proxy would be asked for the model on the loopback.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
        }
        return {**kept, "PARLEY_HOME": str(self.path), **self._options.get("env", {})}

    def write_config(self, text: str) -> None:
        """Write config.toml anew: our settings, but where `text` has its own."""
        given = tomllib.loads(text)
        ours = {
            "model": MODEL,
            "model_provider": self._options.get("api", "chat"),
            "approval_policy": "never",
            "sandbox_mode": "danger-full-access",
        }
        top = [f"{key} = {json.dumps(value)}" for key, value in ours.items() if key not in given]
        providers = [self._provider(api) for api in _APIS if api not in given.get("model_providers", {})]
        # Settings without a table come first: behind a table's heading they would belong to it.
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
        """What the server has logged so far."""
        if self.stderr.closed:
            return self._log
        # Read without moving: the server writes where the shared file position stands.
        descriptor = self.stderr.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        self._log = self.stderr_text()
        self._owned.close()
