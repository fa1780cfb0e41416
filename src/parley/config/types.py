"""Settings as plain values: the tables of config.toml, and `Settings`, the settings of one conversation.

A field of a `*Table` struct, of `Profile`, `CommonSettings` or `ConfigFile` is a setting. Its name is the key in
config.toml. Its type, or the check in its annotation, determines which values are valid. Its default applies if no
source sets it. `schema.py` derives the table of all settings from these fields, so this module must not postpone
the evaluation of annotations.
"""

import os
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field

from parley.config.checks import (
    absolute_path,
    address,
    amount,
    database_address,
    integer,
    named_secrets,
    one_of,
    origin,
    path_or_home_path,
    push_host,
    repository_address,
    secret_sequence,
    sequence_of,
    webhook_address,
)
from parley.config.log_file import hidden_log_file
from parley.config.tls_files import hidden_tls_files

__all__ = [
    "ApprovalPolicy",
    "Approvals",
    "ApprovalsFrom",
    "CommonSettings",
    "ConfigFile",
    "Effort",
    "Inherit",
    "Limits",
    "McpFeatures",
    "McpSettings",
    "Mechanism",
    "NodeSettings",
    "NodeToken",
    "OnTimeout",
    "Price",
    "Profile",
    "Provider",
    "ReplyLimits",
    "Repository",
    "ResolvedSettings",
    "Sandbox",
    "SandboxMode",
    "Secret",
    "ServeSettings",
    "Settings",
    "SettingsOverrides",
    "ShellEnvironment",
    "StoreSettings",
    "StoreTable",
    "StoreUrl",
    "Summary",
    "Thinking",
    "ToolServer",
    "Webhook",
    "WebhookState",
    "WhenClientLeaves",
    "WhenNobody",
    "WireApi",
    "WithHttp",
    "WorkspaceMode",
    "WorkspaceSettings",
    "WorkspaceWrite",
]

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
Mechanism = Literal["auto", "bubblewrap", "landlock"]
OnTimeout = Literal["deny", "abort", "hold"]
WhenNobody = Literal["deny", "return", "wait"]
ApprovalsFrom = Literal["anyone", "designated", "local"]
WhenClientLeaves = Literal["continue", "interrupt"]
WithHttp = Literal["auto", "on", "off"]
WebhookState = Literal["waiting", "failed", "finished"]
McpFeatures = Literal["auto", "plain", "full"]
WorkspaceMode = Literal["local", "shared", "git"]
Inherit = Literal["safe", "all", "core", "none"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
WireApi = Literal["chat", "responses", "anthropic", "scripted"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max", "none"]
Thinking = Literal["adaptive", "between_tools", "disabled"]
Summary = Literal["auto", "concise", "detailed", "none"]

Retries = Annotated[int, integer(0, 100)]
"""A number of retries, at most 100. The delay doubles with each retry, so in practice no request reaches 100
retries.
"""
Seconds = Annotated[int, integer(0, 2**31 - 1)]
Hours = Annotated[int, integer(0, 24 * 366)]
Milliseconds = Annotated[int, integer(1, 2**31 - 1)]
Count = Annotated[int, integer(1, 2**63 - 1)]
Limit = Annotated[int, integer(0, 2**63 - 1)]
Amount = Annotated[float, amount]
NamedSecrets = Annotated[dict[str, str], named_secrets]
Address = Annotated[str, address]
PathOrHomePath = Annotated[str, path_or_home_path]


class ReplyLimits(Struct, frozen=True, kw_only=True):
    """Size limits for a model's response. A turn fails if a response exceeds a limit."""

    max_reply_characters: Count = 10_000_000
    """The maximum number of characters in the text and the reasoning of a response together."""
    max_argument_characters: Count = 10_000_000
    """The maximum number of characters in the arguments of all tool calls of a response together."""
    max_calls: Count = 4096
    max_event_bytes: Annotated[int, integer(1024, 2**31 - 1)] = 64 * 1024 * 1024
    """The maximum size of one server-sent event, in bytes. The limit must be large enough for a whole response,
    because the last event of the Responses API contains the whole response.
    """


class ProviderTable(ReplyLimits, frozen=True, kw_only=True):
    """The table `[model_providers.ID]`: a provider of models."""

    name: str = ""
    wire_api: WireApi = "chat"
    base_url: Address | None = None
    env_key: str | None = None
    """The name of the environment variable that contains the API key; None if the provider needs no key. The server
    reads the key for each request and never stores it.
    """
    env_key_instructions: str | None = None
    query_params: NamedSecrets = {}
    http_headers: NamedSecrets = {}
    env_http_headers: dict[str, str] = {}
    """Maps the names of headers to the environment variables that contain their values. A header is left out if its
    variable is not set.
    """
    request_max_retries: Retries = 4
    stream_max_retries: Retries = 5
    stream_idle_timeout_ms: Milliseconds = 300_000
    stream_usage: bool = False
    """True if requests to the chat API ask for token counts (`stream_options`)."""
    script: str | None = None
    """The file with the responses of the scripted provider; None means the built-in demonstration script."""


class Provider(ProviderTable, frozen=True, kw_only=True):
    """A provider of models: its URL, the source of its key, and the parameters of its requests."""

    id: str
    """The name of the provider's table, `[model_providers.ID]`."""
    is_openai: bool = False
    """True for the built-in provider `openai`. Its key is always `OPENAI_API_KEY`, from the environment or from
    `auth.json`.
    """


class WorkspaceWrite(Struct, frozen=True, kw_only=True):
    """The table `[sandbox_workspace_write]`: the permissions of commands in the mode `workspace-write`."""

    writable_roots: Annotated[tuple[str, ...], sequence_of(absolute_path)] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


class Sandbox(Struct, frozen=True, kw_only=True):
    """The table `[sandbox]`: restrictions on commands, in every sandbox mode that uses a sandbox."""

    mechanism: Mechanism = "auto"
    """The sandbox mechanism. `auto` chooses the best mechanism that works on this computer."""
    hidden_paths: Annotated[tuple[str, ...], sequence_of(path_or_home_path)] = (
        "~/.ssh",
        "~/.aws",
        "~/.gnupg",
        "~/.config/gh",
        "~/.netrc",
        "~/.docker/config.json",
    )
    """Paths that neither commands nor the model may read. In `Settings`, the paths are absolute and include
    Parley's home.
    """
    allow_unix_sockets: bool = False


class Approvals(Struct, frozen=True, kw_only=True):
    """The table `[approvals]`: timeouts for approval requests, the clients that may answer them, and the handling
    of requests that no client can answer.
    """

    timeout_seconds: Seconds = 300
    """The time after which an approval request times out, in seconds; 0 means no timeout."""
    on_timeout: OnTimeout = "deny"
    when_nobody: WhenNobody = "deny"
    """What happens to an approval request if only `codex` calls are waiting for the turn and no client supports
    approval requests. `deny` denies the action, `return` ends the waiting calls with a message, and `wait` keeps
    the request open until its timeout.
    """
    session_hours: Hours = 12
    """The number of hours for which an approval with the decision "for the session" is valid; 0 means that the
    approval is valid only once.
    """
    from_: ApprovalsFrom = field(default="anyone", name="from")
    """The clients that may answer an approval request. `anyone` means every client whose role allows answers.
    `designated` means only the clients of the principal that began the turn. `local` means only local clients.
    """


class ApprovalsTable(Approvals, frozen=True, kw_only=True):
    """The table `[approvals]` in config.toml.

    The table also contains `model_may_answer`. This setting is not part of a conversation's settings, because
    clients can change a conversation's settings.
    """

    model_may_answer: bool = False


class McpTable(Struct, frozen=True, kw_only=True):
    """The table `[mcp]`: the behaviour of the server towards MCP clients."""

    features: McpFeatures = "auto"
    """The additions to MCP that a client sees. `plain` means no additions, and `full` means all additions. If the
    value is `auto`, the additions depend on the client's protocol version and host.
    """
    resident: bool = False
    """True if `parley mcp` starts a resident server when none is running."""
    when_client_leaves: WhenClientLeaves = "continue"
    """What happens to the running turns of a client when the client disconnects from a resident server: they
    continue, or they are interrupted.
    """
    modern: bool = True
    """True if the server supports the protocol version 2026-07-28; False if it supports only earlier versions."""


class McpSettings(McpTable, frozen=True, kw_only=True):
    """The settings for MCP clients. They come from config.toml and the command line, and clients cannot change
    them.
    """

    model_may_answer: bool = False
    """True if the server offers the tool `approvalAnswer` to known hosts. The value comes from
    `[approvals] model_may_answer`.
    """


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The table `[serve]`: settings for the resident server."""

    drain_seconds: Seconds = 30
    """The maximum number of seconds for which the server waits for running turns before it stops."""
    idle_exit_minutes: Annotated[int, integer(0, 60 * 24 * 366)] = 30
    """The time in minutes after which an idle server that `parley mcp` started exits; 0 means never. A server is
    idle while it has neither clients nor running turns.
    """
    http: WithHttp = "auto"
    """Determines whether the resident server also serves HTTP. If the value is `auto`, the server serves HTTP
    unless `parley mcp` started it.
    """
    host: str = "127.0.0.1"
    port: Annotated[int, integer(0, 65_535)] = 0
    """The TCP port; 0 means any free port."""
    public_url: Address | None = None
    """The URL at which clients reach the server through a proxy that adds TLS; None if there is no proxy."""
    tls_cert: PathOrHomePath | None = None
    tls_key: PathOrHomePath | None = None
    origins: Annotated[tuple[str, ...], sequence_of(origin)] = ()
    """The origins of the web pages that may send requests to the server."""
    push_hosts: Annotated[tuple[str, ...], sequence_of(push_host)] = ()
    """The hosts of additional push services to which the server may send notifications. The push services of common
    browsers are always allowed.
    """
    max_connections: Annotated[int, integer(8, 65_536)] = 1024
    max_sessions: Annotated[int, integer(1, 65_536)] = 1024
    max_body_bytes: Annotated[int, integer(1024, 2**30)] = 64 * 1024 * 1024
    """The maximum size of the body of a request with a valid token, in bytes."""
    max_unauthenticated_body_bytes: Annotated[int, integer(0, 2**30)] = 4 * 1024 * 1024
    """The maximum number of bytes that the server receives and discards from the body of a request that it rejects,
    for example because the token is invalid.
    """
    session_minutes: Annotated[int, integer(1, 60 * 24 * 366)] = 30
    """The number of minutes for which a session is kept while it has neither requests nor streams."""
    roots: Annotated[tuple[str, ...], sequence_of(path_or_home_path)] = ()
    """The directories below which clients without the role `admin` may choose a working directory."""
    requests_per_second: Annotated[int, integer(0, 10**6)] = 500
    """The maximum number of requests per second for each token, averaged over ten seconds; 0 means no limit."""
    max_commands: Annotated[int, integer(0, 65_536)] = 64
    """The maximum number of commands that may run at the same time, in all turns together; 0 means no limit."""


class NodeSettings(Struct, frozen=True, kw_only=True):
    """The table `[node]`: settings for a server that is one of several nodes with the same PostgreSQL database."""

    id: str | None = None
    """The unique name of the node; None means the host name."""
    url: Address | None = None
    """The URL at which the other nodes reach this node; None means the host and port of the server."""


class Repository(Struct, frozen=True, kw_only=True):
    """The table `[workspace.repositories.NAME]`: a Git repository in which conversations can work."""

    url: Annotated[str, repository_address] | None = None
    """The path or the URL of the repository, which may contain a password. This setting is required; None means
    that it is missing.
    """
    branch: str | None = None
    """The branch from which the branches of conversations begin; None means the repository's default branch."""
    token_env: str | None = None
    """The name of the environment variable that contains the password for an https URL; None if the password is in
    the URL, or if no password is needed.
    """
    ssh_key: PathOrHomePath | None = None
    """The file with the private key for an ssh URL; None means the default of ssh."""
    ssh_known_hosts: PathOrHomePath | None = None
    """The file with the public keys of the hosts that an ssh URL may name; None means the default file of ssh."""

    def __repr__(self) -> str:
        return "<a repository>"


class WorkspaceSettings(Struct, frozen=True, kw_only=True):
    """The table `[workspace]`: settings for the working directories of conversations, and for the repositories."""

    mode: WorkspaceMode = "local"
    """The place of the working directories: the disk of one node (`local`), a file system that all nodes mount
    (`shared`), or worktrees of Git repositories (`git`).
    """
    roots: Annotated[tuple[str, ...], sequence_of(path_or_home_path)] = ()
    """The directories below which this node can run turns. If there are none, the node can run turns in every
    directory that exists.
    """
    directory: PathOrHomePath | None = None
    """The directory with the clones and the worktrees of the repositories. It is required in the mode `git`, and
    has no effect in the other modes.
    """
    repositories: dict[str, Repository] = {}
    author: str = "Parley <parley@localhost>"
    """The author of the commits that Parley makes in worktrees, in the form `NAME <ADDRESS>`."""
    keep_days: Annotated[int, integer(0, 36_500)] = 14
    """The time for which an unused worktree is kept, in days; 0 means no limit."""


class WebhookTable(Struct, frozen=True, kw_only=True):
    """The table `[webhook]`: the receiver that is notified when a conversation needs a person.

    Only config.toml can contain this table.
    """

    url: Annotated[str, webhook_address] | None = None
    secret_env: str | None = None
    """The name of the environment variable that contains the secret for signing notifications; None if the setting
    is absent. A webhook without a secret is an error.
    """
    events: Annotated[tuple[WebhookState, ...], sequence_of(one_of("waiting", "failed", "finished"))] = (
        "waiting",
        "failed",
        "finished",
    )
    """The states of a conversation about which the receiver is notified."""


class Secret(bytes):
    """A secret value. `repr` does not show it."""

    def __repr__(self) -> str:
        return "<secret>"


class Webhook(Struct, frozen=True, kw_only=True):
    """The settings of a home's webhook, including the signing key."""

    url: str
    key: Secret
    """The key for signing notifications."""
    events: tuple[WebhookState, ...]


class Price(Struct, frozen=True, kw_only=True):
    """The table `[prices.MODEL]`: the price of a million tokens of a model, in any currency."""

    input: Amount | None = None
    cached_input: Amount | None = None
    """The price of input tokens that the provider read from its cache; None means the price of other input tokens.
    """
    cache_write: Amount | None = None
    """The price of input tokens that the provider wrote to its cache; None means the price of other input tokens.
    """
    output: Amount | None = None


class Limits(Struct, frozen=True, kw_only=True):
    """The table `[limits]`: the amounts of usage at which a person is asked whether the agent may continue; 0 means
    no limit.
    """

    turn_tokens: Limit = 0
    turn_seconds: Limit = 0
    turn_calls: Limit = 0
    conversation_tokens: Limit = 0
    turn_cost: Amount = 0.0
    conversation_cost: Amount = 0.0


class StoreSettings(Struct, frozen=True, kw_only=True):
    """The table `[store]`: settings that determine how long conversations stay on disk and in memory."""

    keep_days: Annotated[int, integer(0, 36_500)] = 0
    """The number of days for which an archived conversation is kept after its last activity; 0 means no limit."""
    idle_seconds: Seconds = 300
    """The time for which an unused conversation stays in memory, in seconds."""
    idle_conversations: Annotated[int, integer(0, 2**31 - 1)] = 1000
    """The maximum number of unused conversations that stay in memory."""


class StoreTable(StoreSettings, frozen=True, kw_only=True):
    """The table `[store]` in config.toml.

    The table also contains `url`. This setting is not part of `StoreSettings`, because it may contain a password.
    """

    url: Annotated[str, database_address] | None = None


class StoreUrl(str):
    """The URL of the database with the conversations. `repr` does not show it, because it may contain a
    password.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "<the URL of a database>"


class NodeToken(str):
    """The token that all nodes share. `repr` does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<the token of the nodes>"


class ShellEnvironment(Struct, frozen=True, kw_only=True):
    """The table `[shell_environment_policy]`: the environment variables that commands inherit from the server."""

    inherit: Inherit = "safe"
    ignore_default_excludes: bool = False
    exclude: tuple[str, ...] = ()
    set: NamedSecrets = {}
    include_only: tuple[str, ...] = ()


class ToolServerTable(Struct, frozen=True, kw_only=True):
    """The table `[mcp_servers.NAME]`: a tool server, which is either a program to start or a URL."""

    enabled: bool = True
    command: str | None = None
    args: Annotated[tuple[str, ...], secret_sequence] = ()
    env: NamedSecrets = {}
    cwd: PathOrHomePath | None = None
    """The working directory of the program; None means a directory that no command can write to."""
    url: Address | None = None
    bearer_token_env_var: str | None = None
    http_headers: NamedSecrets = {}
    env_http_headers: dict[str, str] = {}
    """Maps the names of headers to the environment variables that contain their values."""
    tool_timeout_seconds: Seconds = 600
    """The maximum duration of a tool call, in seconds; 0 means no limit."""
    max_answer_bytes: Annotated[int, integer(1024, 2**30)] = 16 * 1024 * 1024
    """The maximum size of a message from the tool server, in bytes."""


class ToolServer(ToolServerTable, frozen=True, kw_only=True):
    """A tool server from the settings, with its name."""

    name: str
    missing: tuple[str, ...] = ()
    """The keys of this tool server whose values are missing. An earlier call contained these values, but they were
    not stored, because they may be secrets, and no current source contains them. A tool server with missing keys is
    not started.
    """


class Profile(Struct, frozen=True, kw_only=True):
    """The table `[profiles.NAME]`: the settings that a profile may contain. Each of these settings may also be at
    the top level of config.toml.
    """

    model: str = "gpt-5"
    model_provider: str = "openai"
    approval_policy: ApprovalPolicy = "on-request"
    model_reasoning_effort: Effort | None = None
    """The effort that the model spends on reasoning. None means `medium` for the Responses API, and the model's own
    default for the Anthropic Messages API.
    """
    model_reasoning_summary: Summary = "auto"
    model_thinking: Thinking | None = None
    """The kind of reasoning in the Anthropic Messages API; None means the model's own default."""
    model_thinking_budget: Annotated[int, integer(1024, 2**31 - 1)] | None = None
    """The maximum number of tokens for reasoning in the Anthropic Messages API, for models without adaptive
    reasoning; None means no such limit.
    """
    model_max_output_tokens: Count | None = None
    """The maximum number of tokens in a response of the Anthropic Messages API, including reasoning; None means
    32,000 (`DEFAULT_MAX_OUTPUT_TOKENS` in `models/anthropic.py`).
    """
    disable_response_storage: bool = False
    experimental_instructions_file: str | None = None


class CommonSettings(Profile, frozen=True, kw_only=True):
    """The settings that have the same form in config.toml and in `Settings`."""

    sandbox_mode: SandboxMode = "read-only"
    approvals: Approvals = Approvals()
    limits: Limits = Limits()
    prices: dict[str, Price] = {}
    """The prices of models, keyed by the name of the model, with or without the name of its provider."""
    developer_instructions: str = ""
    """Instructions for the model in addition to the base instructions; empty for no additional instructions."""
    compact_prompt: str = ""
    """Instructions for the model when it summarizes the history; empty means Parley's own instructions."""
    model_supports_reasoning_summaries: bool = False
    web_search: bool = False
    """True if the provider may search the web for the model."""
    model_context_window: Count | None = None
    """The size of the context window, in tokens; None means the known size for the model (`agent/tokens.py`), if
    there is one.
    """
    show_raw_agent_reasoning: bool = False
    project_doc_max_bytes: Annotated[int, integer(0, 2**31 - 1)] = 32_768
    notify: Annotated[tuple[str, ...], secret_sequence] = ()
    """The command line of a program that runs after each completed turn; empty if no program runs."""
    notify_argument: bool = True
    """If True, the notify program gets the JSON description of the completed turn as its last argument as well as
    on stdin; if False, only on stdin.
    """
    internal_originator: str = "codex_cli_rs"
    record: PathOrHomePath | None = None
    """The file in which the requests to the model and the responses are recorded; None if they are not recorded."""


class ConfigFile(CommonSettings, frozen=True, kw_only=True):
    """Every setting in config.toml."""

    profile: str | None = None
    profiles: dict[str, Profile] = {}
    sandbox_workspace_write: WorkspaceWrite = WorkspaceWrite()
    sandbox: Sandbox = Sandbox()
    approvals: ApprovalsTable = ApprovalsTable()
    experimental_resume: str | None = None
    mcp_servers: dict[str, ToolServerTable] = {}
    shell_environment_policy: ShellEnvironment = ShellEnvironment()
    mcp: McpTable = McpTable()
    store: StoreTable = StoreTable()
    serve: ServeSettings = ServeSettings()
    node: NodeSettings = NodeSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    webhook: WebhookTable = WebhookTable()
    model_providers: dict[str, ProviderTable] = {}


class SettingsOverrides(Struct, frozen=True, kw_only=True):
    """The settings that the arguments of one call contain, in named arguments and in `config`. They override the
    settings from config.toml and the command line.
    """

    model: str | None = None
    profile: str | None = None
    cwd: str | None = None
    repository: str | None = None
    """The name of the repository in which the conversation works; None if the conversation works in a directory.
    Only the call that creates the conversation can contain a repository.
    """
    approval_policy: str | None = None
    sandbox: str | None = None
    base_instructions: str | None = None
    developer_instructions: str | None = None
    compact_prompt: str | None = None
    include_plan_tool: bool | None = None
    config: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    """The JSON Schema for the text of the model's responses. An empty schema removes the schema of earlier calls,
    and None keeps that schema.
    """
    not_stored: tuple[tuple[str, ...], ...] | None = None
    """The paths of the keys that were removed from the settings of tool servers when the overrides were stored,
    because the values may be secrets. None if no key was removed, or if the overrides come directly from a client.
    """


class Environment(dict[str, str]):
    """Environment variables. `repr` does not show them, because they may be secrets."""

    def __repr__(self) -> str:
        return f"<{len(self)} environment variables>"


class Settings(CommonSettings, frozen=True, kw_only=True):
    """The settings of one conversation, combined from config.toml, the command line and the calls of clients."""

    environ: Environment
    """The environment variables of the client to which these settings belong, including API keys and `PATH`. They
    are never stored.
    """
    home: str
    cwd: str
    """The absolute path of the working directory. It need not exist."""
    repository: str | None = None
    """The name of the Git repository, if the working directory is a worktree; otherwise None."""
    provider: Provider
    model_name: str = ""
    """The name of the model at its provider. This is `model` without a leading provider name and slash."""
    workspace_write: WorkspaceWrite
    sandbox: Sandbox
    base_instructions: str | None
    """The base instructions, from a call or from `experimental_instructions_file`; None means Parley's own base
    instructions.
    """
    mcp_servers: tuple[ToolServer, ...]
    shell_environment: ShellEnvironment
    key_variables: frozenset[str]
    """The names of the environment variables that contain secrets of the server, such as the keys of providers and
    tool servers, the tokens for HTTP clients and nodes, and the secret of the webhook. Only the server may read
    these variables.
    """
    include_plan_tool: bool
    output_schema: dict[str, Any] | None = None
    """The JSON Schema for the text of the model's responses; None for free text."""
    clones: tuple[str, ...] = ()
    """The absolute path of the directory with the clones of repositories, both as configured and with symbolic
    links resolved. Commands must not write to this directory. The tuple is empty if no directory is configured.
    """
    tls_files: tuple[str, ...] = ()
    """The absolute paths of the TLS certificate and its private key, and of the private ssh keys of the
    repositories, if the settings name them.
    """

    @property
    def withheld_paths(self) -> tuple[str, ...]:
        """The files and directories whose content must not reach a model.

        These paths include Parley's home. They also include `config.toml` and `auth.json` in the home, because
        these files may be symbolic links to files outside the home.
        """
        own = (os.path.join(self.home, name) for name in _OWN_FILES)
        return *self.sandbox.hidden_paths, self.home, *own, *self.tls_files, *hidden_tls_files(), *hidden_log_file()

    @property
    def network_access(self) -> bool:
        """True if commands may use the network."""
        if self.sandbox_mode == "workspace-write":
            return self.workspace_write.network_access
        return self.sandbox_mode == "danger-full-access"

    @property
    def writable_directories(self) -> list[str]:
        """The directories that commands may write to if `sandbox_mode` is `workspace-write`. The paths may be
        symbolic links, and need not exist.
        """
        chosen = self.workspace_write
        names = [self.cwd, *chosen.writable_roots]
        if not chosen.exclude_slash_tmp:
            names.append("/tmp")
        if not chosen.exclude_tmpdir_env_var and (named := self.environ.get("TMPDIR", "")).startswith("/"):
            names.append(named)
        return names


_OWN_FILES: Final = ("config.toml", "auth.json")
"""Files in Parley's home that can contain secrets, and that can be symbolic links to files outside the home."""


class ResolvedSettings(Struct, frozen=True):
    """The settings of a conversation, with the overrides of all calls so far. `Loader.choose` applies the overrides
    of the next call to `values`.
    """

    values: dict[str, Any]
    """The value of every setting, keyed by name. The values combine the defaults, config.toml and the command line
    at the beginning of the conversation, and all calls since then.
    """
    settings: Settings
