"""Combines config.toml, the command line and the arguments of a client's call into the settings of one
conversation.

This module decides which source takes precedence. The settings do not contain the API keys of providers, but only
the names of the environment variables that contain the keys. No settings are read from the working directory of a
conversation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from parley.common.files import FileVersion, file_version
from parley.common.guarded_files import read_named
from parley.common.home import named_home
from parley.common.os_errors import os_detail
from parley.common.spelling import shortened
from parley.config.checks import DATABASE_ADDRESS, Wrong, is_database_address
from parley.config.choose_provider import URL_OF_OPENAI, choose_provider, with_provider_of
from parley.config.errors import ProfileNotFound
from parley.config.provider_keys import find_key, key_variable
from parley.config.providers import AZURE_ENDPOINT, READY_PROVIDERS, provider_table, split_model
from parley.config.schema import DEFAULTS, NAMED_ARGUMENTS
from parley.config.sources import (
    Source,
    bad_setting,
    checked,
    mentions,
    merge,
    parse_argument,
    parse_config,
    parse_override,
    read_config,
    setting_error,
    source_of,
    unknown_key_sentence,
    utf8,
)
from parley.config.toml_lines import KeyPath, written_key
from parley.config.types import (
    Approvals,
    CommonSettings,
    Environment,
    Limits,
    McpSettings,
    NodeSettings,
    NodeToken,
    Price,
    Provider,
    ResolvedSettings,
    Sandbox,
    ServeSettings,
    Settings,
    SettingsOverrides,
    ShellEnvironment,
    StoreSettings,
    StoreUrl,
    ToolServer,
    Webhook,
    WorkspaceSettings,
    WorkspaceWrite,
)
from parley.config.unknown_keys import refuse_misspelt, unknown_keys
from parley.config.user_paths import absolute, expand, targets_of_links, user_home
from parley.config.webhook import read_webhook
from parley.config.workspace_settings import workspace_settings
from parley.errors import BadSetting, ConfigError

__all__ = ["STORE_VARIABLE", "Loader", "check_overrides", "why_unusable"]

_REMEMBERED: Final = 64
"""The maximum number of resolved combinations of settings that are cached.

