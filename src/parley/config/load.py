"""Settings from the file, the command line and a call, combined into what holds for one conversation.

Knows config.toml, `-c`, the environment, and which of them wins. Does not know what a setting is
for, holds no secret (a provider names the variable its key is in), and takes no settings from the
directory that a conversation works in.

Each source is checked by itself against one table, `SETTINGS`, before they are combined: so an
error can always say where the wrong value stands, and what nobody knows is gone from then on.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.config.types import (
    ApprovalPolicy,
    Effort,
    Provider,
    SandboxMode,
    Settings,
    Summary,
    Wanted,
    WireApi,
    WorkspaceWrite,
)
from parley.errors import BadSetting, ProfileNotFound, ProviderNotFound

__all__ = ["SETTINGS", "Check", "KeyPath", "Loader", "Named", "Table", "lines_of_keys"]

KeyPath = tuple[str, ...]
"""A key, part by part: `model_providers.x.name` is `("model_providers", "x", "name")`."""

Check = Callable[[Any, KeyPath], Any]
"""Takes a value as TOML or JSON gave it and where it stands; returns it as we keep it, or raises `_Wrong`."""


class Loader:
    """Combines settings. One serves all conversations of a process.

    The environment is taken as it is now; config.toml is read again whenever it has changed.
    """

    def __init__(self, *, environ: Mapping[str, str], server_dir: str, overrides: Sequence[str] = ()) -> None:
        """`overrides` are the texts given with `-c`, in order.

        Raises:
            BadSetting: an override cannot be read or does not fit.
        """
        self._environ = dict(environ)
        self._server_dir = server_dir
        self._overrides = _checked("-c", map(_parse_override, overrides))
        self._file: _Source = _NOTHING
        self._file_stamp: _Stamp | None = None
        self._made: dict[tuple[Wanted, bytes], Settings] = {}

    @property
    def home(self) -> str:
        """The directory with config.toml and all that Parley keeps; the default one may be missing.

        Raises:
            BadSetting: the environment names no directory, or one that is not there.
        """
        for variable in ("PARLEY_HOME", "CODEX_HOME"):
            if given := self._environ.get(variable):
                home = os.path.join(self._server_dir, given)
                _refuse_missing_directory(home, named_by=variable)
                return home
        if user := self._environ.get("HOME"):
            return os.path.join(self._server_dir, user, ".parley")
        raise BadSetting("neither PARLEY_HOME nor HOME is set, so there is no home directory")

    def resolve(self, wanted: Wanted) -> Settings:
        """Everything that is in force for a conversation that asks for `wanted`.

        Raises:
            BadSetting: a source cannot be read, or something in it does not fit.
            ProfileNotFound: no such profile.
            ProviderNotFound: no such provider.
        """
        home = self.home
        self._read_file_if_changed(os.path.join(home, "config.toml"))
        key = (replace(wanted, config=None), msgspec.json.encode(wanted.config))
        settings = self._made.get(key)
        if settings is None:
            settings = self._combine(home, wanted)
            # Instructions that came out of a file are not remembered: the file may change.
            if settings.base_instructions is wanted.base_instructions:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[key] = settings
        return settings

    def _read_file_if_changed(self, path: str) -> None:
        try:
            stamp = _stamp(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            stamp = None
        except OSError as error:
            raise BadSetting(_os_error(error), source=path) from None
        if stamp == self._file_stamp:
            return
        self._made.clear()
        # Until the file has been read without a fault there is none that counts as read.
        self._file, self._file_stamp = _NOTHING, None
        if stamp is not None:
            self._file, self._file_stamp = _read_config(path)

    def _combine(self, home: str, wanted: Wanted) -> Settings:
        sources = (self._file, self._overrides, _checked("config argument", _parse_argument(wanted.config or {})))
        values = _merge(_DEFAULTS, into={})
        for source in sources:
            _merge(source.values, into=values)

        profile = values.get("profile") if wanted.profile is None else wanted.profile
        if profile is not None:
            if profile not in values["profiles"]:
                raise ProfileNotFound(profile)
            values |= values["profiles"][profile]

        named = _check_named_arguments(wanted)
        cwd = _absolute(named.pop("cwd", ""), self._server_dir)
        values |= named

        if "experimental_resume" in values:
            raise _blame(sources, ("experimental_resume",), "experimental_resume is not supported yet")
        instructions = wanted.base_instructions
        if instructions is None and "experimental_instructions_file" in values:
            instructions = _read_instructions(os.path.join(cwd, values["experimental_instructions_file"]))

        return Settings(
            home=home,
            cwd=cwd,
            model=values["model"],
            provider=self._provider(values["model_provider"], values["model_providers"], home, sources),
            approval_policy=values["approval_policy"],
            sandbox_mode=values["sandbox_mode"],
            workspace_write=WorkspaceWrite(**values["sandbox_workspace_write"]),
            base_instructions=instructions,
            model_reasoning_effort=values["model_reasoning_effort"],
            model_reasoning_summary=values["model_reasoning_summary"],
            model_supports_reasoning_summaries=values["model_supports_reasoning_summaries"],
            show_raw_agent_reasoning=values["show_raw_agent_reasoning"],
            disable_response_storage=values["disable_response_storage"],
            project_doc_max_bytes=values["project_doc_max_bytes"],
            notify=values["notify"],
            internal_originator=values["internal_originator"],
            mcp_servers=tuple(values["mcp_servers"]),
        )

    def _provider(
        self, name: str, tables: Mapping[str, dict[str, Any]], home: str, sources: Sequence[_Source]
    ) -> Provider:
        # The first two cannot be redefined: a file that could would send the key to OpenAI elsewhere.
        if name == "openai":
            return Provider(
                id=name,
                name="OpenAI",
                wire_api="responses",
                base_url=self._environ.get("OPENAI_BASE_URL", "").strip() or "https://api.openai.com/v1",
                env_http_headers={"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"},
                is_openai=True,
            )
        if name == "oss":
            return Provider(id=name, name="Open Source", wire_api="chat", base_url=_oss_base_url(self._environ))
        if name == "scripted":
            script = tables.get(name, {}).get("script")
            table = {"name": "Scripted", "wire_api": "scripted"} | ({"script": script} if script else {})
        elif name in tables:
            table = {"name": name} | tables[name]
        else:
            raise ProviderNotFound(name)

        provider = Provider(id=name, **table)
        if provider.wire_api == "scripted":
            return replace(provider, script=os.path.join(home, provider.script)) if provider.script else provider
        if not provider.base_url:
            detail = f"missing, and a provider with wire_api `{provider.wire_api}` needs it"
            raise _blame(sources, ("model_providers", name, "base_url"), detail)
        return provider


_REMEMBERED: Final = 64
"""How many combinations are kept to be shared: enough for the few that clients really use, while
one that makes up a new one for each call costs a bounded amount of memory."""


# --- what may be set ---------------------------------------------------------------------


class _Wrong(Exception):
    """A value that does not fit. Becomes a `BadSetting` where its source is known."""

    def __init__(self, at: KeyPath, detail: str) -> None:
        super().__init__(detail)
        self.at, self.detail = at, detail


class Table:
    """A table of known keys. Others are dropped, and so is null: it says the same as leaving the key out."""

    def __init__(self, fields: Mapping[str, Check]) -> None:
        self.fields = fields

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        entries = _expect_map(value, at)
        return {
            key: self.fields[key](entry, (*at, key))
            for key, entry in entries.items()
            if key in self.fields and entry is not None
        }


class Named:
    """A table whose keys are names that the user chose, all with values of one kind."""

    def __init__(self, entry: Check) -> None:
        self.entry = entry

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        entries = _expect_map(value, at)
        return {name: self.entry(entry, (*at, name)) for name, entry in entries.items() if entry is not None}


def _expect_map(value: Any, at: KeyPath) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _Wrong(at, f"invalid type: {_described(value)}, expected a map")


def _text(value: Any, at: KeyPath) -> str:
    if not isinstance(value, str):
        raise _Wrong(at, f"invalid type: {_described(value)}, expected a string")
    if "\0" in value:  # no path, argument, header or URL can have one
        raise _Wrong(at, f"invalid value: {_described(value)}, expected a string without NUL")
    return value


def _absolute_path(value: Any, at: KeyPath) -> str:
    path = _text(value, at)
    if not path.startswith("/"):
        raise _Wrong(at, f"invalid value: {_described(value)}, expected an absolute path")
    return path


def _flag(value: Any, at: KeyPath) -> bool:
    if isinstance(value, bool):
        return value
    raise _Wrong(at, f"invalid type: {_described(value)}, expected a boolean")


def _integer(lowest: int, highest: int) -> Check:
    def check(value: Any, at: KeyPath) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _Wrong(at, f"invalid type: {_described(value)}, expected an integer")
        if not lowest <= value <= highest:
            raise _Wrong(at, f"invalid value: {_described(value)}, expected an integer from {lowest} to {highest}")
        return value

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any, at: KeyPath) -> str:
        word = _text(value, at)
        if word not in words:
            expected = ", ".join(f"`{known}`" for known in words)
            raise _Wrong(at, f"unknown variant `{_shortened(word)}`, expected one of {expected}")
        return word

    return check


def _sequence_of(entry: Check) -> Check:
    def check(value: Any, at: KeyPath) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _Wrong(at, f"invalid type: {_described(value)}, expected a sequence")
        return tuple(entry(one, at) for one in value)

    return check


def _described(value: Any) -> str:
    """A value in the words of the errors that clients know."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            # Python refuses to print an integer of thousands of digits, which hexadecimal TOML can hold.
            return f"integer `{value}`" if value.bit_length() < 64 else "integer beyond 64 bits"
        case float():
            return f"floating point `{value}`"
        case str():
            return f"string {msgspec.json.encode(_shortened(value)).decode()}"
        case list():
            return "sequence"
        case dict():
            return "map"
        case _:
            return "datetime"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


