"""Settings as plain values: the tables of config.toml, and `Settings`, which holds for one conversation.

A field of a `*Table` struct, of `Profile`, `CommonSettings` or `ConfigFile` is a setting: its name is the key in
config.toml, its type (or the check in its annotation) says which values are valid, and its default holds where no
source sets it. `schema.py` derives the table of all settings from these fields, so annotations here are not
postponed.
"""

import os
from typing import Annotated, Any, Final, Literal

from msgspec import Struct

from parley.config.checks import (
    absolute_path,
    address,
    integer,
    named_secrets,
    path_or_home_path,
    secret_sequence,
    sequence_of,
)

__all__ = [
    "ApprovalPolicy",
    "Approvals",
    "CommonSettings",
    "ConfigFile",
    "Effort",
    "Inherit",
    "Limits",
    "McpFeatures",
    "McpSettings",
    "Mechanism",
    "OnTimeout",
    "Profile",
    "Provider",
    "ReplyLimits",
    "ResolvedSettings",
    "Sandbox",
    "SandboxMode",
    "ServeSettings",
    "Settings",
    "SettingsOverrides",
    "ShellEnvironment",
    "StoreSettings",
    "Summary",
    "ToolServer",
    "WhenClientLeaves",
    "WhenNobody",
    "WireApi",
    "WithHttp",
    "WorkspaceWrite",
]

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
Mechanism = Literal["auto", "bubblewrap", "landlock"]
OnTimeout = Literal["deny", "abort", "hold"]
WhenNobody = Literal["deny", "return", "wait"]
WhenClientLeaves = Literal["continue", "interrupt"]
WithHttp = Literal["auto", "on", "off"]
McpFeatures = Literal["auto", "plain", "full"]
Inherit = Literal["safe", "all", "core", "none"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
WireApi = Literal["chat", "responses", "scripted"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "none"]
Summary = Literal["auto", "concise", "detailed", "none"]

Retries = Annotated[int, integer(0, 100)]
"""A number of retries, at most 100. The delay doubles with each retry, so even 100 retries would take for ever."""
Seconds = Annotated[int, integer(0, 2**31 - 1)]
Hours = Annotated[int, integer(0, 24 * 366)]
Milliseconds = Annotated[int, integer(1, 2**31 - 1)]
Count = Annotated[int, integer(1, 2**63 - 1)]
Limit = Annotated[int, integer(0, 2**63 - 1)]
NamedSecrets = Annotated[dict[str, str], named_secrets]
Address = Annotated[str, address]
PathOrHomePath = Annotated[str, path_or_home_path]


class ReplyLimits(Struct, frozen=True, kw_only=True):
    """The size that a reply of a model may have before its turn fails."""

    max_reply_characters: Count = 10_000_000
    """Text and reasoning together."""
    max_argument_characters: Count = 10_000_000
    """The arguments of all calls together."""
    max_calls: Count = 4096
    max_event_bytes: Annotated[int, integer(1024, 2**31 - 1)] = 64 * 1024 * 1024
    """One server-sent event. The last one of the Responses API repeats the whole reply."""


class ProviderTable(ReplyLimits, frozen=True, kw_only=True):
    """`[model_providers.ID]`"""

    name: str = ""
    wire_api: WireApi = "chat"
    base_url: Address | None = None
    env_key: str | None = None
    """The variable that holds the key. The key is read for each request and stored nowhere."""
    env_key_instructions: str | None = None
    query_params: NamedSecrets = {}
    http_headers: NamedSecrets = {}
    env_http_headers: dict[str, str] = {}
    """Header name to the variable that holds its value; a header whose variable is not set is left out."""
    request_max_retries: Retries = 4
    stream_max_retries: Retries = 5
    stream_idle_timeout_ms: Milliseconds = 300_000
    stream_usage: bool = False
    """Over chat: ask for token counts (`stream_options`)."""
    script: str | None = None
    """For `wire_api = "scripted"`: the file with the replies; None: the built-in demonstration."""


class Provider(ProviderTable, frozen=True, kw_only=True):
    """A provider of models: its address, its key, and how requests to it are made."""

    id: str
    """The name of its table, `[model_providers.ID]`."""
    is_openai: bool = False
    """True for the built-in `openai`, the only provider that is given `OPENAI_API_KEY` or the key in
    `auth.json`.
    """


class WorkspaceWrite(Struct, frozen=True, kw_only=True):
    """`[sandbox_workspace_write]`"""

    writable_roots: Annotated[tuple[str, ...], sequence_of(absolute_path)] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


class Sandbox(Struct, frozen=True, kw_only=True):
    """`[sandbox]`: how commands are confined, in every mode that confines them."""

    mechanism: Mechanism = "auto"
    """`auto`: the best one that works on this machine."""
    hidden_paths: Annotated[tuple[str, ...], sequence_of(path_or_home_path)] = (
        "~/.ssh",
        "~/.aws",
        "~/.gnupg",
        "~/.config/gh",
        "~/.netrc",
        "~/.docker/config.json",
    )
    """Paths that only the server reads. In `Settings` they are absolute, and the home is one of them."""
    allow_unix_sockets: bool = False


class Approvals(Struct, frozen=True, kw_only=True):
    """`[approvals]`: what happens to an approval request if no client can be asked."""

    timeout_seconds: Seconds = 300
    """0: no timeout."""
    on_timeout: OnTimeout = "deny"
    when_nobody: WhenNobody = "deny"
    """What happens to an approval request if only `codex` calls wait for the turn and no client can be asked."""
    session_hours: Hours = 12
    """How long an approval for the session holds; 0: once."""


class ApprovalsTable(Approvals, frozen=True, kw_only=True):
    """`[approvals]` with `model_may_answer`, which is not part of a conversation's settings, because clients can
    change those.
    """

    model_may_answer: bool = False


class McpTable(Struct, frozen=True, kw_only=True):
    """`[mcp]`"""

    features: McpFeatures = "auto"
    """Which additions to MCP clients see: chosen by version and host, none, or all."""
    resident: bool = False
    """True if `parley mcp` starts a resident server when none runs."""
    when_client_leaves: WhenClientLeaves = "continue"
    """What a resident server does with the turns that a client began when this client leaves."""


class McpSettings(McpTable, frozen=True, kw_only=True):
    """What the server shows to its MCP clients. Set by the file and the command line, never by a client."""

    model_may_answer: bool = False
    """`[approvals] model_may_answer`: True if known hosts are offered `approvalAnswer`."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """`[serve]`: the resident server."""

    drain_seconds: Seconds = 30
    """How long the server waits for running turns before it stops."""
    idle_exit_minutes: Annotated[int, integer(0, 60 * 24 * 366)] = 30
    """After how many minutes without clients and turns a server that `parley mcp` started exits; 0: never."""
    http: WithHttp = "auto"
    """True if the server also serves HTTP; `auto`: unless `parley mcp` started it."""
    host: str = "127.0.0.1"
    port: Annotated[int, integer(0, 65_535)] = 0
    """The TCP port; 0: any free port."""
    public_url: Address | None = None
    """The address of a proxy in front of the server, which adds TLS."""
    tls_cert: PathOrHomePath | None = None
    tls_key: PathOrHomePath | None = None
    max_connections: Annotated[int, integer(8, 65_536)] = 1024
    max_sessions: Annotated[int, integer(1, 65_536)] = 1024
    max_body_bytes: Annotated[int, integer(1024, 2**30)] = 64 * 1024 * 1024
    """The largest body of a request with a valid token, in bytes."""
    max_unauthenticated_body_bytes: Annotated[int, integer(0, 2**30)] = 4 * 1024 * 1024
    """How many bytes of the body of a refused request are read and discarded."""
    session_minutes: Annotated[int, integer(1, 60 * 24 * 366)] = 30
    """How long a session without requests and streams is kept."""
    requests_per_second: Annotated[int, integer(0, 10**6)] = 500
    """The most requests of each token per second, on average over ten seconds; 0: no limit."""


class Limits(Struct, frozen=True, kw_only=True):
    """`[limits]`: how much a turn or conversation may use before the agent asks whether to continue; 0: no
    limit.
    """

    turn_tokens: Limit = 0
    turn_seconds: Limit = 0
    turn_calls: Limit = 0
    conversation_tokens: Limit = 0


class StoreSettings(Struct, frozen=True, kw_only=True):
    """`[store]`: how long conversations of the home stay on disk and in memory."""

    keep_days: Annotated[int, integer(0, 36_500)] = 0
    """How long an archived conversation is kept after its last activity; 0: for ever."""
    idle_seconds: Seconds = 300
    """How long an unused conversation stays in memory."""
    idle_conversations: Seconds = 1000
    """How many unused conversations stay in memory."""


class ShellEnvironment(Struct, frozen=True, kw_only=True):
    """`[shell_environment_policy]`: which of the server's variables commands are given."""

    inherit: Inherit = "safe"
    ignore_default_excludes: bool = False
    exclude: tuple[str, ...] = ()
    set: NamedSecrets = {}
    include_only: tuple[str, ...] = ()


class ToolServerTable(Struct, frozen=True, kw_only=True):
    """`[mcp_servers.NAME]`: a program to start, or an address; one of the two is set."""

    enabled: bool = True
    command: str | None = None
    args: Annotated[tuple[str, ...], secret_sequence] = ()
    env: NamedSecrets = {}
    cwd: PathOrHomePath | None = None
    """The directory to start the program in; None: one that no command can write to."""
    url: Address | None = None
    bearer_token_env_var: str | None = None
    tool_timeout_seconds: Seconds = 600
    """How long one call of a tool may take; 0: no limit."""
    max_answer_bytes: Annotated[int, integer(1024, 2**30)] = 16 * 1024 * 1024
    """The longest message that is read from it."""


class ToolServer(ToolServerTable, frozen=True, kw_only=True):
    """A configured tool server."""

    name: str
    missing: tuple[str, ...] = ()
    """Keys of a call that were not stored because they are secrets. A server with missing keys is not started."""


class Profile(Struct, frozen=True, kw_only=True):
    """`[profiles.NAME]`: the settings that a profile may have. Each is also a setting at the top level of
    config.toml.
    """

    model: str = "gpt-5"
    model_provider: str = "openai"
    approval_policy: ApprovalPolicy = "on-request"
    model_reasoning_effort: Effort = "medium"
    model_reasoning_summary: Summary = "auto"
    disable_response_storage: bool = False
    experimental_instructions_file: str | None = None


class CommonSettings(Profile, frozen=True, kw_only=True):
    """The settings of config.toml that `Settings` has unchanged."""

    sandbox_mode: SandboxMode = "read-only"
    approvals: Approvals = Approvals()
    limits: Limits = Limits()
    developer_instructions: str = ""
    """Sent to the model in addition to the base instructions; empty: none."""
    compact_prompt: str = ""
    """Instructions for a summary of the history; empty: Parley's own."""
    model_supports_reasoning_summaries: bool = False
    model_context_window: Count | None = None
    """The context window in tokens; None: the known window of the model."""
    show_raw_agent_reasoning: bool = False
    project_doc_max_bytes: Annotated[int, integer(0, 2**31 - 1)] = 32_768
    notify: tuple[str, ...] = ()
    """The program to run after each completed turn; empty: none."""
    notify_argument: bool = True
    """True if the notify program gets its payload as its last argument, too, not only on stdin."""
    internal_originator: str = "codex_cli_rs"


class ConfigFile(CommonSettings, frozen=True, kw_only=True):
    """Every setting of config.toml."""

    profile: str | None = None
    profiles: dict[str, Profile] = {}
    sandbox_workspace_write: WorkspaceWrite = WorkspaceWrite()
    sandbox: Sandbox = Sandbox()
    approvals: ApprovalsTable = ApprovalsTable()
    experimental_resume: str | None = None
    mcp_servers: dict[str, ToolServerTable] = {}
    shell_environment_policy: ShellEnvironment = ShellEnvironment()
    mcp: McpTable = McpTable()
    store: StoreSettings = StoreSettings()
    serve: ServeSettings = ServeSettings()
    model_providers: dict[str, ProviderTable] = {}


class SettingsOverrides(Struct, frozen=True, kw_only=True):
    """The settings of one call, which override the files: the named arguments and `config`."""

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
    """The keys of tool servers that the call gave and that were not stored in the log; None in a call of a
    client.
    """


class Environment(dict[str, str]):
    """Environment variables. They may be secrets, so its text does not show them."""

    def __repr__(self) -> str:
        return f"<{len(self)} environment variables>"


class Settings(CommonSettings, frozen=True, kw_only=True):
    """The settings of one conversation, files and arguments combined."""

    environ: Environment
    """The environment of the client whose settings these are, with its keys and its `PATH`. It is never stored."""
    home: str
    cwd: str
    """The working directory: absolute; it need not exist."""
    provider: Provider
    workspace_write: WorkspaceWrite
    sandbox: Sandbox
    base_instructions: str | None
    """The base instructions, given with the call or read from `experimental_instructions_file`; None: Parley's
    own.
    """
    mcp_servers: tuple[ToolServer, ...]
    shell_environment: ShellEnvironment
    key_variables: frozenset[str]
    """The variables that hold keys of any configured provider or tool server. Only the server may read them."""
    include_plan_tool: bool

    @property
    def withheld_paths(self) -> tuple[str, ...]:
        """Files and directories whose content no model is shown, including targets of links among the server's
        own files.
        """
        own = (os.path.join(self.home, name) for name in _OWN_FILES)
        return *self.sandbox.hidden_paths, self.home, *own

    @property
    def network_access(self) -> bool:
        """True if commands may use the network."""
        if self.sandbox_mode == "workspace-write":
            return self.workspace_write.network_access
        return self.sandbox_mode == "danger-full-access"


_OWN_FILES: Final = ("config.toml", "auth.json")
"""Files of the home that may hold secrets, and that may be links to files elsewhere."""


class ResolvedSettings(Struct, frozen=True):
    """The settings of all calls so far, and the resolved settings."""

    values: dict[str, Any]
    """Every setting by its key: from the file as it was when the conversation began, and from all calls since."""
    settings: Settings