Clients normally use fewer combinations. The limit prevents a client from filling the memory by sending a new
combination in each call.
"""


_MAX_INSTRUCTIONS_BYTES: Final = 16 * 1024 * 1024

STORE_VARIABLE: Final = "PARLEY_STORE_URL"
"""The environment variable with the URL of the database. The variable takes precedence over config.toml."""

NODE_VARIABLE: Final = "PARLEY_NODE_TOKEN"
"""The environment variable with the token that all nodes share."""
_MIN_NODE_TOKEN_CHARACTERS: Final = 32

_UNCHANGED: Final = frozenset(CommonSettings.__struct_fields__) - {"approvals", "limits", "prices", "record"}
"""The names of the settings that are copied to conversations unchanged."""


class Loader:
    """Resolves the settings of conversations, for one process or for one client of a resident server.

    A loader copies the environment when it is created, and reads config.toml for each conversation.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        server_dir: str,
        overrides: Sequence[str] = (),
        home: str | None = None,
        text: str | None = None,
    ) -> None:
        """Create a loader. `overrides` contains the values of the option `-c`, in the order of the command line.
        `home` replaces the home that the environment names. `text` replaces the text of config.toml. Relative
        working directories are relative to `server_dir`.

        Raises:
            BadSetting: an override cannot be parsed or is invalid.
        """
        self._environ = Environment(environ)
        self._server_dir, self._home, self._text = server_dir, home, text
        self._overrides = _without_private(checked("-c", refuse_misspelt(map(parse_override, overrides))))
        self._file = Source("config.toml", {})
        self._version: FileVersion | None = None
        """The version of config.toml that `_file` contains; None if it must be read again."""
        self._made: dict[tuple[SettingsOverrides, bytes], ResolvedSettings] = {}

    @property
    def home(self) -> str:
        """The home directory, which contains config.toml and the database. The default directory may not exist.

        Raises:
            BadSetting: PARLEY_HOME, CODEX_HOME and HOME are not set, or PARLEY_HOME or CODEX_HOME names a directory
                that does not exist.
        """
        if self._home is not None:
            return self._home
        if (named := named_home(self._environ, self._server_dir)) is None:
            raise BadSetting("neither PARLEY_HOME nor HOME is set, so there is no home directory")
        home = utf8(named.path, source=named.variable)
        if named.variable != "HOME":
            _refuse_missing_directory(home, named_by=named.variable)
        return home

    def choose(self, overrides: SettingsOverrides, before: ResolvedSettings | None = None) -> ResolvedSettings:
        """Apply the overrides of a call to `before`, the settings before the call, and return the resulting
        settings. If `before` is None, the call begins a conversation.

        The returned settings contain the values of config.toml at the time when the conversation began. Later
        changes of the file have no effect on them.

        Raises:
            BadSetting: a source cannot be read, or a value in it is invalid.
            ProfileNotFound: the settings have no such profile.
            ProviderNotFound: the settings have no such provider.
        """
        argument = _without_private(
            checked("config argument", refuse_misspelt(parse_argument(overrides.config or {})))
        )
        if before is None:
            return self._begin(overrides, argument)
        values = merge(before.values, into={})
        settings = self._apply_call(overrides, argument, values, (self._overrides, argument))
        if values == before.values:
            return before
        return ResolvedSettings(values, before.settings if settings == before.settings else settings)

    def absolute(self, cwd: str) -> str:
        """Return a working directory as an absolute path. A relative path is relative to the server's directory."""
        return absolute(cwd, self._server_dir)

    def sources(self) -> tuple[Source, Source]:
        """Return config.toml and the command line. The command line takes precedence.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        self._load_if_changed()
        return self._file, self._overrides

    def variable(self, name: str) -> str | None:
        """Return the value of an environment variable without surrounding spaces; None if the variable is empty or
        not set.
        """
        return self._environ.get(name, "").strip() or None

    def store_settings(self) -> StoreSettings:
        """Return the settings for the store, from config.toml and the command line.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return StoreSettings(**_without_url(self._table("store")))

    def store_url(self) -> StoreUrl | None:
        """Return the URL of the PostgreSQL database with the conversations, from the environment or from
        config.toml; None if the conversations are in the home.

        Raises:
            BadSetting: config.toml cannot be read, or the URL is invalid.
        """
        if given := self._environ.get(STORE_VARIABLE, "").strip():
            if not is_database_address(given):
                raise BadSetting(DATABASE_ADDRESS, source=STORE_VARIABLE)
            return StoreUrl(given)
        self._load_if_changed()
        url = self._file.values.get("store", {}).get("url")
        return None if url is None else StoreUrl(url)

    def serve_settings(self) -> ServeSettings:
        """Return the settings for the resident server, from config.toml and the command line.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return ServeSettings(**self._table("serve"))

    def node_settings(self) -> NodeSettings:
        """Return the settings for a server that is a node, from config.toml and the command line.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return NodeSettings(**self._table("node"))

    def workspace_settings(self) -> WorkspaceSettings:
        """Return the settings in the table `[workspace]`, from config.toml and the command line.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return workspace_settings(self._table("workspace"), (self._file, self._overrides))

    def node_token(self) -> NodeToken | None:
        """Return the token that all nodes share; None if the environment contains no token.

        Raises:
            BadSetting: the token is too short or has characters that a header cannot contain.
        """
        if not (given := self._environ.get(NODE_VARIABLE, "").strip()):
            return None
        if (
            len(given) < _MIN_NODE_TOKEN_CHARACTERS
            or not given.isascii()
            or not given.isprintable()
            or " " in given
        ):
            detail = f"expected at least {_MIN_NODE_TOKEN_CHARACTERS} printable ASCII characters without spaces"
            raise BadSetting(detail, source=NODE_VARIABLE)
        return NodeToken(given)

    def profiles(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each profile in config.toml and on the command line, keyed by the name of the
        profile.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return self._table("profiles")

    def providers(self) -> tuple[str, ...]:
        """Return the names of the providers that config.toml and the command line define.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        return tuple(self._table("model_providers"))

    def ready_providers(self) -> dict[str, str | None]:
        """Return the preconfigured providers, each with the environment variable that is missing for it.

        The keys are the names of the providers. Each value is the name of an environment variable that the provider
        needs and that is not set; None if the provider can be used. A key in auth.json replaces the variable.
        """
        tables = self._table("model_providers")
        missing: dict[str, str | None] = {}
        endpoint = self._environ.get(AZURE_ENDPOINT, "").strip()
        for name in READY_PROVIDERS:
            table = provider_table(name, tables, azure_endpoint=endpoint) or {}
            provider = Provider(**{"id": name, "name": name} | table)
            variable = key_variable(provider)
            has_key = variable is None or find_key(provider, self.home, self._environ) is not None
            missing[name] = (None if "base_url" in table else AZURE_ENDPOINT) if has_key else variable
        return missing

    def _table(self, name: str) -> dict[str, Any]:
        """Return the settings in the table `name`, combined from the current config.toml and the command line."""
        self._load_if_changed()
        return self._loaded_table(name)

    def _loaded_table(self, name: str) -> dict[str, Any]:
        """Return the settings in the table `name`, combined from config.toml, as it was last read, and the command
        line.
        """
        return merge(self._overrides.values.get(name, {}), into=merge(self._file.values.get(name, {}), into={}))

    def webhook(self) -> Webhook | None:
        """Return the webhook; None if there is no webhook. Only config.toml can define a webhook.

        Raises:
            BadSetting: config.toml cannot be read, a value in it is invalid, or the secret of the webhook is
                missing or too short.
        """
        self._load_if_changed()
        return read_webhook(self._file, self._environ)

    def unknown_keys(self) -> Iterator[str]:
        """Yield a sentence about each unknown key of config.toml, with the most similar known setting.

        The sentences are computed one at a time, so that the caller can stop early if config.toml has very many
        unknown keys.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        self._load_if_changed()
        source = self._file
        return (unknown_key_sentence(source, key) for key in unknown_keys(source.table))

    def mcp_settings(self) -> McpSettings:
        """Return the settings for MCP clients, from config.toml and the command line.

        Raises:
            BadSetting: config.toml cannot be read, or a value in it is invalid.
        """
        may_answer = self._table("approvals").get("model_may_answer", False)
        return McpSettings(**self._loaded_table("mcp"), model_may_answer=may_answer)

    def _load_if_changed(self) -> None:
        path = os.path.join(self.home, "config.toml")
        version = None
        if self._text is None and (version := file_version(path)) is not None and version == self._version:
            return
        text = read_config(path) if self._text is None else self._text
        if text != self._file.text:
            self._file = parse_config(path, text)
            self._made.clear()
        self._version = version

    def _begin(self, overrides: SettingsOverrides, argument: Source) -> ResolvedSettings:
        """Return the settings of a new conversation, resolved from the current config.toml and the overrides of the
        call. Cache these settings, unless they contain instructions from a file. `argument` contains the settings
        in the `config` argument of the call.
        """
        self._load_if_changed()
        key = (replace(overrides, config=None), msgspec.json.encode(argument.values))
        chosen = self._made.get(key)
        if chosen is None:
            sources = (self._file, self._overrides, argument)
            values = merge(DEFAULTS, into={})
            del values["model_provider"]  # `_apply` must know whether a source sets the provider
            for source in sources[:2]:
                self._apply(source.values, values)
            values["store"] = _without_url(values["store"])
            values["workspace"] = _without_repositories(values["workspace"])
            settings = self._apply_call(overrides, argument, values, sources, profile=values.get("profile"))
            chosen = ResolvedSettings(values, settings)
            # Instructions from a file are not cached, because the file may change.
            if settings.base_instructions is overrides.base_instructions:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[key] = chosen
        return chosen

    def _apply_call(
        self,
        overrides: SettingsOverrides,
        argument: Source,
        values: dict[str, Any],
        sources: Sequence[Source],
        *,
        profile: str | None = None,
    ) -> Settings:
        """Apply the overrides of one client call to `values` in place, and return the resulting settings.
        `argument` contains the settings in the `config` argument of the call.

        If the call names no profile, the profile `profile` is used.
        """
        said = dict(argument.values)
        self._apply(said, values)
        if overrides.profile is not None or "profile" in said:
            profile = said.get("profile") if overrides.profile is None else overrides.profile
        if profile is not None:
            if profile not in values["profiles"]:
                named_by = None if overrides.profile is not None else source_of(sources, ("profile",))
                raise ProfileNotFound(profile, source=named_by)
            self._refuse_misspelt_in(profile)
            said |= values["profiles"][profile]
            self._apply(values["profiles"][profile], values)
        self._apply(_check_named_arguments(overrides), values)
        if overrides.cwd is not None and "repository" in values:
            raise bad_setting("cannot be combined with `repository`", ("cwd",))
        if overrides.not_stored:
            values["not_stored"] = (*values.get("not_stored", ()), *overrides.not_stored)
        if "experimental_instructions_file" in said:
            values["base_instructions"] = None
        for name in ("base_instructions", "include_plan_tool"):
            if (given := getattr(overrides, name)) is not None:
                values[name] = given
        if overrides.output_schema is not None:
            values["output_schema"] = overrides.output_schema or None
        return self._settings(values, sources, profile)

    def _apply(self, over: Mapping[str, Any], values: dict[str, Any]) -> None:
        """Merge the settings of one source, `over`, into `values`, which contains the settings of the sources with
        lower precedence.

        If `over` sets a model without a provider, and no source sets `model_provider`, the new model gets the
        provider of the model that `values` contained before the merge.
        """
        before = values["model"]
        merge(over, into=values)
        if "model" in over and "model_provider" not in values:
            tables = values["model_providers"]
            values["model"] = with_provider_of(before, over["model"], tables=tables, environ=self._environ)

    def _refuse_misspelt_in(self, profile: str) -> None:
        """Check the keys of a profile in config.toml, because a misspelt key may have been meant to restrict the
        agent.

        Raises:
            BadSetting: a key is misspelt.
        """
        profiles = self._file.table.get("profiles", {})
        try:
            for _ in refuse_misspelt([{"profiles": {profile: profiles.get(profile)}}]):
                pass
        except Wrong as wrong:
            raise bad_setting(wrong.detail, wrong.at, self._file.name, self._file.text) from None

    def _settings(self, values: Mapping[str, Any], sources: Sequence[Source], profile: str | None) -> Settings:
        home = self.home

        def named_by(key: str) -> str | None:
            return source_of(sources, *((("profiles", profile, key),) if profile else ()), (key,))

        cwd = utf8(absolute(values.get("cwd", ""), self._server_dir), source="working directory")
        if "experimental_resume" in values:
            detail = "not supported; import the session with `parley import FILE`"
            raise setting_error(sources, ("experimental_resume",), detail)
        tables = values["model_providers"]
        find = partial(choose_provider, tables=tables, environ=self._environ, home=home, sources=sources)
        provider = find(values.get("model_provider", DEFAULTS["model_provider"]), named_by("model_provider"))
        model = values["model"]
        # The names of OpenAI's own models contain no slash.
        is_own_address = provider.is_openai and provider.base_url == URL_OF_OPENAI
        if is_own_address and (split := split_model(model, tables)) is not None:
            chosen, model = split
            provider = find(chosen, named_by("model"))
        settings = Settings(
            **{name: values[name] for name in _UNCHANGED if name in values},
            environ=self._environ,
            home=home,
            cwd=cwd,
            provider=provider,
            model_name=model,
            workspace_write=WorkspaceWrite(**values["sandbox_workspace_write"]),
            sandbox=self._sandbox(values["sandbox"], home),
            approvals=_approvals(values["approvals"]),
            limits=Limits(**values["limits"]),
            record=None if (record := values.get("record")) is None else expand(record, self._environ),
            prices={name: Price(**price) for name, price in values["prices"].items()},
            base_instructions=values.get("base_instructions"),
            mcp_servers=tuple(
                replace(server, missing=_missing(name, table, values.get("not_stored", ())))
                for name, table in values["mcp_servers"].items()
                if (server := self._tool_server(name, table, home, sources)).enabled
            ),
            shell_environment=ShellEnvironment(**values["shell_environment_policy"]),
            key_variables=_key_variables(values) | self._database_variables() | self._repository_variables(),
            include_plan_tool=values.get("include_plan_tool", False),
            output_schema=values.get("output_schema"),
            tls_files=self._tls_files(values),
            repository=self._repository(values.get("repository")),
            clones=self._clones(),
        )
        if settings.base_instructions is None and "experimental_instructions_file" in values:
            named = values["experimental_instructions_file"]
            try:
                settings = replace(settings, base_instructions=_read_instructions(named, settings))
            except BadSetting as error:
                error.source = named_by("experimental_instructions_file")
                raise
        return settings

    def _database_variables(self) -> frozenset[str]:
        """Return the names of the environment variables that contain the password of the database. The set is empty
        if no database is configured.
        """
        is_named = self._environ.get(STORE_VARIABLE) or "url" in self._file.values.get("store", {})
        return frozenset({"PGPASSWORD"} if is_named else ())

    def _repository_tables(self) -> dict[str, dict[str, Any]]:
        """Return the settings tables of the Git repositories, keyed by name. Only config.toml can define
        repositories.
        """
        tables: dict[str, dict[str, Any]] = self._file.values.get("workspace", {}).get("repositories", {})
        return tables

    def _repository_variables(self) -> frozenset[str]:
        """Return the names of the environment variables that contain passwords of Git repositories."""
        return frozenset(table["token_env"] for table in self._repository_tables().values() if "token_env" in table)

    def _clones(self) -> tuple[str, ...]:
        """Return the path of the directory that contains the clones of Git repositories, and the same path with
        symbolic links resolved. Return an empty tuple if `workspace.directory`, which contains both the clones and
        the worktrees, is not set.
        """
        directory: str | None = self._loaded_table("workspace").get("directory")
        if directory is None:
            return ()
        path = os.path.join(expand(directory, self._environ), "repositories")
        return tuple(dict.fromkeys((path, *targets_of_links((path,)))))

    def _repository(self, name: str | None) -> str | None:
        """Check that `name` is the name of a configured Git repository, and return `name`. Return None if `name` is
        None.

        Raises:
            BadSetting: `workspace.mode` is not `git`, or config.toml does not define the repository.
        """
        if name is None:
            return None
        workspace = self.workspace_settings()
        if workspace.mode != "git":
            raise bad_setting("needs a server with workspace.mode `git`", ("repository",))
        if name not in workspace.repositories:
            known = ", ".join(f"`{one}`" for one in workspace.repositories) or "none"
            detail = f"no repository `{shortened(name)}` in config.toml; the repositories are: {known}"
            raise bad_setting(detail, ("repository",))
        return name

    def _tls_files(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        named = [path for name in ("tls_cert", "tls_key") if (path := values["serve"].get(name)) is not None]
        named += [table["ssh_key"] for table in self._repository_tables().values() if "ssh_key" in table]
        return tuple(expand(path, self._environ) for path in named)

    def _tool_server(self, name: str, table: Mapping[str, Any], home: str, sources: Sequence[Source]) -> ToolServer:
        server = ToolServer(**{"name": name, **table})
        if bool(server.command) == bool(server.url):
            detail = "a tool server has either a `command` or a `url`"
            raise setting_error(sources, ("mcp_servers", name), detail)
        cwd, command = server.cwd, server.command
        if cwd is not None:
            cwd = expand(cwd, self._environ, base=self._server_dir)
        if command is not None and "/" in command:
            command = os.path.join(home if cwd is None else cwd, command)
        return replace(server, cwd=cwd, command=command)

    def _sandbox(self, table: Mapping[str, Any], home: str) -> Sandbox:
        sandbox = Sandbox(**table)
        has_home = bool(user_home(self._environ))
        named = (path for path in sandbox.hidden_paths if has_home or not path.startswith("~"))
        paths = (home, *(expand(path, self._environ, base=self._server_dir) for path in named))
        return replace(sandbox, hidden_paths=tuple(dict.fromkeys((*paths, *targets_of_links(paths)))))


def _key_variables(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the environment variables that may contain keys, tokens or other secrets.

    The variables of unused providers are included, because the next conversation may use these providers.
    """
    named = {"OPENAI_API_KEY", "PARLEY_SERVE_TOKEN", "PARLEY_TOKEN", STORE_VARIABLE, NODE_VARIABLE}
    named |= {f"OTEL_EXPORTER_OTLP_{part}HEADERS" for part in ("", "TRACES_", "METRICS_", "LOGS_")}
    named |= {ready["env_key"] for ready in READY_PROVIDERS.values() if "env_key" in ready}
    for provider in values["model_providers"].values():
        named |= {provider.get("env_key", ""), *provider.get("env_http_headers", {}).values()}
    for server in values["mcp_servers"].values():
        named |= {server.get("bearer_token_env_var", ""), *server.get("env_http_headers", {}).values()}
    named.add(values["webhook"].get("secret_env", ""))
    return frozenset(named - {""})