_RETRIES: Final = _integer(0, 100)  # the delay doubles each time: a hundred is for ever already
_MILLISECONDS: Final = _integer(1, 2**31 - 1)
_COUNT: Final = _integer(1, 2**63 - 1)

_ALSO_IN_PROFILES: Final[Mapping[str, Check]] = {
    "model": _text,
    "model_provider": _text,
    "approval_policy": _one_of(*get_args(ApprovalPolicy)),
    "model_reasoning_effort": _one_of(*get_args(Effort)),
    "model_reasoning_summary": _one_of(*get_args(Summary)),
    "disable_response_storage": _flag,
    "experimental_instructions_file": _text,
}

SETTINGS: Final = Table(
    {
        **_ALSO_IN_PROFILES,
        "profile": _text,
        "profiles": Named(Table(_ALSO_IN_PROFILES)),
        "sandbox_mode": _one_of(*get_args(SandboxMode)),
        "sandbox_workspace_write": Table(
            {
                "writable_roots": _sequence_of(_absolute_path),
                "network_access": _flag,
                "exclude_tmpdir_env_var": _flag,
                "exclude_slash_tmp": _flag,
            }
        ),
        "model_supports_reasoning_summaries": _flag,
        "model_context_window": _COUNT,
        "show_raw_agent_reasoning": _flag,
        "experimental_resume": _text,
        "project_doc_max_bytes": _integer(0, 2**31 - 1),
        "notify": _sequence_of(_text),
        "internal_originator": _text,
        "mcp_servers": Named(
            Table(
                {
                    "command": _text,
                    "args": _sequence_of(_text),
                    "env": Named(_text),
                    "url": _text,
                    "bearer_token_env_var": _text,
                }
            )
        ),
        "shell_environment_policy": Table(
            {
                "inherit": _one_of("safe", "all", "core", "none"),
                "ignore_default_excludes": _flag,
                "exclude": _sequence_of(_text),
                "set": Named(_text),
                "include_only": _sequence_of(_text),
            }
        ),
        "approvals": Table(
            {"timeout_seconds": _integer(0, 2**31 - 1), "on_timeout": _one_of("deny", "abort", "hold")}
        ),
        "limits": Table(
            {"turn_tokens": _COUNT, "turn_seconds": _COUNT, "turn_calls": _COUNT, "conversation_tokens": _COUNT}
        ),
        "model_providers": Named(
            Table(
                {
                    "name": _text,
                    "wire_api": _one_of(*get_args(WireApi)),
                    "base_url": _text,
                    "env_key": _text,
                    "env_key_instructions": _text,
                    "query_params": Named(_text),
                    "http_headers": Named(_text),
                    "env_http_headers": Named(_text),
                    "request_max_retries": _RETRIES,
                    "stream_max_retries": _RETRIES,
                    "stream_idle_timeout_ms": _MILLISECONDS,
                    "stream_usage": _flag,
                    "script": _text,
                }
            )
        ),
    }
)
"""Every setting. What is here and not in `Settings` has no reader yet: it is checked all the same,
so that a mistake shows when it is made and not with the version that begins to use it."""

