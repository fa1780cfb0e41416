"""Combines config.toml, the command line and the arguments of a call into the settings of one conversation.

Knows which source wins. Does not know what a setting is for, holds no secret (a provider names the variable that
holds its key), and reads no settings from the working directory of a conversation.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from parley.common.guarded_files import read_named
from parley.common.home import named_home
from parley.common.os_errors import os_detail
from parley.config.checks import Wrong, described, is_address
from parley.config.errors import ProfileNotFound, ProviderNotFound
from parley.config.schema import DEFAULTS, NAMED_ARGUMENTS
from parley.config.sources import (
    Source,
    bad_setting,
    blame,
    checked,
    mentions,
    merge,
    parse_argument,
    parse_config,
    parse_override,
    read_config,
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
    Provider,
    ResolvedSettings,
    Sandbox,
    ServeSettings,
    Settings,
    SettingsOverrides,
    ShellEnvironment,
    StoreSettings,
    ToolServer,
    WorkspaceWrite,
)
from parley.config.unknown_keys import refuse_misspelt, unknown_keys
from parley.errors import BadSetting

__all__ = ["Loader", "check_overrides"]

_REMEMBERED: Final = 64
"""How many resolved combinations of settings are cached. Clients really use fewer, and the limit bounds the
memory if a client sends a new combination with each call.
"""


_MOST_INSTRUCTIONS_BYTES: Final = 16 * 1024 * 1024

_UNCHANGED: Final = frozenset(CommonSettings.__struct_fields__) - {"approvals", "limits"}
"""Settings that are copied to conversations unchanged."""


class Loader:
    """Resolves the settings of conversations, for one process or for one client of a resident server.

    Copies the environment when it is created, and reads config.toml for each conversation.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        server_dir: str,
        overrides: Sequence[str] = (),
        home: str | None = None,
    ) -> None:
        """Create a loader. `overrides` are the texts given with `-c`, in order; `home` replaces the home that the
        environment names.

        Raises:
            BadSetting: an override cannot be read or does not fit.
        """
        self._environ = Environment(environ)
        self._server_dir, self._home = server_dir, home
        self._overrides = checked("-c", refuse_misspelt(map(parse_override, overrides)))
        self._file = Source("config.toml", {})
        self._made: dict[tuple[SettingsOverrides, bytes], ResolvedSettings] = {}

    @property
    def home(self) -> str:
        """The directory with config.toml and the database; the default one may be missing.

        Raises:
            BadSetting: the environment names no directory, or one that does not exist.
        """
        if self._home is not None:
            return self._home
        if (named := named_home(self._environ, self._server_dir)) is None:
            raise BadSetting("neither PARLEY_HOME nor HOME is set, so there is no home directory")
        home = utf8(named.path, source=named.variable)
        if named.variable != "HOME":
            _refuse_missing_directory(home, named_by=named.variable)
        return home

    def choose(self, wanted: SettingsOverrides, before: ResolvedSettings | None = None) -> ResolvedSettings:
        """Apply the overrides `wanted` of a call to the settings before it, and return the result.

        A conversation reads config.toml once, when it begins.

        Raises:
            BadSetting: a source cannot be read, or a value in it is invalid.
            ProfileNotFound: no such profile.
            ProviderNotFound: no such provider.
        """
        argument = checked("config argument", refuse_misspelt(parse_argument(wanted.config or {})))
        if before is None:
            return self._begin(wanted, argument)
        values = merge(before.values, into={})
        settings = self._apply_call(wanted, argument, values, (self._overrides, argument))
        if values == before.values:
            return before
        return ResolvedSettings(values, before.settings if settings == before.settings else settings)

    def store_settings(self) -> StoreSettings:
        """Return the settings of the home itself, from the file and the command line.

        Raises:
            BadSetting: the file cannot be read, or a value in it is invalid.
        """
        self._look_at_file()
        values = merge(self._file.values, into={})
        return StoreSettings(**merge(self._overrides.values, into=values).get("store", {}))

    def serve_settings(self) -> ServeSettings:
        """Return the settings of the resident server, from the file and the command line.

        Raises:
            BadSetting: the file cannot be read, or a value in it is invalid.
        """
        self._look_at_file()
        values = merge(self._overrides.values, into=merge(self._file.values, into={}))
        return ServeSettings(**values.get("serve", {}))

    def unknown_keys(self) -> Iterator[str]:
        """Yield a sentence about each unknown key of config.toml, with the most similar setting.

        A caller can stop early: a file may have very many unknown keys.

        Raises:
            BadSetting: the file cannot be read, or a value in it is invalid.
        """
        self._look_at_file()
        source = self._file
        return (unknown_key_sentence(source, key) for key in unknown_keys(source.table))

    def mcp_settings(self) -> McpSettings:
        """Return the settings for MCP clients, from the file and the command line.

        Raises:
            BadSetting: the file cannot be read, or a value in it is invalid.
        """
        self._look_at_file()
        values = merge(self._overrides.values, into=merge(self._file.values, into={}))
        may_answer = values.get("approvals", {}).get("model_may_answer", False)
        return McpSettings(**values.get("mcp", {}), model_may_answer=may_answer)

    def _look_at_file(self) -> None:
        path = os.path.join(self.home, "config.toml")
        # Compare the text: the modification time is the same when a program writes twice in one clock tick.
        text = read_config(path)
        if text != self._file.text:
            self._file = parse_config(path, text)
            self._made.clear()

    def _begin(self, wanted: SettingsOverrides, argument: Source) -> ResolvedSettings:
        """Resolve settings with the current file; equal calls share one object."""
        self._look_at_file()
        key = (replace(wanted, config=None), msgspec.json.encode(argument.values))
        chosen = self._made.get(key)
        if chosen is None:
            sources = (self._file, self._overrides, argument)
            values = merge(DEFAULTS, into={})
            for source in sources[:2]:
                merge(source.values, into=values)
            settings = self._apply_call(wanted, argument, values, sources, profile=values.get("profile"))
            chosen = ResolvedSettings(values, settings)
            # Instructions from a file are not cached: the file may change.
            if settings.base_instructions is wanted.base_instructions:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[key] = chosen
        return chosen

    def _apply_call(
        self,
        wanted: SettingsOverrides,
        argument: Source,
        values: dict[str, Any],
        sources: Sequence[Source],
        *,
        profile: str | None = None,
    ) -> Settings:
        """Apply one call to `values` in place, and return the resulting settings.

        `profile` is used if the call names none.
        """
        said = dict(argument.values)
        merge(said, into=values)
        if wanted.profile is not None or "profile" in said:
            profile = said.get("profile") if wanted.profile is None else wanted.profile
        if profile is not None:
            if profile not in values["profiles"]:
                raise ProfileNotFound(profile)
            self._refuse_misspelt_in(profile)
            said |= values["profiles"][profile]
            values |= values["profiles"][profile]
        values |= _check_named_arguments(wanted)
        if wanted.not_stored:
            values["not_stored"] = (*values.get("not_stored", ()), *wanted.not_stored)
        if "experimental_instructions_file" in said:
            values["base_instructions"] = None
        for name in ("base_instructions", "include_plan_tool"):
            if (given := getattr(wanted, name)) is not None:
                values[name] = given
        return self._settings(values, sources)

    def _refuse_misspelt_in(self, profile: str) -> None:
        """Refuse a profile of config.toml with a misspelt key, which may have been meant to restrict the agent."""
        profiles = self._file.table.get("profiles", {})
        try:
            for _ in refuse_misspelt([{"profiles": {profile: profiles.get(profile)}}]):
                pass
        except Wrong as wrong:
            raise bad_setting(wrong.detail, wrong.at, self._file.name, self._file.text) from None

    def _settings(self, values: Mapping[str, Any], sources: Sequence[Source]) -> Settings:
        home = self.home
        cwd = utf8(_absolute(values.get("cwd", ""), self._server_dir), source="working directory")
        if "experimental_resume" in values:
            raise blame(sources, ("experimental_resume",), "experimental_resume is not supported yet")
        settings = Settings(
            **{name: values[name] for name in _UNCHANGED if name in values},
            environ=self._environ,
            home=home,
            cwd=cwd,
            provider=self._provider(values["model_provider"], values["model_providers"], home, sources),
            workspace_write=WorkspaceWrite(**values["sandbox_workspace_write"]),
            sandbox=self._sandbox(values["sandbox"], home),
            approvals=_approvals(values["approvals"]),
            limits=Limits(**values["limits"]),
            base_instructions=values.get("base_instructions"),
            mcp_servers=tuple(
                replace(server, missing=_missing(name, table, values.get("not_stored", ())))
                for name, table in values["mcp_servers"].items()
                if (server := self._tool_server(name, table, home, sources)).enabled
            ),
            shell_environment=ShellEnvironment(**values["shell_environment_policy"]),
            key_variables=_key_variables(values),
            include_plan_tool=values.get("include_plan_tool", False),
        )
        if settings.base_instructions is None and "experimental_instructions_file" in values:
            named = values["experimental_instructions_file"]
            settings = replace(settings, base_instructions=_read_instructions(named, settings))
        return settings

    def _tool_server(self, name: str, table: Mapping[str, Any], home: str, sources: Sequence[Source]) -> ToolServer:
        server = ToolServer(**{"name": name, **table})
        if bool(server.command) == bool(server.url):
            detail = "a tool server has either a `command` or a `url`"
            raise blame(sources, ("mcp_servers", name), detail)
        cwd, command = server.cwd, server.command
        if cwd is not None:
            user = self._environ.get("HOME") or _home_of_account() or ""
            cwd = os.path.join(self._server_dir, user, cwd.removeprefix("~/"))
        if command is not None and "/" in command:
            command = os.path.join(home if cwd is None else cwd, command)
        return replace(server, cwd=cwd, command=command)

    def _sandbox(self, table: Mapping[str, Any], home: str) -> Sandbox:
        user = self._environ.get("HOME") or _home_of_account()
        sandbox = Sandbox(**table)
        named = (path for path in sandbox.hidden_paths if user or not path.startswith("~"))
        hidden = (os.path.join(self._server_dir, user, path.removeprefix("~/")) for path in named)
        paths = (home, *hidden)
        return replace(sandbox, hidden_paths=tuple(dict.fromkeys((*paths, *_targets_of_links(paths)))))

    def _provider(
        self, name: str, tables: Mapping[str, dict[str, Any]], home: str, sources: Sequence[Source]
    ) -> Provider:
        # `openai` and `oss` cannot be redefined: otherwise a file could send the OpenAI key to another host.
        if name == "openai":
            return Provider(
                id=name,
                name="OpenAI",
                wire_api="responses",
                base_url=_address_in("OPENAI_BASE_URL", self._environ) or "https://api.openai.com/v1",
                env_http_headers={"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"},
                is_openai=True,
            )
        if name == "oss":
            return Provider(id=name, name="Open Source", wire_api="chat", base_url=_oss_base_url(self._environ))
        if name == "scripted":
            provider = Provider(
                id=name, name="Scripted", wire_api="scripted", script=tables.get(name, {}).get("script")
            )
        elif name in tables:
            provider = Provider(**{"id": name, "name": name} | tables[name])
        else:
            raise ProviderNotFound(name)

        if provider.wire_api == "scripted":
            return replace(provider, script=os.path.join(home, provider.script)) if provider.script else provider
        if not provider.base_url:
            detail = f"missing, and a provider with wire_api `{provider.wire_api}` needs it"
            raise blame(sources, ("model_providers", name, "base_url"), detail)
        return provider


