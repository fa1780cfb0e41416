"""The stored overrides of a call: everything except secrets, and enough to resolve the same settings again."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from parley.config.redaction import stored_arguments, stored_overrides
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides, ToolServer
from unit.config.home import Home

SECRET = "hidden-in-no-log"
PROVIDER = {"name": "P", "base_url": "http://localhost:1", "env_key": "P_KEY"}
SERVER = {"command": "serve"}
HEADERS = {"Authorization": SECRET, "X-Team": SECRET}

P = {"model_provider": "p", "model_providers.p": PROVIDER}
"""Overrides that define a provider and select it. Tests add further members."""

SPELLINGS: dict[str, dict[str, Any]] = {
    "tables": {"model_provider": "p", "model_providers": {"p": {**PROVIDER, "http_headers": HEADERS}}},
    "a table by its name": {**P, "model_providers.p": {**PROVIDER, "http_headers": HEADERS}},
    "a dotted key": {**P, "model_providers.p.http_headers": HEADERS},
    "dots to the end": {**P, "model_providers.p.http_headers.Authorization": SECRET},
    "quotes": {**P, '"model_providers"."p"."http_headers"."Authorization"': SECRET},
    "single quotes": {**P, "model_providers.'p'.'http_headers'": HEADERS},
    "escapes": {**P, '"model\\u005fproviders".p."http\\u005fheaders"': HEADERS},
    "blanks": {**P, " model_providers . p . http_headers ": HEADERS},
    "a name with dots": {
        "model_provider": "p.q",
        'model_providers."p.q"': {**PROVIDER, "http_headers": HEADERS},
    },
    "a name like the secret": {
        "model_provider": "http_headers",
        "model_providers.http_headers": {**PROVIDER, "http_headers": HEADERS},
    },
    "a server": {"mcp_servers": {"s": {**SERVER, "env": {"TOKEN": SECRET}}}},
    "a server by its name": {"mcp_servers.s": {**SERVER, "env": {"TOKEN": SECRET}}},
    "a server with dots": {"mcp_servers.s": SERVER, "mcp_servers.s.env.TOKEN": SECRET},
    "a server called env": {"mcp_servers.env": {**SERVER, "env": {"TOKEN": SECRET}}},
    "arguments of a server": {"mcp_servers.s": {**SERVER, "args": ["--token", SECRET]}},
    "arguments of the notify program": {"notify": ["ring", "--token", SECRET]},
    "parameters": {**P, "model_providers.p": {**PROVIDER, "query_params": {"api-key": SECRET}}},
    "parameters with dots": {**P, "model_providers.p.query_params.api-key": SECRET},
    "variables of commands": {"shell_environment_policy": {"inherit": "core", "set": {"A": SECRET}}},
    "variables of commands with dots": {"shell_environment_policy.set.A": SECRET},
    "an address with a password": {
        **P,
        "model_providers.p": {**PROVIDER, "base_url": f"http://me:{SECRET}@localhost:1"},
    },
    "an address of a server": {"mcp_servers.s.url": f"https://{SECRET}@localhost/mcp"},
    "a key in the address of a server": {"mcp_servers.s.url": f"https://localhost/mcp?key={SECRET}"},
    "a key after the address of a server": {"mcp_servers.s.url": f"https://localhost/mcp#{SECRET}"},
    "a key in an address": {
        **P,
        "model_providers.p": {**PROVIDER, "base_url": f"http://localhost:1/v1?key={SECRET}"},
    },
    "nothing else": {"mcp_servers.s": SERVER, "mcp_servers": {"s": {"env": {"TOKEN": SECRET}}}},
}


def without_secrets(settings: Settings) -> Settings:
    provider, servers = settings.provider, settings.mcp_servers
    return replace(
        settings,
        provider=replace(
            provider, http_headers={}, query_params={}, base_url=without_secrets_in(provider.base_url)
        ),
        mcp_servers=tuple(map(stripped, servers)),
        notify=(),
        shell_environment=replace(settings.shell_environment, set={}),
    )


def stripped(server: ToolServer) -> ToolServer:
    missing = (*(["args"] if server.args else []), *(f"env.{name}" for name in server.env))
    parts = {"user": "@", "query": "?", "fragment": "#"}
    missing += tuple(f"url.{part}" for part, mark in parts.items() if mark in (server.url or ""))
    return replace(server, args=(), env={}, url=without_secrets_in(server.url), missing=missing)


def without_secrets_in(url: str | None) -> str | None:
    return url and re.sub("[?#].*", "", re.sub("//.*@", "//", url))


def written(wanted: SettingsOverrides) -> dict[str, Any]:
    """Return the stored overrides, decoded from the log."""
    again: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(stored_arguments(wanted)))
    return again


@pytest.mark.parametrize("config", SPELLINGS.values(), ids=list(SPELLINGS))
def test_no_secret_is_kept_however_it_is_spelled_and_the_rest_comes_to_the_same(
    home: Home, config: dict[str, Any]
) -> None:
    wanted = SettingsOverrides(cwd="/project", config=config)
    loader = home.loader()
    chosen = loader.choose(wanted)
    assert SECRET in str(chosen.settings)

    asked = written(wanted)
    assert SECRET not in str(asked)
    assert loader.choose(stored_overrides(asked)).settings == without_secrets(chosen.settings)


EVERYTHING = SettingsOverrides(
    model="m",
    profile="careful",
    cwd="/project",
    approval_policy="never",
    sandbox="read-only",
    base_instructions="Be brief.",
    include_plan_tool=True,
    config={
        "model_reasoning_effort": "low",
        "approvals": {"timeout_seconds": 30},
        "sandbox_workspace_write.writable_roots": ["/tmp/a", "/tmp/b"],
        "shell_environment_policy": {"inherit": "core", "exclude": ["A*"]},
        "profiles.quick": {},
    },
)


@pytest.mark.parametrize(
    "wanted",
    [
        SettingsOverrides(),
        EVERYTHING,
        SettingsOverrides(include_plan_tool=False),
        SettingsOverrides(config={}),
        SettingsOverrides(base_instructions=""),
    ],
    ids=["nothing", "everything", "a no", "an empty table", "empty words"],
)
def test_overrides_without_secrets_are_stored_unchanged(home: Home, wanted: SettingsOverrides) -> None:
    home.write('[profiles.careful]\nmodel_reasoning_summary = "none"\n')

    assert stored_overrides(written(wanted)) == wanted
    assert home.resolve(stored_overrides(written(wanted))) == home.resolve(wanted)


@pytest.mark.parametrize(
    "unknown",
    [
        {"tokens": SECRET},
        {"tools": {"web_search": {"token": SECRET}}},
        {"model_providers.p.experimental_bearer_token": SECRET},
        {"model_providers.p": {**PROVIDER, "experimental_bearer_token": SECRET}},
        {"mcp_servers": {"s": {**SERVER, "http_headers": HEADERS, "bearer_token": SECRET}}},
        {"model.name": SECRET},
    ],
    ids=str,
)
def test_unknown_keys_are_not_stored(unknown: dict[str, Any]) -> None:
    assert SECRET not in str(stored_arguments(SettingsOverrides(config={"model": "m", **unknown})))


def test_settings_that_were_not_given_are_not_stored() -> None:
    assert stored_arguments(SettingsOverrides(model="m")) == {"model": "m"}


def test_several_calls_in_succession_come_to_the_same_again(home: Home) -> None:
    calls = [
        EVERYTHING,
        SettingsOverrides(model="other"),
        SettingsOverrides(
            config={"model_providers.p": {**PROVIDER, "http_headers": HEADERS}, "model_provider": "p"}
        ),
        SettingsOverrides(
            config={"model_providers.p.http_headers.X-Team": SECRET, "model_reasoning_effort": "high"}
        ),
    ]
    home.write("[profiles.careful]\n")
    loader = home.loader()
    first: ResolvedSettings | None = None
    again: ResolvedSettings | None = None
    for wanted in calls:
        first = loader.choose(wanted, first)
        again = loader.choose(stored_overrides(written(wanted)), again)

    assert first is not None
    assert again is not None
    assert again.settings == without_secrets(first.settings)
    assert SECRET not in str(again)


def servers_again(home: Home, wanted: SettingsOverrides) -> tuple[ToolServer, ...]:
    """Return the tool servers of a conversation that another process has loaded."""
    return home.loader().choose(stored_overrides(written(wanted))).settings.mcp_servers


def test_a_tool_server_that_the_file_has_whole_is_not_missing_anything(home: Home) -> None:
    config = {"mcp_servers.s": {"command": "serve", "args": ["--token", SECRET], "env": {"A": SECRET, "B": SECRET}}}
    asked = SettingsOverrides(config=config)
    assert [server.missing for server in servers_again(home, asked)] == [("args", "env.A", "env.B")]

    home.write('[mcp_servers.s]\nargs = ["--token", "mine"]\nenv = { A = "mine" }\n')
    assert [server.missing for server in servers_again(home, asked)] == [("env.B",)]

    home.write('[mcp_servers.s]\nargs = ["--token", "mine"]\nenv = { A = "mine", B = "mine" }\n')
    (server,) = servers_again(home, asked)
    assert server == ToolServer(name="s", command="serve", args=("--token", "mine"), env={"A": "mine", "B": "mine"})


def test_empty_values_are_not_secrets(home: Home) -> None:
    asked = SettingsOverrides(config={"mcp_servers.s": {"command": "serve", "args": [], "env": {}}})

    assert servers_again(home, asked) == (ToolServer(name="s", command="serve"),)


def test_omitted_keys_are_still_known_after_another_round_trip(home: Home) -> None:
    asked = SettingsOverrides(config={"mcp_servers.s": {"command": "serve", "args": [SECRET]}})
    once = written(asked)

    assert written(stored_overrides(once)) == once