_DEFAULTS: Final[dict[str, Any]] = {
    "model": "gpt-5",
    "model_provider": "openai",
    "approval_policy": "on-request",
    "sandbox_mode": "read-only",
    "sandbox_workspace_write": {},
    "model_reasoning_effort": "medium",
    "model_reasoning_summary": "auto",
    "model_supports_reasoning_summaries": False,
    "show_raw_agent_reasoning": False,
    "disable_response_storage": False,
    "project_doc_max_bytes": 32_768,
    "notify": (),
    "internal_originator": "codex_cli_rs",
    "profiles": {},
    "mcp_servers": {},
    "model_providers": {},
}

_NAMED_ARGUMENTS: Final = Table(
    {
        "model": _text,
        "cwd": _text,
        "approval_policy": SETTINGS.fields["approval_policy"],
        "sandbox": SETTINGS.fields["sandbox_mode"],
    }
)


# --- sources -----------------------------------------------------------------------------


class _Source(Struct, frozen=True):
    """Settings that came from one place, checked."""

    name: str | None
    values: dict[str, Any]
    text: str = ""
    """The file as it was read, to find lines in."""

    def mentions(self, path: KeyPath) -> bool:
        value: Any = self.values
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True


_NOTHING: Final = _Source(None, {})


def _checked(name: str | None, tables: Iterable[dict[str, Any]], text: str = "") -> _Source:
    """The source of these tables, a later one winning over those before it."""
    values: dict[str, Any] = {}
    try:
        for table in tables:
            _merge(SETTINGS(table, ()), into=values)
    except _Wrong as wrong:
        raise _bad_setting(wrong.detail, wrong.at, name, text) from None
    return _Source(name, values, text)


