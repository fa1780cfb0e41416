"""Settings from the file, the command line and a call, combined into what holds for one conversation.

Knows config.toml, `-c`, the environment, and which of them wins. Does not know what a setting is
for, holds no secret (a provider names the variable its key is in), and takes no settings from the
directory that a conversation works in.

Each source is checked by itself against one table, `SETTINGS`, before they are combined: so an
error can always say where the wrong value stands, and what nobody knows is gone from then on.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.common.guarded_files import read_named
from parley.common.os_errors import os_detail
from parley.config.errors import ProfileNotFound, ProviderNotFound
from parley.config.files import read_file
from parley.config.locate import KeyPath, key_on, line_of, parse_toml, read_key, written_key
from parley.config.schema import DEFAULTS, NAMED_ARGUMENTS, SETTINGS, Wrong, described, is_address, shortened
from parley.config.types import (
    Approvals,
    Chosen,
    Limits,
    McpSettings,
    Provider,
    Sandbox,
    Settings,
    ShellEnvironment,
    StoreSettings,
    ToolServer,
    Wanted,
    WorkspaceWrite,
)
from parley.config.unknown_keys import UnknownKey, refuse_misspelt, unknown_keys
from parley.errors import BadSetting

__all__ = ["Loader", "refuse_misfits"]

_REMEMBERED: Final = 64
"""How many combinations are kept to be shared: enough for the few that clients really use, while
one that makes up a new one for each call costs a bounded amount of memory."""


_MOST_INSTRUCTIONS_BYTES: Final = 16 * 1024 * 1024


class Loader:
    """Combines settings. One serves all conversations of a process.

    The environment is taken as it is now; config.toml is read for each conversation.
    """

    def __init__(self, *, environ: Mapping[str, str], server_dir: str, overrides: Sequence[str] = ()) -> None:
        """`overrides` are the texts given with `-c`, in order.

        Raises:
            BadSetting: an override cannot be read or does not fit.
        """
        self._environ = dict(environ)
        self._server_dir = server_dir
        self._overrides = _checked("-c", refuse_misspelt(map(_parse_override, overrides)))
        self._file = _Source("config.toml", {})
        self._made: dict[tuple[Wanted, bytes], Chosen] = {}

    @property
    def home(self) -> str:
        """The directory with config.toml and all that Parley keeps; the default one may be missing.

        Raises:
            BadSetting: the environment names no directory, or one that is not there.
        """
        for variable in ("PARLEY_HOME", "CODEX_HOME"):
            if given := self._environ.get(variable):
                home = _utf8(os.path.join(self._server_dir, given), source=variable)
                _refuse_missing_directory(home, named_by=variable)
                return home
        if user := self._environ.get("HOME"):
            return _utf8(os.path.join(self._server_dir, user, ".parley"), source="HOME")
        raise BadSetting("neither PARLEY_HOME nor HOME is set, so there is no home directory")

    def choose(self, wanted: Wanted, before: Chosen | None = None) -> Chosen:
        """What holds after a call that asks for `wanted`, on top of what was chosen before.

        A conversation begins with the file as it is, and stays with that.

        Raises:
            BadSetting: a source cannot be read, or something in it does not fit.
            ProfileNotFound: no such profile.
            ProviderNotFound: no such provider.
        """
        argument = _checked("config argument", refuse_misspelt(_parse_argument(wanted.config or {})))
        if before is None:
            return self._begin(wanted, argument)
        values = _merge(before.values, into={})
        settings = self._lay(wanted, argument, values, (self._overrides, argument))
        if values == before.values:
            return before
        return Chosen(values, before.settings if settings == before.settings else settings)

    def store_settings(self) -> StoreSettings:
        """What holds for the home itself, by its file and the command line.

        Raises:
            BadSetting: the file cannot be read, or something in it does not fit.
        """
        self._look_at_file()
        values = _merge(self._file.values, into={})
        return StoreSettings(**_merge(self._overrides.values, into=values).get("store", {}))

    def unknown_keys(self) -> Iterator[str]:
        """Return a sentence about each key of config.toml that no setting has, with the most similar setting.

        Each sentence is made when it is asked for: a file may have very many such keys.

        Raises:
            BadSetting: the file cannot be read, or something in it does not fit.
        """
        self._look_at_file()
        source = self._file
        return (_unknown_sentence(source, key) for key in unknown_keys(source.table))

    def mcp_settings(self) -> McpSettings:
        """Return what holds for MCP clients, by the file and the command line.

        Raises:
            BadSetting: the file cannot be read, or something in it does not fit.
        """
        self._look_at_file()
        values = _merge(self._overrides.values, into=_merge(self._file.values, into={}))
        may_answer = values.get("approvals", {}).get("model_may_answer", False)
        return McpSettings(**values.get("mcp", {}), model_may_answer=may_answer)

    def _look_at_file(self) -> None:
        path = os.path.join(self.home, "config.toml")
        # Its text tells whether it changed: times do not, when a program writes twice in one tick of the clock.
        text = _read_config(path)
        if text != self._file.text:
            self._file = _parse_config(path, text)
            self._made.clear()

    def _begin(self, wanted: Wanted, argument: _Source) -> Chosen:
        """By the file as it is now; the same object for those that ask for the same."""
        self._look_at_file()
        key = (replace(wanted, config=None), msgspec.json.encode(argument.values))
        chosen = self._made.get(key)
        if chosen is None:
            sources = (self._file, self._overrides, argument)
            values = _merge(DEFAULTS, into={})
            for source in sources[:2]:
                _merge(source.values, into=values)
            settings = self._lay(wanted, argument, values, sources, profile=values.get("profile"))
            chosen = Chosen(values, settings)
            # Instructions that came out of a file are not remembered: the file may change.
            if settings.base_instructions is wanted.base_instructions:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[key] = chosen
        return chosen

    def _lay(
        self,
        wanted: Wanted,
        argument: _Source,
        values: dict[str, Any],
        sources: Sequence[_Source],
        *,
        profile: str | None = None,
    ) -> Settings:
        """Lay one call over the values, which are changed, and return what they come to.

        `profile` holds where the call names none.
        """
        said = dict(argument.values)
        _merge(said, into=values)
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
        """A key that the file has in this profile may be meant to restrict the agent, and have no effect there."""
        profiles = self._file.table.get("profiles", {})
        try:
            for _ in refuse_misspelt([{"profiles": {profile: profiles.get(profile)}}]):
                pass
        except Wrong as wrong:
            raise _bad_setting(wrong.detail, wrong.at, self._file.name, self._file.text) from None

    def _settings(self, values: Mapping[str, Any], sources: Sequence[_Source]) -> Settings:
        home = self.home
        cwd = _utf8(_absolute(values.get("cwd", ""), self._server_dir), source="working directory")
        if "experimental_resume" in values:
            raise _blame(sources, ("experimental_resume",), "experimental_resume is not supported yet")
        settings = Settings(
            home=home,
            cwd=cwd,
            model=values["model"],
            provider=self._provider(values["model_provider"], values["model_providers"], home, sources),
            approval_policy=values["approval_policy"],
            sandbox_mode=values["sandbox_mode"],
            workspace_write=WorkspaceWrite(**values["sandbox_workspace_write"]),
            sandbox=self._sandbox(values["sandbox"], home),
            approvals=_approvals(values["approvals"]),
            limits=Limits(**values["limits"]),
            base_instructions=values.get("base_instructions"),
            developer_instructions=values["developer_instructions"],
            compact_prompt=values["compact_prompt"],
            model_reasoning_effort=values["model_reasoning_effort"],
            model_reasoning_summary=values["model_reasoning_summary"],
            model_supports_reasoning_summaries=values["model_supports_reasoning_summaries"],
            show_raw_agent_reasoning=values["show_raw_agent_reasoning"],
            disable_response_storage=values["disable_response_storage"],
            project_doc_max_bytes=values["project_doc_max_bytes"],
            notify=values["notify"],
            notify_argument=values["notify_argument"],
            internal_originator=values["internal_originator"],
            mcp_servers=tuple(
                replace(server, missing=_missing(name, table, values.get("not_stored", ())))
                for name, table in values["mcp_servers"].items()
                if (server := self._tool_server(name, table, home, sources)).enabled
            ),
            shell_environment=ShellEnvironment(**values["shell_environment_policy"]),
            key_variables=_key_variables(values),
            model_context_window=values.get("model_context_window"),
            include_plan_tool=values.get("include_plan_tool", False),
        )
        if settings.base_instructions is None and "experimental_instructions_file" in values:
            named = values["experimental_instructions_file"]
            settings = replace(settings, base_instructions=_read_instructions(named, settings))
        return settings

    def _tool_server(
        self, name: str, table: Mapping[str, Any], home: str, sources: Sequence[_Source]
    ) -> ToolServer:
        server = ToolServer(**{"name": name, **table})
        if bool(server.command) == bool(server.url):
            detail = "a tool server has either a `command` or a `url`"
            raise _blame(sources, ("mcp_servers", name), detail)
        cwd, command = server.cwd, server.command
        if cwd is not None:
            user = self._environ.get("HOME") or _home_of_account() or ""
            cwd = os.path.join(self._server_dir, user, cwd.removeprefix("~/"))
        if command is not None and "/" in command:
            command = os.path.join(home if cwd is None else cwd, command)
        return replace(server, cwd=cwd, command=command)

    def _sandbox(self, table: Mapping[str, Any], home: str) -> Sandbox:
        user = self._environ.get("HOME") or _home_of_account()
        named = (path for path in table["hidden_paths"] if user or not path.startswith("~"))
        hidden = (os.path.join(self._server_dir, user, path.removeprefix("~/")) for path in named)
        paths = (home, *hidden)
        return Sandbox(**{**table, "hidden_paths": tuple(dict.fromkeys((*paths, *_led_to(paths))))})

    def _provider(
        self, name: str, tables: Mapping[str, dict[str, Any]], home: str, sources: Sequence[_Source]
    ) -> Provider:
        # The first two cannot be redefined: a file that could would send the key to OpenAI elsewhere.
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
            raise _blame(sources, ("model_providers", name, "base_url"), detail)
        return provider


def _key_variables(values: Mapping[str, Any]) -> frozenset[str]:
    """Also those of providers that are not in use: the next conversation may use them."""
    named = {"OPENAI_API_KEY"}
    for provider in values["model_providers"].values():
        named |= {provider.get("env_key", ""), *provider.get("env_http_headers", {}).values()}
    named |= {server.get("bearer_token_env_var", "") for server in values["mcp_servers"].values()}
    return frozenset(named - {""})


def _missing(server: str, table: Mapping[str, Any], not_stored: Sequence[KeyPath]) -> tuple[str, ...]:
    """Which keys of a tool server a call gave that were not stored, where no other source gives them."""
    lost = (
        path[2:] for path in not_stored if path[:2] == ("mcp_servers", server) and not _mentions(table, path[2:])
    )
    return tuple(dict.fromkeys(map(written_key, lost)))


# --- sources -----------------------------------------------------------------------------


class _Source(Struct, frozen=True):
    """Settings that came from one place, checked."""

    name: str
    values: dict[str, Any]
    text: str = ""
    """The file as it was read, to find lines in."""
    table: dict[str, Any] = {}
    """The whole table of a file, with the keys that no setting has."""

    def mentions(self, path: KeyPath) -> bool:
        return _mentions(self.values, path)


def _mentions(values: Mapping[str, Any], path: KeyPath) -> bool:
    value: Any = values
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _checked(name: str, tables: Iterable[dict[str, Any]], text: str = "") -> _Source:
    """The source of these tables, a later one winning over those before it."""
    values: dict[str, Any] = {}
    try:
        for table in tables:
            _merge(SETTINGS(table, ()), into=values)
    except Wrong as wrong:
        raise _bad_setting(wrong.detail, wrong.at, name, text) from None
    return _Source(name, values, text)


def refuse_misfits(wanted: Wanted) -> None:
    """See whether a call could ask for this, wherever it is made: profiles and providers need not be there.

    Raises:
        BadSetting: something in it does not fit.
    """
    _checked("config argument", refuse_misspelt(_parse_argument(wanted.config or {})))
    _check_named_arguments(wanted)


def _check_named_arguments(wanted: Wanted) -> dict[str, Any]:
    """The named arguments that were given, by the key of the setting that each overrides."""
    given = {name: getattr(wanted, name) for name in NAMED_ARGUMENTS.fields}
    try:
        named = NAMED_ARGUMENTS(given, ())
    except Wrong as wrong:
        raise _bad_setting(wrong.detail, wrong.at) from None
    if "sandbox" in named:
        named["sandbox_mode"] = named.pop("sandbox")
    return named


def _approvals(values: Mapping[str, Any]) -> Approvals:
    """`model_may_answer` is not for conversations, which clients configure: `mcp_settings` reads it."""
    return Approvals(**{name: value for name, value in values.items() if name != "model_may_answer"})


def _merge(over: Mapping[str, Any], *, into: dict[str, Any]) -> dict[str, Any]:
    """Lay a table over another, which is changed and returned: tables in both are merged in turn.

    Tables are copied as they are taken over, so that no source ends up with values of another.
    """
    for key, value in over.items():
        into[key] = _merge(value, into=into.get(key, {})) if isinstance(value, dict) else value
    return into


def _blame(sources: Sequence[_Source], path: KeyPath, detail: str) -> BadSetting:
    """The error about `path`, placed where the strongest source sets it, or sets what encloses it."""
    for depth in range(len(path), 0, -1):
        for source in reversed(sources):
            if source.mentions(path[:depth]):
                return _bad_setting(detail, path, source.name, source.text)
    return _bad_setting(detail, path)


def _bad_setting(detail: str, at: KeyPath, source: str | None = None, text: str = "") -> BadSetting:
    return BadSetting(detail, source=source, line=line_of(at, text), key=written_key(at))


def _unknown_sentence(source: _Source, key: UnknownKey) -> str:
    hint = "" if key.nearest is None else f"; did you mean `{written_key(key.nearest)}`?"
    return str(_bad_setting(f"unknown setting, ignored{hint}", key.path, source.name, source.text))


# --- the command line and the `config` argument ------------------------------------------


def _parse_override(text: str) -> dict[str, Any]:
    """`key=value` as a table."""
    path, end = read_key(_utf8(text, source="-c"))
    if not path or not text.startswith("=", end):
        raise BadSetting(f"`{shortened(text)}` is not of the form key=value", source="-c")
    return _nested(path, _parse_value(text[end + 1 :].strip()))


def _parse_value(text: str) -> Any:
    """The value, or the text itself where it is none: `-c model=o3` needs no quotes inside quotes."""
    try:
        table = parse_toml(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _parse_argument(config: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Each entry of the `config` argument as a table; its outermost keys may be dotted."""
    for key, value in config.items():
        path, end = read_key(key)
        if not path or end < len(key):
            raise BadSetting("not a key", source="config argument", key=shortened(key))
        yield _nested(path, value)


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)  # a path has at least one part
    return value