def _without_private(source: Source) -> Source:
    """Check that `source` defines no webhook, no Git repositories and no database, and return `source` unchanged.

    Raises:
        BadSetting: the source defines a webhook, a repository or a database.
    """
    if "webhook" in source.values:
        raise setting_error([source], ("webhook",), "can only be set in config.toml")
    if "repositories" in source.values.get("workspace", {}):
        raise setting_error([source], ("workspace", "repositories"), "can only be set in config.toml")
    if "url" in source.values.get("store", {}):
        raise setting_error([source], ("store", "url"), f"can only be set in config.toml or in {STORE_VARIABLE}")
    return source


def _without_url(store: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in store.items() if name != "url"}


def _without_repositories(workspace: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in workspace.items() if name != "repositories"}


def _missing(server: str, table: Mapping[str, Any], not_stored: Sequence[KeyPath]) -> tuple[str, ...]:
    """Return the keys in `not_stored` that belong to the tool server `server` and are not in `table`, its current
    settings. `not_stored` contains the keys whose values an earlier call supplied. The values were not stored,
    because they may be secrets.
    """
    lost = (
        path[2:] for path in not_stored if path[:2] == ("mcp_servers", server) and not mentions(table, path[2:])
    )
    return tuple(dict.fromkeys(map(written_key, lost)))