def _check_named_arguments(wanted: Wanted) -> dict[str, Any]:
    """The named arguments that were given, by the key of the setting that each overrides."""
    given = {name: getattr(wanted, name) for name in _NAMED_ARGUMENTS.fields}
    try:
        named = _NAMED_ARGUMENTS(given, ())
    except _Wrong as wrong:
        raise _bad_setting(wrong.detail, wrong.at, None) from None
    if "sandbox" in named:
        named["sandbox_mode"] = named.pop("sandbox")
    return named


def _merge(over: dict[str, Any], *, into: dict[str, Any]) -> dict[str, Any]:
    """Lay a table over another, which is changed and returned: tables in both are merged in turn.

    Tables are copied as they are taken over, so that no source ends up with values of another.
    """
    for key, value in over.items():
        if isinstance(value, dict):
            beneath = into.get(key)
            value = _merge(value, into=beneath if isinstance(beneath, dict) else {})
        into[key] = value
    return into


def _blame(sources: Sequence[_Source], path: KeyPath, detail: str) -> BadSetting:
    """The error about `path`, placed where the strongest source sets it, or sets what encloses it."""
    for depth in range(len(path), 0, -1):
        for source in reversed(sources):
            if source.mentions(path[:depth]):
                return _bad_setting(detail, path, source.name, source.text)
    return _bad_setting(detail, path, None)


