"""What may be set: every key, what its value must look like, and what holds without it.

Knows values as TOML or JSON gives them, and where in a table they stand. Does not know which file
or argument they came from: whoever asks for a check adds that to what is `Wrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from parley.config.locate import KeyPath
from parley.config.types import (
    ApprovalPolicy,
    Effort,
    Inherit,
    McpFeatures,
    Mechanism,
    OnTimeout,
    SandboxMode,
    Summary,
    WhenNobody,
    WireApi,
)

__all__ = [
    "DEFAULTS",
    "NAMED_ARGUMENTS",
    "SETTINGS",
    "Check",
    "Named",
    "NamedSecrets",
    "Table",
    "Wrong",
    "described",
    "is_address",
    "shortened",
]

Check = Callable[[Any, KeyPath], Any]
"""Takes a value as TOML or JSON gave it and where it stands; returns it as we keep it, or raises `Wrong`."""


class Wrong(Exception):
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
        return {
            _text(name, at): self.entry(entry, (*at, name)) for name, entry in entries.items() if entry is not None
        }


class NamedSecrets(Named):
    """A table of texts under names that the user chose. What does not fit is not shown: it may be a secret."""

    def __init__(self) -> None:
        super().__init__(_secret)

    def __call__(self, value: Any, at: KeyPath) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unshown("type", value, at, "a map")
        return super().__call__(value, at)


def _invalid(what: Literal["type", "value"], value: Any, at: KeyPath, expected: str) -> Wrong:
    return Wrong(at, f"invalid {what}: {described(value)}, expected {expected}")


def _unshown(what: Literal["type", "value"], value: Any, at: KeyPath, expected: str) -> Wrong:
    kind = described(value).partition(' "')[0].partition(" `")[0]
    return Wrong(at, f"invalid {what}: {kind}, expected {expected}")


def _expect_map(value: Any, at: KeyPath) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _invalid("type", value, at, "a map")


def _text(value: Any, at: KeyPath) -> str:
    if not isinstance(value, str):
        raise _invalid("type", value, at, "a string")
    if "\0" in value:  # no path, argument, header or URL can have one
        raise _invalid("value", value, at, "a string without NUL")
    return value


def _secret(value: Any, at: KeyPath) -> str:
    if not isinstance(value, str):
        raise _unshown("type", value, at, "a string")
    if "\0" in value:
        raise _unshown("value", value, at, "a string without NUL")
    return value


def _absolute_path(value: Any, at: KeyPath) -> str:
    path = _text(value, at)
    if not path.startswith("/"):
        raise _invalid("value", value, at, "an absolute path")
    return path


def _path_or_home_path(value: Any, at: KeyPath) -> str:
    path = _text(value, at)
    if not path.startswith(("/", "~/")):
        raise _invalid("value", value, at, "an absolute path, or one that begins with `~/`")
    return path


def _address(value: Any, at: KeyPath) -> str:
    url = _text(value, at)
    if url and not is_address(url):  # an empty one is the same as none
        raise Wrong(at, "not an http or https address")  # and not shown: it may hold a password
    return url


def is_address(url: str) -> bool:
    """Whether a model can be looked for there."""
    from urllib.parse import urlsplit  # only where there is one to check

    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _flag(value: Any, at: KeyPath) -> bool:
    if isinstance(value, bool):
        return value
    raise _invalid("type", value, at, "a boolean")


def _integer(lowest: int, highest: int) -> Check:
    def check(value: Any, at: KeyPath) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _invalid("type", value, at, "an integer")
        if not lowest <= value <= highest:
            raise _invalid("value", value, at, f"an integer from {lowest} to {highest}")
        return value

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any, at: KeyPath) -> str:
        word = _text(value, at)
        if word not in words:
            expected = ", ".join(f"`{known}`" for known in words)
            raise Wrong(at, f"unknown variant `{shortened(word)}`, expected one of {expected}")
        return word

    return check


def _sequence_of(entry: Check) -> Check:
    def check(value: Any, at: KeyPath) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _invalid("type", value, at, "a sequence")
        return tuple(entry(one, at) for one in value)

    return check


def _secret_sequence(value: Any, at: KeyPath) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _unshown("type", value, at, "a sequence")
    return tuple(_secret(one, at) for one in value)


def described(value: Any) -> str:
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
            return f"string {msgspec.json.encode(shortened(value)).decode()}"
        case list():
            return "sequence"
        case dict():
            return "map"
        case _:
            return "datetime"


def shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


_RETRIES: Final = _integer(0, 100)  # the delay doubles each time: a hundred is for ever already
_MILLISECONDS: Final = _integer(1, 2**31 - 1)
_COUNT: Final = _integer(1, 2**63 - 1)
_LIMIT: Final = _integer(0, 2**63 - 1)

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
        "sandbox": Table(
            {
                "mechanism": _one_of(*get_args(Mechanism)),
                "hidden_paths": _sequence_of(_path_or_home_path),
                "allow_unix_sockets": _flag,
            }
        ),
        "developer_instructions": _text,
        "compact_prompt": _text,
        "model_supports_reasoning_summaries": _flag,
        "model_context_window": _COUNT,
        "show_raw_agent_reasoning": _flag,
        "experimental_resume": _text,
        "project_doc_max_bytes": _integer(0, 2**31 - 1),
        "notify": _sequence_of(_text),
        "notify_argument": _flag,
        "internal_originator": _text,
        "mcp_servers": Named(
            Table(
                {
                    "enabled": _flag,
                    "command": _text,
                    "args": _secret_sequence,
                    "env": NamedSecrets(),
                    "cwd": _path_or_home_path,
                    "url": _address,
                    "bearer_token_env_var": _text,
                    "tool_timeout_seconds": _integer(0, 2**31 - 1),
                    "max_answer_bytes": _integer(1024, 2**30),
                }
            )
        ),
        "shell_environment_policy": Table(
            {
                "inherit": _one_of(*get_args(Inherit)),
                "ignore_default_excludes": _flag,
                "exclude": _sequence_of(_text),
                "set": NamedSecrets(),
                "include_only": _sequence_of(_text),
            }
        ),
        "approvals": Table(
            {
                "timeout_seconds": _integer(0, 2**31 - 1),
                "on_timeout": _one_of(*get_args(OnTimeout)),
                "when_nobody": _one_of(*get_args(WhenNobody)),
                "model_may_answer": _flag,
            }
        ),
        "mcp": Table({"features": _one_of(*get_args(McpFeatures))}),
        "limits": Table(
            {"turn_tokens": _LIMIT, "turn_seconds": _LIMIT, "turn_calls": _LIMIT, "conversation_tokens": _LIMIT}
        ),
        "store": Table(
            {
                "keep_days": _integer(0, 36_500),
                "idle_seconds": _integer(0, 2**31 - 1),
                "idle_conversations": _integer(0, 2**31 - 1),
            }
        ),
        "model_providers": Named(
            Table(
                {
                    "name": _text,
                    "wire_api": _one_of(*get_args(WireApi)),
                    "base_url": _address,
                    "env_key": _text,
                    "env_key_instructions": _text,
                    "query_params": NamedSecrets(),
                    "http_headers": NamedSecrets(),
                    "env_http_headers": Named(_text),
                    "request_max_retries": _RETRIES,
                    "stream_max_retries": _RETRIES,
                    "stream_idle_timeout_ms": _MILLISECONDS,
                    "stream_usage": _flag,
                    "max_reply_characters": _COUNT,
                    "max_argument_characters": _COUNT,
                    "max_calls": _COUNT,
                    "max_event_bytes": _integer(1024, 2**31 - 1),
                    "script": _text,
                }
            )
        ),
    }
)
"""Every setting. What is here and not in `Settings` has no reader yet: it is checked all the same,
so that a mistake shows when it is made and not with the version that begins to use it."""

DEFAULTS: Final[dict[str, Any]] = {
    "model": "gpt-5",
    "model_provider": "openai",
    "approval_policy": "on-request",
    "sandbox_mode": "read-only",
    "sandbox_workspace_write": {},
    "sandbox": {
        "hidden_paths": ("~/.ssh", "~/.aws", "~/.gnupg", "~/.config/gh", "~/.netrc", "~/.docker/config.json")
    },
    "approvals": {},
    "limits": {},
    "developer_instructions": "",
    "compact_prompt": "",
    "model_reasoning_effort": "medium",
    "model_reasoning_summary": "auto",
    "model_supports_reasoning_summaries": False,
    "show_raw_agent_reasoning": False,
    "disable_response_storage": False,
    "project_doc_max_bytes": 32_768,
    "notify": (),
    "notify_argument": True,
    "internal_originator": "codex_cli_rs",
    "profiles": {},
    "mcp_servers": {},
    "shell_environment_policy": {},
    "model_providers": {},
}

NAMED_ARGUMENTS: Final = Table(
    {
        "model": _text,
        "cwd": _text,
        "approval_policy": SETTINGS.fields["approval_policy"],
        "sandbox": SETTINGS.fields["sandbox_mode"],
        "developer_instructions": _text,
        "compact_prompt": _text,
    }
)
