"""The value of each setting, and the precedence of its sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.config.errors import ProfileNotFound
from parley.config.types import (
    Approvals,
    Environment,
    Limits,
    Provider,
    Sandbox,
    Settings,
    SettingsOverrides,
    ShellEnvironment,
    ToolServer,
    WorkspaceWrite,
)
from parley.errors import BadSetting
from unit.config.home import OPENAI, SECRETS, SERVER_DIR, Home


def test_without_a_file_every_setting_has_its_default(home: Home) -> None:
    settings = home.resolve(environ={"HOME": "/home/ada"})

    assert settings == Settings(
        environ=Environment(PARLEY_HOME=str(home.path), HOME="/home/ada"),
        home=str(home.path),
        cwd=SERVER_DIR,
        model="gpt-5",
        model_name="gpt-5",
        provider=OPENAI,
        approval_policy="on-request",
        sandbox_mode="read-only",
        workspace_write=WorkspaceWrite(),
        sandbox=Sandbox(mechanism="auto", hidden_paths=(str(home.path), *SECRETS), allow_unix_sockets=False),
        approvals=Approvals(timeout_seconds=300, on_timeout="deny"),
        limits=Limits(turn_tokens=0, turn_seconds=0, turn_calls=0, conversation_tokens=0),
        base_instructions=None,
        developer_instructions="",
        compact_prompt="",
        model_reasoning_effort=None,
        model_thinking=None,
        model_thinking_budget=None,
        model_max_output_tokens=None,
        model_reasoning_summary="auto",
        model_supports_reasoning_summaries=False,
        show_raw_agent_reasoning=False,
        disable_response_storage=False,
        project_doc_max_bytes=32768,
        notify=(),
        notify_argument=True,
        internal_originator="codex_cli_rs",
        mcp_servers=(),
        shell_environment=ShellEnvironment(),
        key_variables=READY_KEYS | {"PARLEY_NODE_TOKEN", "PARLEY_SERVE_TOKEN", "PARLEY_STORE_URL", "PARLEY_TOKEN"},
        model_context_window=None,
        include_plan_tool=False,
    )


READY_KEYS = frozenset(
    {
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "DEEPSEEK_API_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "MOONSHOT_API_KEY",
        "MISTRAL_API_KEY",
        "GROQ_API_KEY",
        "AZURE_OPENAI_API_KEY",
    }
)
"""The keys of OpenAI and of the ready providers."""

EVERYTHING = """
model = "m"
model_provider = "p"
approval_policy = "untrusted"
sandbox_mode = "workspace-write"
developer_instructions = "Ask first."
compact_prompt = "Sum up."
model_reasoning_effort = "minimal"
model_reasoning_summary = "none"
model_supports_reasoning_summaries = true
model_context_window = 1000
show_raw_agent_reasoning = true
disable_response_storage = true
project_doc_max_bytes = 0
notify = ["notify-send", "Parley"]
notify_argument = false
internal_originator = "ours"
a_key_of_the_future = { b = 1 }

[sandbox_workspace_write]
writable_roots = ["/a", "/b"]
network_access = true
exclude_tmpdir_env_var = true
exclude_slash_tmp = true
of_the_future = 5

[sandbox]
mechanism = "landlock"
hidden_paths = ["/secrets", "~/.ssh"]
allow_unix_sockets = true

[model_providers.p]
name = "Provider"
base_url = "http://localhost:1/v1"
wire_api = "responses"
env_key = "P_KEY"
env_key_instructions = "Ask for one."
query_params = { version = "1" }
http_headers = { x-a = "b" }
env_http_headers = { x-c = "D" }
request_max_retries = 0
stream_max_retries = 100
stream_idle_timeout_ms = 1
stream_usage = true

[mcp_servers.docs]
command = "docs-server"
args = ["--fast"]
env = { A = "b" }

[mcp_servers.web]
url = "http://localhost:2/mcp"
bearer_token_env_var = "WEB_TOKEN"
tool_timeout_seconds = 60
max_answer_bytes = 1024