# --- files and environment -------------------------------------------------------------------


def _read_config(path: str) -> str:
    try:
        return _read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise BadSetting(os_detail(error), source=path) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSetting("not valid UTF-8", source=path, line=line) from None


def _parse_config(path: str, text: str) -> _Source:
    try:
        table = parse_toml(text)
    except RecursionError:
        raise BadSetting("not valid TOML: nested too deeply", source=path) from None
    except ValueError as error:
        raise _bad_toml(str(error), path, text) from None
    return replace(_checked(path, [table], text), table=table)


def _bad_toml(reason: str, path: str, text: str) -> BadSetting:
    """The parser's complaint, with its place moved to where ours stand."""
    if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", reason, re.DOTALL):
        detail, line = f"not valid TOML: {found[1]} (column {found[3]})", int(found[2])
    elif reason.endswith(" (at end of document)"):
        detail, line = f"not valid TOML: {reason}", text.rstrip("\n").count("\n") + 1
    else:
        return BadSetting(f"not valid TOML: {reason}", source=path)
    key = key_on(line, text)
    return BadSetting(detail, source=path, line=line, key=written_key(key) if key else None)


def _read_instructions(named: str, settings: Settings) -> str:
    """The text of a file for the model. It may lie in the home, and must not be hidden otherwise."""
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


