"""Errors about invalid settings: one error, with file, line and key."""

from __future__ import annotations

import os
from typing import Any

import pytest

from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import Home


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model = 5", "`model`: invalid type: integer `5`, expected a string"),
        ("model = 0.5", "`model`: invalid type: floating point `0.5`, expected a string"),
        ("model = true", "`model`: invalid type: boolean `true`, expected a string"),
        ("model = []", "`model`: invalid type: sequence, expected a string"),
        ("model = {}", "`model`: invalid type: map, expected a string"),
        ("model = 1979-05-27", "`model`: invalid type: datetime, expected a string"),
        (f"model = 0x{'f' * 5000}", "`model`: invalid type: integer beyond 64 bits, expected a string"),
        (r'model = "\u0000"', r'`model`: invalid value: string "\u0000", expected a string without NUL'),
        ("model_provider = 5", "`model_provider`: invalid type: integer `5`, expected a string"),
        ("profile = 5", "`profile`: invalid type: integer `5`, expected a string"),
        ("profiles = 5", "`profiles`: invalid type: integer `5`, expected a map"),
        ("profiles.p.model = 5", "`profiles.p.model`: invalid type: integer `5`, expected a string"),
        (
            'approval_policy = "sometimes"',
            "`approval_policy`: unknown variant `sometimes`, "
            "expected one of `untrusted`, `on-failure`, `on-request`, `never`",
        ),
        (
            'sandbox_mode = "jail"',
            "`sandbox_mode`: unknown variant `jail`, "
            "expected one of `read-only`, `workspace-write`, `danger-full-access`",
        ),
        (
            'sandbox_workspace_write.writable_roots = ["/a", "b"]',
            '`sandbox_workspace_write.writable_roots`: invalid value: string "b", expected an absolute path',
        ),
        (
            'sandbox_workspace_write.network_access = "yes"',
            '`sandbox_workspace_write.network_access`: invalid type: string "yes", expected a boolean',
        ),
        (
            'sandbox.mechanism = "chroot"',
            "`sandbox.mechanism`: unknown variant `chroot`, expected one of `auto`, `bubblewrap`, `landlock`",
        ),
        (
            'sandbox.hidden_paths = ["~/.ssh", "secrets"]',
            '`sandbox.hidden_paths`: invalid value: string "secrets", '
            "expected an absolute path, or one that begins with `~/`",
        ),
        (
            'sandbox.hidden_paths = ["~ada/.ssh"]',
            '`sandbox.hidden_paths`: invalid value: string "~ada/.ssh", '
            "expected an absolute path, or one that begins with `~/`",
        ),
        ("sandbox.hidden_paths = 1", "`sandbox.hidden_paths`: invalid type: integer `1`, expected a sequence"),
        (
            "sandbox.allow_unix_sockets = 1",
            "`sandbox.allow_unix_sockets`: invalid type: integer `1`, expected a boolean",
        ),
        (
            'model_reasoning_effort = "huge"',
            "`model_reasoning_effort`: unknown variant `huge`, "
            "expected one of `minimal`, `low`, `medium`, `high`, `xhigh`, `max`, `none`",
        ),
        (
            'model_reasoning_summary = "long"',
            "`model_reasoning_summary`: unknown variant `long`, "
            "expected one of `auto`, `concise`, `detailed`, `none`",
        ),
        (
            "model_supports_reasoning_summaries = 1",
            "`model_supports_reasoning_summaries`: invalid type: integer `1`, expected a boolean",
        ),
        (
            "show_raw_agent_reasoning = 1",
            "`show_raw_agent_reasoning`: invalid type: integer `1`, expected a boolean",
        ),
        (
            "disable_response_storage = 1",
            "`disable_response_storage`: invalid type: integer `1`, expected a boolean",
        ),
        (
            "project_doc_max_bytes = -1",
            "`project_doc_max_bytes`: invalid value: integer `-1`, expected an integer from 0 to 2147483647",
        ),
        (
            "project_doc_max_bytes = true",
            "`project_doc_max_bytes`: invalid type: boolean `true`, expected an integer",
        ),
        (
            "model_context_window = 0",
            "`model_context_window`: invalid value: integer `0`, expected an integer from 1 to 9223372036854775807",
        ),
        ('notify = "bell"', "`notify`: invalid type: string, expected a sequence"),
        ('notify = ["bell", 1]', "`notify`: invalid type: integer, expected a string"),
        ("internal_originator = 1", "`internal_originator`: invalid type: integer `1`, expected a string"),
        (
            "experimental_instructions_file = 1",
            "`experimental_instructions_file`: invalid type: integer `1`, expected a string",
        ),
        (
            'experimental_resume = "x"',
            "`experimental_resume`: not supported; import the session with `parley import FILE`",
        ),
        ("mcp_servers.docs = 1", "`mcp_servers.docs`: invalid type: integer `1`, expected a map"),
        ('mcp_servers.docs.args = "x"', "`mcp_servers.docs.args`: invalid type: string, expected a sequence"),
        ("mcp_servers.docs.env.A = 1", "`mcp_servers.docs.env.A`: invalid type: integer, expected a string"),
        (
            "mcp_servers.docs.env = 'A=`sesame'",
            "`mcp_servers.docs.env`: invalid type: string, expected a map",
        ),
        (
            "shell_environment_policy.set.A = 1.5",
            "`shell_environment_policy.set.A`: invalid type: floating point, expected a string",
        ),
        (
            r'shell_environment_policy.set.A = "sesame\u0000"',
            "`shell_environment_policy.set.A`: invalid value: string, expected a string without NUL",
        ),
        (
            'shell_environment_policy.inherit = "most"',
            "`shell_environment_policy.inherit`: unknown variant `most`, "
            "expected one of `safe`, `all`, `core`, `none`",
        ),
        (
            "approvals.timeout_seconds = -1",
            "`approvals.timeout_seconds`: invalid value: integer `-1`, expected an integer from 0 to 2147483647",
        ),
        (
            'approvals.on_timeout = "ask"',
            "`approvals.on_timeout`: unknown variant `ask`, expected one of `deny`, `abort`, `hold`",
        ),
        (
            'limits.turn_calls = "many"',
            '`limits.turn_calls`: invalid type: string "many", expected an integer',
        ),
        (
            "limits.turn_calls = -1",
            "`limits.turn_calls`: invalid value: integer `-1`, expected an integer from 0 to 9223372036854775807",
        ),
        ("model_providers = []", "`model_providers`: invalid type: sequence, expected a map"),
        (
            "model_providers.x.base_url = 5",
            "`model_providers.x.base_url`: invalid type: integer `5`, expected a string",
        ),
        (
            "model_providers.x.base_url = 'http://[::1/v1'",
            "`model_providers.x.base_url`: not an http or https URL",
        ),
        (
            "model_providers.x.base_url = 'ftp://u:p@x'",
            "`model_providers.x.base_url`: not an http or https URL",
        ),
        ("model_providers.x.base_url = 'nonsense'", "`model_providers.x.base_url`: not an http or https URL"),
        (
            "model_providers.x.base_url = 'http://x:99999'",
            "`model_providers.x.base_url`: not an http or https URL",
        ),
        (
            r'model_providers.x.http_headers = { "\u0000" = "v" }',
            r'`model_providers.x.http_headers`: invalid value: string "\u0000", expected a string without NUL',
        ),
        (
            'model_providers."my x".wire_api = "smoke"',
            '`model_providers."my x".wire_api`: unknown variant `smoke`, '
            "expected one of `chat`, `responses`, `anthropic`, `scripted`",
        ),
        (
            "model_providers.x.http_headers.a = 1",
            "`model_providers.x.http_headers.a`: invalid type: integer, expected a string",
        ),
        (
            "model_providers.x.request_max_retries = 101",
            "`model_providers.x.request_max_retries`: invalid value: integer `101`, "
            "expected an integer from 0 to 100",
        ),
        (
            "model_providers.x.stream_idle_timeout_ms = 0",
            "`model_providers.x.stream_idle_timeout_ms`: invalid value: integer `0`, "
            "expected an integer from 1 to 2147483647",
        ),
    ],
)
def test_a_wrong_value_in_the_file_is_named_with_its_line_and_key(home: Home, line: str, said: str) -> None:
    home.write(f"# settings\n\n{line}\n")

    assert home.refusal() == f"FILE, line 3: {said}"


