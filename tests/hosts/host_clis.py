"""The command lines of the hosts, and their configurations.

Each host runs without a person and without the network. Its model is the stand-in of `host_model.py`, its only MCP
server is Parley, and its home is a temporary directory. Parley is configured exactly as the page of the host in the
docs describes. A test changes only the timeout, and adds settings of the host itself.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["HOSTS", "HostCli", "Launch", "configurations_on"]


def configurations_on(page: str) -> list[dict[str, Any]]:
    """Return all configurations on a page of docs/hosts."""
    text = (Path(__file__).parents[2] / "docs" / "hosts" / page).read_text()
    found = re.findall(r"^```(json|toml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [json.loads(block) if language == "json" else tomllib.loads(block) for language, block in found]


def configuration_on(page: str) -> dict[str, Any]:
    """Return the configuration that a page of docs/hosts begins with."""
    return configurations_on(page)[0]


@dataclass(frozen=True)
class Launch:
    """The command line and environment of a host."""

    arguments: Sequence[str]
    env: Mapping[str, str]


class HostCli(Protocol):
    """One host."""

    @property
    def name(self) -> str: ...

    @property
    def package(self) -> str:
        """The npm package, with its version."""
        ...

    @property
    def program(self) -> Path:
        """The program, below `node_modules`."""
        ...

    def launch(self, *, model_url: str, home: Path, work: Path, timeout_seconds: int | None) -> Launch:
        """Write the configuration to `home` and `work`, and return the launch for one prompt.

        `timeout_seconds` limits one call. None means the timeout on the page, or the default of the host.
        """
        ...


class ClaudeCode:
    name = "Claude Code"
    package = "@anthropic-ai/claude-code@2.1.197"
    program = Path("@anthropic-ai/claude-code-linux-x64/claude")

    def launch(self, *, model_url: str, home: Path, work: Path, timeout_seconds: int | None) -> Launch:
        (home / "mcp.json").write_text(json.dumps(configuration_on("claude-code.md")))
        env = {
            "ANTHROPIC_BASE_URL": model_url,
            "ANTHROPIC_API_KEY": "sk-stand-in",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        if timeout_seconds is not None:
            env["MCP_TOOL_TIMEOUT"] = str(timeout_seconds * 1000)
        arguments = ["--mcp-config", str(home / "mcp.json"), "--strict-mcp-config", "--allowedTools", "mcp__parley"]
        return Launch(("-p", "go", *arguments), env)


class Codex:
    name = "Codex"
    package = "@openai/codex@0.166.0-linux-x64"
    program = Path("@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex")

    def launch(self, *, model_url: str, home: Path, work: Path, timeout_seconds: int | None) -> Launch:
        parley = configuration_on("codex.md")["mcp_servers"]["parley"]
        if timeout_seconds is not None:
            parley["tool_timeout_sec"] = timeout_seconds
        provider = {"name": "stand-in", "base_url": f"{model_url}/v1", "wire_api": "responses"}
        config = [
            'model = "stand-in"',
            'model_provider = "standin"',
            *_toml_table("model_providers.standin", provider),
            *_toml_table("mcp_servers.parley", parley),
        ]
        codex_home = home / ".codex"
        codex_home.mkdir()
        (codex_home / "config.toml").write_text("\n".join(config))
        return Launch(("exec", "--skip-git-repo-check", "go"), {"CODEX_HOME": str(codex_home)})


def _toml_table(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return a TOML table of texts, numbers and lists of texts, which have the same syntax in JSON."""
    return [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]


class OpenCode:
    name = "opencode"
    package = "opencode-ai@1.18.33"
    program = Path("opencode-linux-x64/bin/opencode")

    def launch(self, *, model_url: str, home: Path, work: Path, timeout_seconds: int | None) -> Launch:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "stand-in",
            "options": {"baseURL": f"{model_url}/v1", "apiKey": "stand-in"},
            "models": {"model": {"name": "model"}},
        }
        config = configuration_on("opencode.md")
        if timeout_seconds is not None:
            config["experimental"]["mcp_timeout"] = timeout_seconds * 1000
        config |= {
            "model": "standin/model",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"standin": provider},
        }
        (work / "opencode.json").write_text(json.dumps(config))
        env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        return Launch(("run", "go"), env)


class GeminiCli:
    name = "Gemini CLI"
    package = "@google/gemini-cli@0.61.0"
    program = Path(".bin/gemini")

    def launch(self, *, model_url: str, home: Path, work: Path, timeout_seconds: int | None) -> Launch:
        config = configuration_on("gemini-cli.md")
        if timeout_seconds is not None:
            config["mcpServers"]["parley"]["timeout"] = timeout_seconds * 1000
        config |= {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"disableAutoUpdate": True},
            "telemetry": {"enabled": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        (home / ".gemini").mkdir()
        (home / ".gemini" / "settings.json").write_text(json.dumps(config))
        env = {
            "GEMINI_API_KEY": "stand-in",
            "GOOGLE_GEMINI_BASE_URL": model_url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        return Launch(("-p", "go", "-m", "gemini-2.5-pro", "--approval-mode", "yolo"), env)


HOSTS: Final[tuple[HostCli, ...]] = (ClaudeCode(), Codex(), OpenCode(), GeminiCli())