def _key_variables(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the variables that hold keys, including keys of unused providers: the next conversation may use
    them.
    """
    named = {"OPENAI_API_KEY", "PARLEY_SERVE_TOKEN"}
    for provider in values["model_providers"].values():
        named |= {provider.get("env_key", ""), *provider.get("env_http_headers", {}).values()}
    named |= {server.get("bearer_token_env_var", "") for server in values["mcp_servers"].values()}
    return frozenset(named - {""})


def _missing(server: str, table: Mapping[str, Any], not_stored: Sequence[KeyPath]) -> tuple[str, ...]:
    """Return the keys of a tool server that were given by a call, were not stored, and have no other source."""
    lost = (
        path[2:] for path in not_stored if path[:2] == ("mcp_servers", server) and not mentions(table, path[2:])
    )
    return tuple(dict.fromkeys(map(written_key, lost)))


def check_overrides(wanted: SettingsOverrides) -> None:
    """Check the overrides of a call without resolving them: profiles and providers need not exist.

    Raises:
        BadSetting: a value is invalid.
    """
    checked("config argument", refuse_misspelt(parse_argument(wanted.config or {})))
    _check_named_arguments(wanted)


def _check_named_arguments(wanted: SettingsOverrides) -> dict[str, Any]:
    """Check the named arguments that were given; return them by the key of the setting that each overrides."""
    given = {name: getattr(wanted, name) for name in NAMED_ARGUMENTS.fields}
    try:
        named = NAMED_ARGUMENTS(given, ())
    except Wrong as wrong:
        raise bad_setting(wrong.detail, wrong.at) from None
    if "sandbox" in named:
        named["sandbox_mode"] = named.pop("sandbox")
    return named


def _approvals(values: Mapping[str, Any]) -> Approvals:
    """Return the table without `model_may_answer`, which clients must not set; `mcp_settings` reads it."""
    return Approvals(**{name: value for name, value in values.items() if name != "model_may_answer"})


def _read_instructions(named: str, settings: Settings) -> str:
    """Read the base instructions from a file, which may be in the home but not in another hidden path."""
    path = os.path.join(settings.cwd, named)
    failed = f"failed to read experimental instructions file {path}"
    limit, hidden = _MOST_INSTRUCTIONS_BYTES, settings.withheld_paths
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
        os.stat(os.path.join(path, ""))  # with a slash at its end only a directory is found
    except OSError as error:
        raise BadSetting(f"{path}: {os_detail(error)}", source=named_by) from None


def _absolute(cwd: str, server_dir: str) -> str:
    if cwd.startswith("/"):
        return cwd
    # `..` stays: what it means depends on symbolic links.
    return os.path.join(server_dir, *(part for part in cwd.split("/") if part not in ("", ".")))


def _home_of_account() -> str:
    """Return the home directory of the account, for a process without `HOME`; empty if the account has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _targets_of_links(paths: Iterable[str]) -> Iterator[str]:
    """Yield the targets of paths that are links, because a target must stay hidden when its link is removed."""
    for path in paths:
        try:
            yield os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            continue


def _address_in(variable: str, environ: Mapping[str, str]) -> str | None:
    url = utf8(environ.get(variable, "").strip(), source=variable)
    if url and not is_address(url):
        raise BadSetting("not an http or https address", source=variable)
    return url or None


def _oss_base_url(environ: Mapping[str, str]) -> str:
    if url := _address_in("CODEX_OSS_BASE_URL", environ):
        return url
    port = utf8(environ.get("CODEX_OSS_PORT", "").strip(), source="CODEX_OSS_PORT") or "11434"
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        detail = f"invalid value: {described(port)}, expected a port from 1 to 65535"
        raise BadSetting(detail, source="CODEX_OSS_PORT")
    return f"http://localhost:{int(port)}/v1"
