"""Settings as plain values, as they hold for one conversation."""

from __future__ import annotations

import os
from typing import Any, Final, Literal

from msgspec import Struct

__all__ = [
    "ApprovalPolicy",
    "Approvals",
    "Chosen",
    "Effort",
    "Inherit",
    "Limits",
    "McpFeatures",
    "McpSettings",
    "Mechanism",
    "OnTimeout",
    "Provider",
    "ReplyLimits",
    "Sandbox",
    "SandboxMode",
    "Settings",
    "ShellEnvironment",
    "StoreSettings",
    "Summary",
    "ToolServer",
    "Wanted",
    "WhenNobody",
    "WireApi",
    "WorkspaceWrite",
]

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
Mechanism = Literal["auto", "bubblewrap", "landlock"]
OnTimeout = Literal["deny", "abort", "hold"]
WhenNobody = Literal["deny", "return", "wait"]
McpFeatures = Literal["auto", "plain", "full"]
Inherit = Literal["safe", "all", "core", "none"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
WireApi = Literal["chat", "responses", "scripted"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "none"]
Summary = Literal["auto", "concise", "detailed", "none"]


class ReplyLimits(Struct, frozen=True, kw_only=True):
    """How large a reply of a model may become before its turn fails."""

    max_reply_characters: int = 10_000_000
    """Text and reasoning together."""
    max_argument_characters: int = 10_000_000
    """The arguments of all calls together."""
    max_calls: int = 4096
    max_event_bytes: int = 64 * 1024 * 1024
    """One server-sent event. The last one of the Responses API repeats the whole reply."""


class Provider(ReplyLimits, frozen=True, kw_only=True):
    """Where a model is asked, and how."""

    id: str
    """The name of its table, `[model_providers.ID]`."""
    name: str
    wire_api: WireApi = "chat"
    base_url: str | None = None
    env_key: str | None = None
    """The variable that holds the key; the key itself is read when a request is made and kept nowhere."""
    env_key_instructions: str | None = None
    query_params: dict[str, str] = {}
    http_headers: dict[str, str] = {}
    env_http_headers: dict[str, str] = {}
    """Header name to the variable that holds its value; left out where that is not set."""
    request_max_retries: int = 4
    stream_max_retries: int = 5
    stream_idle_timeout_ms: int = 300_000
    stream_usage: bool = False
    """Over chat: ask for token counts (`stream_options`)."""
    script: str | None = None
    """For `wire_api = "scripted"`: the file with the replies; the built-in demonstration without it."""
    is_openai: bool = False
    """The built-in `openai`: the only one that is given `OPENAI_API_KEY` or the key in `auth.json`."""


class WorkspaceWrite(Struct, frozen=True, kw_only=True):
    """`[sandbox_workspace_write]`"""

    writable_roots: tuple[str, ...] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


class Sandbox(Struct, frozen=True, kw_only=True):
    """`[sandbox]`: how commands are confined, in every mode that confines them."""

    mechanism: Mechanism = "auto"
    """`auto`: the best that works here."""
    hidden_paths: tuple[str, ...] = ()
    """Absolute; what nobody but the server reads, its home always among them."""
    allow_unix_sockets: bool = False


class Approvals(Struct, frozen=True, kw_only=True):
    """`[approvals]`: what becomes of a question when some read the conversation and none of them can be asked."""

    timeout_seconds: int = 300
    """0: nothing, for as long as it takes."""
    on_timeout: OnTimeout = "deny"
    when_nobody: WhenNobody = "deny"
    """What happens to the question where only `codex` calls wait for the turn and no client can be asked."""


class McpSettings(Struct, frozen=True, kw_only=True):
    """What the server shows to its MCP clients. Set by the file and the command line, never by a client."""

    features: McpFeatures = "auto"
    """`[mcp] features`: by version and host, none of our additions, or all of them."""
    model_may_answer: bool = False
    """`[approvals] model_may_answer`: whether known hosts are offered `approvalAnswer`."""


class Limits(Struct, frozen=True, kw_only=True):
    """`[limits]`: what may be used before somebody is asked whether to go on; 0: as much as it takes."""

    turn_tokens: int = 0
    turn_seconds: int = 0
    turn_calls: int = 0
    conversation_tokens: int = 0


class StoreSettings(Struct, frozen=True, kw_only=True):
    """`[store]`: what the home keeps, of all its conversations alike."""

    keep_days: int = 0
    """How long an archived conversation is kept behind its last activity; 0: for ever."""
    idle_seconds: int = 300
    """How long a conversation that nobody has to do with stays in memory."""
    idle_conversations: int = 1000
    """How many of them, at most."""


class ShellEnvironment(Struct, frozen=True, kw_only=True):
    """`[shell_environment_policy]`: which of the server's variables commands are given."""

    inherit: Inherit = "safe"
    ignore_default_excludes: bool = False
    exclude: tuple[str, ...] = ()
    set: dict[str, str] = {}
    include_only: tuple[str, ...] = ()


class ToolServer(Struct, frozen=True, kw_only=True):
    """`[mcp_servers.NAME]`: a program to start, or an address; one of the two is set."""

    name: str
    enabled: bool = True
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    """The directory to start the program in; None: one that no command writes to."""
    url: str | None = None
    bearer_token_env_var: str | None = None
    tool_timeout_seconds: int = 600
    """How long one call of a tool may take; 0: as long as it likes."""
    max_answer_bytes: int = 16 * 1024 * 1024
    """The longest message that is read from it."""
    missing: tuple[str, ...] = ()
    """Which keys a call gave that were not stored, being secrets; such a server is not started."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What one call asks for on top of the files: the named arguments and `config`."""

    model: str | None = None
    profile: str | None = None
    cwd: str | None = None
    approval_policy: str | None = None
    sandbox: str | None = None
    base_instructions: str | None = None
    developer_instructions: str | None = None
    compact_prompt: str | None = None
    include_plan_tool: bool | None = None
    config: dict[str, Any] | None = None
    not_stored: tuple[tuple[str, ...], ...] | None = None
    """The keys of tool servers that the call gave and the log does not have; None in a call of a client."""


class Settings(Struct, frozen=True, kw_only=True):
    """All that is in force for one conversation, files and arguments combined."""

    home: str
    cwd: str
    """Absolute; need not exist."""
    model: str
    provider: Provider
    approval_policy: ApprovalPolicy
    sandbox_mode: SandboxMode
    workspace_write: WorkspaceWrite
    sandbox: Sandbox
    approvals: Approvals
    limits: Limits
    base_instructions: str | None
    """Given with the call, or read from `experimental_instructions_file`; None: Parley's own."""
    developer_instructions: str
    """Sent to the model in addition to the base instructions; empty: none."""
    compact_prompt: str
    """Instructions for a summary of the history; empty: Parley's own."""
    model_reasoning_effort: Effort
    model_reasoning_summary: Summary
    model_supports_reasoning_summaries: bool
    show_raw_agent_reasoning: bool
    disable_response_storage: bool
    project_doc_max_bytes: int
    notify: tuple[str, ...]
    """The program to run after each turn that completed; empty: none."""
    notify_argument: bool
    """Whether the notify program gets its payload as its last argument too, besides on stdin."""
    internal_originator: str
    mcp_servers: tuple[ToolServer, ...]
    shell_environment: ShellEnvironment
    key_variables: frozenset[str]
    """The variables that hold keys of any provider or tool server that is configured: for the server alone."""
    model_context_window: int | None
    """In tokens; None: what is known of the model."""
    include_plan_tool: bool

    @property
    def withheld_paths(self) -> tuple[str, ...]:
        """Files and directories whose content no model is shown, also those that the server's own files link to."""
        own = (os.path.join(self.home, name) for name in _OWN_FILES)
        return *self.sandbox.hidden_paths, self.home, *own

    @property
    def network_access(self) -> bool:
        """Whether commands may use the network."""
        if self.sandbox_mode == "workspace-write":
            return self.workspace_write.network_access
        return self.sandbox_mode == "danger-full-access"


_OWN_FILES: Final = ("config.toml", "auth.json")
"""Files of the home that may hold secrets, and that people keep elsewhere and link to."""


class Chosen(Struct, frozen=True):
    """What was asked for so far, call over call, and what that comes to."""

    values: dict[str, Any]
    """Every setting by its key: of the file as it was at the beginning, and of all calls since."""
    settings: Settings