[shell_environment_policy]
inherit = "core"
ignore_default_excludes = true
exclude = ["AWS_*"]
set = { CI = "1" }
include_only = ["PATH"]

[approvals]
timeout_seconds = 0
on_timeout = "hold"

[limits]
turn_tokens = 1
turn_seconds = 2
turn_calls = 3
conversation_tokens = 4
"""


def test_a_file_may_set_everything(home: Home) -> None:
    home.write(EVERYTHING)

    settings = home.resolve(environ={"HOME": "/home/ada"})

    assert settings == Settings(
        environ=Environment(PARLEY_HOME=str(home.path), HOME="/home/ada"),
        home=str(home.path),
        cwd=SERVER_DIR,
        model="m",
        model_name="m",
        model_provider="p",
        provider=Provider(
            id="p",
            name="Provider",
            base_url="http://localhost:1/v1",
            wire_api="responses",
            env_key="P_KEY",
            env_key_instructions="Ask for one.",
            query_params={"version": "1"},
            http_headers={"x-a": "b"},
            env_http_headers={"x-c": "D"},
            request_max_retries=0,
            stream_max_retries=100,
            stream_idle_timeout_ms=1,
            stream_usage=True,
        ),
        approval_policy="untrusted",
        sandbox_mode="workspace-write",
        workspace_write=WorkspaceWrite(
            writable_roots=("/a", "/b"), network_access=True, exclude_tmpdir_env_var=True, exclude_slash_tmp=True
        ),
        sandbox=Sandbox(
            mechanism="landlock",
            hidden_paths=(str(home.path), "/secrets", "/home/ada/.ssh"),
            allow_unix_sockets=True,
        ),
        approvals=Approvals(timeout_seconds=0, on_timeout="hold"),
        limits=Limits(turn_tokens=1, turn_seconds=2, turn_calls=3, conversation_tokens=4),
        base_instructions=None,
        developer_instructions="Ask first.",
        compact_prompt="Sum up.",
        model_reasoning_effort="minimal",
        model_reasoning_summary="none",
        model_supports_reasoning_summaries=True,
        show_raw_agent_reasoning=True,
        disable_response_storage=True,
        project_doc_max_bytes=0,
        notify=("notify-send", "Parley"),
        notify_argument=False,
        internal_originator="ours",
        mcp_servers=(
            ToolServer(name="docs", command="docs-server", args=("--fast",), env={"A": "b"}),
            ToolServer(
                name="web",
                url="http://localhost:2/mcp",
                bearer_token_env_var="WEB_TOKEN",
                tool_timeout_seconds=60,
                max_answer_bytes=1024,
            ),
        ),
        shell_environment=ShellEnvironment(
            inherit="core",
            ignore_default_excludes=True,
            exclude=("AWS_*",),
            set={"CI": "1"},
            include_only=("PATH",),
        ),
        key_variables=READY_KEYS
        | frozenset(
            {
                "PARLEY_NODE_TOKEN",
                "PARLEY_SERVE_TOKEN",
                "PARLEY_TOKEN",
                "PARLEY_STORE_URL",
                "P_KEY",
                "D",
                "WEB_TOKEN",
            }
        ),
        model_context_window=1000,
        include_plan_tool=False,
    )


def test_a_tool_server_that_is_not_enabled_is_left_out(home: Home) -> None:
    home.write('[mcp_servers.a]\ncommand = "a"\nenabled = false\n[mcp_servers.b]\ncommand = "b"\nenabled = true')

    assert [server.name for server in home.resolve().mcp_servers] == ["b"]
    assert [
        server.name for server in home.resolve(SettingsOverrides(), "mcp_servers.a.enabled=true").mcp_servers
    ] == [
        "a",
        "b",
    ]


def test_a_tool_server_that_is_not_enabled_is_checked(home: Home) -> None:
    home.write("[mcp_servers.a]\nenabled = false")

    with pytest.raises(BadSetting, match="either a `command` or a `url`"):
        home.resolve()


def test_the_highest_effort_of_codex_is_taken(home: Home) -> None:
    assert home.resolve(SettingsOverrides(), "model_reasoning_effort=xhigh").model_reasoning_effort == "xhigh"


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(home: Home) -> None:
    home.config.write_bytes(b'\xef\xbb\xbfmodel = "m"\r\nsandbox_mode = "read-only"\r\n')

    assert home.resolve().model == "m"


# --- precedence ----------------------------------------------------------------------------------


def test_each_source_wins_over_the_weaker_ones(home: Home) -> None:
    home.write('model = "file"\n[profiles.p]\nmodel = "profile"')

    models = [
        home.resolve().model,
        home.resolve(SettingsOverrides(), "model=option").model,
        home.resolve(SettingsOverrides(config={"model": "config"}), "model=option").model,
        home.resolve(SettingsOverrides(config={"model": "config"}, profile="p"), "model=option").model,
        home.resolve(
            SettingsOverrides(config={"model": "config"}, profile="p", model="argument"), "model=option"
        ).model,
    ]

    assert models == ["file", "option", "config", "profile", "argument"]


def test_named_arguments_win_over_config(home: Home) -> None:
    config = {"approval_policy": "never", "sandbox_mode": "read-only"}

    settings = home.resolve(
        SettingsOverrides(approval_policy="untrusted", sandbox="danger-full-access", config=config)
    )

    assert (settings.approval_policy, settings.sandbox_mode) == ("untrusted", "danger-full-access")


def test_the_last_of_two_options_wins(home: Home) -> None:
    assert home.resolve(SettingsOverrides(), "model=first", "model=second").model == "second"


def test_tables_of_all_sources_are_merged(home: Home) -> None:
    home.write('model_provider = "x"\n[model_providers.x]\nbase_url = "http://file"\nhttp_headers = { a = "file" }')
    config = {
        "model_providers.x.http_headers": {"c": "config"},
        "model_providers": {"x": {"stream_max_retries": 1}},
    }

    settings = home.resolve(SettingsOverrides(config=config), 'model_providers.x.http_headers={ b = "option" }')

    assert settings.provider == Provider(
        id="x",
        name="x",
        base_url="http://file",
        http_headers={"a": "file", "b": "option", "c": "config"},
        stream_max_retries=1,
    )


def test_settings_of_one_call_do_not_affect_the_next(home: Home) -> None:
    home.write('model_provider = "x"\n[model_providers.x]\nbase_url = "http://x"\nhttp_headers = { a = "file" }')
    loader = home.loader()

    loader.choose(SettingsOverrides(config={"model_providers.x.http_headers.a": "call"}))

    assert loader.choose(SettingsOverrides()).settings.provider.http_headers == {"a": "file"}


def test_null_in_config_says_the_same_as_leaving_the_key_out(home: Home) -> None:
    home.write('model = "file"')

    settings = home.resolve(
        SettingsOverrides(config={"model": None, "model_providers": {"x": None}, "limits.turn_calls": None})
    )

    assert settings.model == "file"


@pytest.mark.parametrize(
    ("option", "model"),
    [
        ("model=o3", "o3"),
        ('model="o3"', "o3"),
        ("model = 'o3' ", "o3"),
        ("model= gpt-4.1 ", "gpt-4.1"),
        ("model=", ""),
        ("model=a=b", "a=b"),
        ('"model"=quoted', "quoted"),
        ("model=1\nprofile='x'", "1\nprofile='x'"),
        ("model=" + "[" * 5000, "[" * 5000),
    ],
)
def test_the_value_of_an_option_is_toml_or_else_plain_text(home: Home, option: str, model: str) -> None:
    assert home.resolve(SettingsOverrides(), option).model == model


@pytest.mark.parametrize("name", ["plain", "with space", "with.dot", "with=sign", 'with"quote', "ünïcode"])
def test_a_part_of_a_key_may_be_quoted(home: Home, name: str) -> None:
    quoted = '"' + name.replace('"', '\\"') + '"'

    settings = home.resolve(
        SettingsOverrides(config={f"model_providers.{quoted}.name": "Named"}),
        f"model_provider={quoted}",
        f"model_providers . {quoted}.base_url=http://x",
    )

    assert settings.provider == Provider(id=name, name="Named", base_url="http://x")


def test_a_part_of_a_key_that_needs_no_quotes_to_be_understood_needs_none(home: Home) -> None:
    config = {"model_provider": "my models", "model_providers.my models.base_url": "http://x"}

    assert home.resolve(SettingsOverrides(config=config)).provider.id == "my models"


# --- profiles ----------------------------------------------------------------------------


def test_a_profile_sets_all_that_it_may_and_nothing_else(home: Home) -> None:
    (home.path / "rules.md").write_text("Be brief.")
    home.write(
        f"""
        profile = "fast"
        [profiles.fast]
        model = "m"
        model_provider = "scripted"
        approval_policy = "never"
        model_reasoning_effort = "low"
        model_reasoning_summary = "concise"
        disable_response_storage = true
        experimental_instructions_file = "{home.path}/rules.md"
        notify = ["bell"]
        """
    )

    settings = home.resolve()

    assert (
        settings.model,
        settings.provider.id,
        settings.approval_policy,
        settings.model_reasoning_effort,
        settings.model_reasoning_summary,
        settings.disable_response_storage,
        settings.base_instructions,
        settings.notify,
    ) == ("m", "scripted", "never", "low", "concise", True, "Be brief.", ())


def test_the_profile_of_the_call_wins_over_that_of_the_file(home: Home) -> None:
    home.write('profile = "a"\n[profiles.a]\nmodel = "of a"\n[profiles.b]\nmodel = "of b"')

    assert home.resolve(SettingsOverrides(profile="b")).model == "of b"


@pytest.mark.parametrize(
    "wanted",
    [SettingsOverrides(profile="nope"), SettingsOverrides(config={"profile": "nope"})],
    ids=["argument", "config"],
)
def test_a_profile_that_is_not_there_is_refused(home: Home, wanted: SettingsOverrides) -> None:
    with pytest.raises(ProfileNotFound, match=r"^config profile `nope` not found$"):
        home.resolve(wanted)


# --- instructions ------------------------------------------------------------------------


def test_instructions_are_read_from_the_file_in_the_working_directory_each_time(home: Home) -> None:
    rules = home.path / "rules.md"
    wanted = SettingsOverrides(cwd=str(home.path), config={"experimental_instructions_file": "rules.md"})
    loader = home.loader()

    rules.write_text("\n  Be terse. \n")
    first = loader.choose(wanted).settings.base_instructions
    rules.write_text("Be kind.")

    assert (first, loader.choose(wanted).settings.base_instructions) == ("Be terse.", "Be kind.")


def test_instructions_given_with_the_call_win_and_the_file_is_not_read(home: Home) -> None:
    home.write('experimental_instructions_file = "/not/there"')

    assert home.resolve(SettingsOverrides(base_instructions="Be terse.")).base_instructions == "Be terse."


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "missing.md",
            "failed to read experimental instructions file PATH: No such file or directory (os error 2)",
        ),
        ("folder", "failed to read experimental instructions file PATH: Is a directory (os error 21)"),
        ("latin.md", "failed to read experimental instructions file PATH: not valid UTF-8"),
        ("pipe", "failed to read experimental instructions file PATH: not a regular file"),
        ("blank.md", "experimental instructions file is empty: PATH"),
    ],
)
def test_instructions_that_cannot_be_used_are_refused(home: Home, name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    (tmp_path / "blank.md").write_text(" \n\t")
    os.mkfifo(tmp_path / "pipe")
    wanted = SettingsOverrides(cwd=str(tmp_path), config={"experimental_instructions_file": name})

    assert home.refusal(wanted) == said.replace("PATH", str(tmp_path / name))