def _read_text(path: str) -> str:
    """A whole file. Raises OSError or UnicodeDecodeError."""
    return read_file(path).decode("utf-8-sig")


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
    """Where the secrets of the user lie whom no `HOME` tells of; empty for one whom the system does not know."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _led_to(paths: Iterable[str]) -> Iterator[str]:
    """Where paths lead to: what is hidden behind a link stays so when somebody removes the link."""
    for path in paths:
        try:
            yield os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            continue


def _utf8(text: str, *, source: str) -> str:
    """The text, if it can be told to a client: Python keeps bytes that are no UTF-8 as half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadSetting("not valid UTF-8", source=source) from None
    return text


def _address_in(variable: str, environ: Mapping[str, str]) -> str | None:
    url = _utf8(environ.get(variable, "").strip(), source=variable)
    if url and not is_address(url):
        raise BadSetting("not an http or https address", source=variable)
    return url or None


def _oss_base_url(environ: Mapping[str, str]) -> str:
    if url := _address_in("CODEX_OSS_BASE_URL", environ):
        return url
    port = _utf8(environ.get("CODEX_OSS_PORT", "").strip(), source="CODEX_OSS_PORT") or "11434"
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        detail = f"invalid value: {described(port)}, expected a port from 1 to 65535"
        raise BadSetting(detail, source="CODEX_OSS_PORT")
    return f"http://localhost:{int(port)}/v1"