def check_overrides(overrides: SettingsOverrides) -> None:
    """Check the overrides of a call without resolving them. The profile and the provider that they name need not
    exist.

    Raises:
        BadSetting: a value is invalid.
    """
    checked("config argument", refuse_misspelt(parse_argument(overrides.config or {})))
    _check_named_arguments(overrides)


def why_unusable(loader: Loader) -> ConfigError | None:
    """Return the error that a server would report if it used the settings of `loader`; None if the settings can be
    used.
    """
    try:
        loader.choose(SettingsOverrides())
        loader.workspace_settings()
    except ConfigError as error:
        return error
    return None


def _check_named_arguments(overrides: SettingsOverrides) -> dict[str, Any]:
    """Check the named arguments of a call. Return their values, keyed by the names of the settings that they
    override.
    """
    given = {name: getattr(overrides, name) for name in NAMED_ARGUMENTS.fields}
    try:
        named = NAMED_ARGUMENTS(given, ())
    except Wrong as wrong:
        raise bad_setting(wrong.detail, wrong.at) from None
    if "sandbox" in named:
        named["sandbox_mode"] = named.pop("sandbox")
    return named


def _approvals(values: Mapping[str, Any]) -> Approvals:
    """Return the approval settings for a conversation.

    The result does not include `model_may_answer`, because clients must not change that setting. It is part of
    `mcp_settings`.
    """
    return msgspec.convert({key: value for key, value in values.items() if key != "model_may_answer"}, Approvals)