def test_the_error_carries_its_facts(home: Home) -> None:
    home.write("[model_providers.x]\nname = 'X'\nbase_url = 5")

    with pytest.raises(BadSetting) as caught:
        home.resolve()

    error = caught.value
    assert (error.detail, error.source, error.line, error.key) == (
        "invalid type: integer `5`, expected a string",
        str(home.config),
        3,
        "model_providers.x.base_url",
    )


def test_a_long_value_is_shown_in_part(home: Home) -> None:
    home.write(f'project_doc_max_bytes = "{"x" * 1000}"')

    refusal = f'FILE, line 1: `project_doc_max_bytes`: invalid type: string "{"x" * 79}…", expected an integer'
    assert home.refusal() == refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = [unclosed", "FILE, line 1: `model`: not valid TOML: Invalid value (column 10)"),
        (
            "\nmodel = 'a'\nmodel = 'b'",
            "FILE, line 3: `model`: not valid TOML: Cannot overwrite a value (at end of document)",
        ),
        ("\n\nmodel = [1\n", "FILE, line 3: `model`: not valid TOML: Unclosed array (at end of document)"),
        (
            f"x = {'1' * 5000}",
            "FILE: not valid TOML: Exceeds the limit (4300 digits) for integer string conversion: "
            "value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit",
        ),
        (f"x = {'[' * 5000}", "FILE: not valid TOML: nested too deeply"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_the_line(home: Home, text: str, said: str) -> None:
    home.write(text)

    assert home.refusal() == said


def test_a_file_that_is_not_text_is_named_with_the_line(home: Home) -> None:
    home.config.write_bytes(b"model = 'm'\n# caf\xe9\n")

    assert home.refusal() == "FILE, line 2: not valid UTF-8"


def test_a_directory_in_place_of_the_file_is_refused(home: Home) -> None:
    home.config.mkdir()

    assert home.refusal() == "FILE: Is a directory (os error 21)"


def test_a_pipe_in_place_of_the_file_is_refused_without_waiting_for_a_writer(home: Home) -> None:
    os.mkfifo(home.config)

    assert home.refusal() == "FILE: not a regular file"


def test_a_file_that_cannot_be_reached_is_refused(home: Home) -> None:
    home.config.symlink_to(home.config)

    assert home.refusal() == "FILE: Too many levels of symbolic links (os error 40)"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("nonsense", "-c: `nonsense` is not of the form key=value"),
        ("=5", "-c: `=5` is not of the form key=value"),
        ("", "-c: `` is not of the form key=value"),
        (" =5", "-c: ` =5` is not of the form key=value"),
        ("a..b=5", "-c: `a..b=5` is not of the form key=value"),
        ("a.=5", "-c: `a.=5` is not of the form key=value"),
        ('"open=5', '-c: `"open=5` is not of the form key=value'),
        (r'"\z"=5', r'-c: `"\z"=5` is not of the form key=value'),
        ("model_providers.\udcff.name=5", "-c: not valid UTF-8"),
        ("model=5", "-c: `model`: invalid type: integer `5`, expected a string"),
        ("model.x=5", "-c: `model`: invalid type: map, expected a string"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(home: Home, option: str, said: str) -> None:
    with pytest.raises(BadSetting) as caught:
        home.loader(option)

    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"approval_policy": 5},
            "config argument: `approval_policy`: invalid type: integer `5`, expected a string",
        ),
        ({"notify": [None]}, "config argument: `notify`: invalid type: null, expected a string"),
        (
            {"model_providers.x": "y"},
            'config argument: `model_providers.x`: invalid type: string "y", expected a map',
        ),
        (
            {"model_providers": {"x.y": {"name": 1}}},
            'config argument: `model_providers."x.y".name`: invalid type: integer `1`, expected a string',
        ),
        (
            {"experimental_resume": "x"},
            "config argument: `experimental_resume`: not supported; import the session with `parley import FILE`",
        ),
        ({"": 1}, "config argument: not a key"),
        ({"model.": 1}, "config argument: `model.`: not a key"),
        ({"model=": 1}, "config argument: `model=`: not a key"),
        (
            {"model_provider": "x", "model_providers.x.name": "X"},
            "config argument: `model_providers.x.base_url`: missing, and a provider with wire_api `chat` needs it",
        ),
    ],
)
def test_a_wrong_value_in_the_config_argument_is_named_with_its_key(
    home: Home, config: dict[str, Any], said: str
) -> None:
    assert home.refusal(SettingsOverrides(config=config)) == said


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            SettingsOverrides(approval_policy="sometimes"),
            "`approval_policy`: unknown variant `sometimes`, "
            "expected one of `untrusted`, `on-failure`, `on-request`, `never`",
        ),
        (
            SettingsOverrides(sandbox="jail"),
            "`sandbox`: unknown variant `jail`, "
            "expected one of `read-only`, `workspace-write`, `danger-full-access`",
        ),
        (
            SettingsOverrides(cwd="/a\0b"),
            r'`cwd`: invalid value: string "/a\u0000b", expected a string without NUL',
        ),
    ],
)
def test_a_wrong_named_argument_is_refused(home: Home, wanted: SettingsOverrides, said: str) -> None:
    assert home.refusal(wanted) == said


def test_a_missing_key_is_reported_for_the_source_with_the_nearest_table(home: Home) -> None:
    home.write('\nmodel_provider = "x"\n[model_providers.x]\nname = "X"')

    said = home.refusal(
        SettingsOverrides(config={"model_providers.x.stream_usage": True}), 'model_providers.x.base_url=""'
    )

    assert said == "-c: `model_providers.x.base_url`: missing, and a provider with wire_api `chat` needs it"


def test_settings_nested_without_end_are_no_danger(home: Home) -> None:
    endless: dict[str, Any] = {}
    for _ in range(100):
        endless = {"x": endless}

    settings = home.resolve(SettingsOverrides(config={"of_the_future": endless, ".".join(["x"] * 10_000): 1}))

    assert settings.model == "gpt-5"