def _bad_setting(detail: str, at: KeyPath, source: str | None, text: str = "") -> BadSetting:
    line = _line_of(at, text) if text else None
    return BadSetting(detail, source=source, line=line, key=".".join(map(_written, at)))


# --- the command line and the `config` argument ------------------------------------------


def _parse_override(text: str) -> dict[str, Any]:
    """`key=value` as a table."""
    path, end = _read_key(text)
    if not path or not text.startswith("=", end):
        raise BadSetting(f"`{_shortened(text)}` is not of the form key=value", source="-c")
    return _nested(path, _parse_toml_value(text[end + 1 :].strip()))


def _parse_toml_value(text: str) -> Any:
    """The value, or the text itself where it is none: `-c model=o3` needs no quotes inside quotes."""
    import tomllib

    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _parse_argument(config: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Each entry of the `config` argument as a table; its outermost keys may be dotted."""
    for key, value in config.items():
        path, end = _read_key(key)
        if not path or end < len(key):
            raise BadSetting("not a key", source="config argument", key=_shortened(key))
        yield _nested(path, value)


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)  # a path has at least one part
    return value


_KEY_PART: Final = r"""\s*("(?:\\.|[^"\\])*"|'[^']*')\s*|[^."'=]+"""


def _read_key(text: str) -> tuple[KeyPath, int]:
    """The dotted key that `text` begins with, and where it ends; an empty one where there is none.

    Parts may be quoted as in TOML. Those that are not may hold more than TOML allows: a provider
    called `my models` needs no quotes on the command line.
    """
    parts: list[str] = []
    end = 0
    while found := re.compile(_KEY_PART).match(text, end):
        part = _unquoted(found[1]) if found[1] else found[0].strip()
        if not part:
            break
        parts.append(part)
        end = found.end()
        if not text.startswith(".", end):
            return tuple(parts), end
        end += 1
    return (), 0


def _unquoted(word: str) -> str:
    """A part of a key as it is meant."""
    if word[0] not in "\"'":
        return word
    import tomllib

    try:
        part = tomllib.loads(f"part = {word}")["part"]
    except ValueError:  # an escape that TOML does not have
        return ""
    return str(part)


def _written(part: str) -> str:
    """A part of a key as it is written in TOML."""
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else msgspec.json.encode(part).decode()


# --- config.toml -------------------------------------------------------------------------

_Stamp = tuple[int, int, int]
"""Tells one state of a file from another."""


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_config(path: str) -> tuple[_Source, _Stamp]:
    import tomllib

    try:
        text, status = _read_text(path)
    except OSError as error:
        raise BadSetting(_os_error(error), source=path) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSetting("not valid UTF-8", source=path, line=line) from None
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise BadSetting("not valid TOML: nested too deeply", source=path) from None
    except ValueError as error:
        raise _bad_toml(str(error), path, text) from None
    return _checked(path, [table], text), _stamp(status)


def _bad_toml(reason: str, path: str, text: str) -> BadSetting:
    """The parser's complaint, with its place moved to where ours stand."""
    if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", reason, re.DOTALL):
        return BadSetting(f"not valid TOML: {found[1]} (column {found[3]})", source=path, line=int(found[2]))
    if reason.endswith(" (at end of document)"):
        last = text.rstrip("\n").count("\n") + 1
        return BadSetting(f"not valid TOML: {reason}", source=path, line=last)
    return BadSetting(f"not valid TOML: {reason}", source=path)