def _read_instructions(named: str, settings: Settings) -> str:
    """Return the base instructions from the file at the path `named`, which is relative to the working directory.
    The file may be in Parley's home, but not in any other of the `withheld_paths` of the settings.
    """
    path = os.path.join(settings.cwd, named)
    failed = f"failed to read experimental instructions file {path}"
    limit, hidden = _MAX_INSTRUCTIONS_BYTES, settings.withheld_paths
    try:
        data = read_named(named, cwd=settings.cwd, limit=limit + 1, hidden=hidden, own=settings.home)
        text = data.decode("utf-8-sig").strip()
    except OSError as error:
        raise BadSetting(f"{failed}: {os_detail(error)}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{failed}: not valid UTF-8") from None
    if len(data) > limit:
        raise BadSetting(f"{failed}: larger than {limit} bytes")
    if not text:
        raise BadSetting(f"experimental instructions file is empty: {path}")
    return text


def _refuse_missing_directory(path: str, *, named_by: str) -> None:
    try:
        os.stat(os.path.join(path, ""))  # a path that ends with a slash matches only a directory
    except FileNotFoundError as error:
        detail = f"{path}: {os_detail(error)}; create the directory, for example with `mkdir -p`"
        raise BadSetting(detail, source=named_by) from None
    except OSError as error:
        raise BadSetting(f"{path}: {os_detail(error)}", source=named_by) from None