def _line_of(path: KeyPath, text: str) -> int | None:
    """The line where a key stands, or else the nearest table around it."""
    lines = lines_of_keys(text)
    return next((lines[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in lines), None)


_TOKEN: Final = r'''(?x)
    """ (?: \\[\s\S] | [^\\] )*? """ "{0,2}      # strings over several lines may end in quotes of their own
  | \'\'\' [\s\S]*? \'\'\' '{0,2}
  | " (?: \\. | [^"\\\n] )* "
  | ' [^'\n]* '
  | \# [^\n]*
  | [\[\]{},=\n]
  | [^\s\[\]{},=.\#"']+
'''


def lines_of_keys(text: str) -> dict[KeyPath, int]:
    """Every key and table of a TOML text that is known to parse, with the line where it stands.

    A table that is only implied by longer keys stands where it is first implied. Tables of an
    array are not told apart: all of them have the path of the array.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    key: list[str] = []
    value_of: KeyPath | None = None  # None while a key or a header is being read
    open_brackets: list[tuple[str, KeyPath, KeyPath]] = []  # those in values, with what to go back to
    line = 1

    def key_ended() -> KeyPath:
        path = (*table, *key)
        for depth in range(len(table) + 1, len(path)):
            lines.setdefault(path[:depth], line)
        lines[path] = line
        key.clear()
        return path

    for found in re.finditer(_TOKEN, text):
        token = found[0]
        match token, value_of:
            case "\n", _:
                if not open_brackets:
                    value_of = None
            case "[", None:
                table = ()
            case "]", None:
                if key:  # the second bracket of `[[name]]` has none
                    table = key_ended()
            case "=", None:
                value_of = key_ended()
            case "[", tuple(path):
                open_brackets.append((token, table, path))
            case "{", tuple(path):
                open_brackets.append((token, table, path))
                table, value_of = path, None
            case (("]" | "}"), _):
                _, table, value_of = open_brackets.pop()
            case ",", _:
                if open_brackets[-1][0] == "{":
                    value_of = None
            case _, None if token[0] != "#":
                key.append(_unquoted(token))
            case _:
                pass  # a comment, or a piece of a value
        line += token.count("\n")
    return lines


# --- files and environment ---------------------------------------------------------------


def _read_text(path: str) -> tuple[str, os.stat_result]:
    """A whole file. Raises OSError or UnicodeDecodeError; never waits for a writer, as a pipe would."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        return file.read().decode("utf-8-sig"), status


def _read_instructions(path: str) -> str:
    failed = f"failed to read experimental instructions file {path}"
    try:
        text, _ = _read_text(path)
    except OSError as error:
        raise BadSetting(f"{failed}: {_os_error(error)}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{failed}: not valid UTF-8") from None
    if not (trimmed := text.strip()):
        raise BadSetting(f"experimental instructions file is empty: {path}")
    return trimmed


def _os_error(error: OSError) -> str:
    return f"{error.strerror} (os error {error.errno})" if error.errno else str(error.strerror)


def _refuse_missing_directory(path: str, *, named_by: str) -> None:
    try:
        os.stat(os.path.join(path, ""))  # with a slash at its end only a directory is found
    except OSError as error:
        raise BadSetting(f"{path}: {_os_error(error)}", source=named_by) from None


def _absolute(cwd: str, server_dir: str) -> str:
    if cwd.startswith("/"):
        return cwd
    # `..` stays: what it means depends on symbolic links.
    return os.path.join(server_dir, *(part for part in cwd.split("/") if part not in ("", ".")))


def _oss_base_url(environ: Mapping[str, str]) -> str:
    if url := environ.get("CODEX_OSS_BASE_URL", "").strip():
        return url
    port = environ.get("CODEX_OSS_PORT", "").strip() or "11434"
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        detail = f"invalid value: {_described(port)}, expected a port from 1 to 65535"
        raise BadSetting(detail, source="CODEX_OSS_PORT")
    return f"http://localhost:{int(port)}/v1"
