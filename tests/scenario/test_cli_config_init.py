"""`parley config init`: asks three questions, and writes config.toml."""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kit.models.model_service import CHAT_REPLY, ModelService, model_service
from kit.servers.command_line import environ_of, run_parley
from kit.servers.terminal_program import TerminalProgram
from parley.cli.config_init import is_configured

INIT: Final = ("config", "init")
KEY: Final = "sk-never-told"
LOCAL: Final = ("ollama", "vllm", "llamacpp", "lmstudio")

ANTHROPIC: Final = {"model": "anthropic/claude-opus-4-5"}
EDIT: Final = {"sandbox_mode": "workspace-write", "approval_policy": "on-request"}


@pytest.fixture
def service() -> Iterator[ModelService]:
    with model_service("small", "large") as running:
        yield running


def settings_of(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "config.toml").read_text())


def terminal(home: Path, *arguments: str, **variables: str) -> TerminalProgram:
    command = (sys.executable, "-P", "-m", "parley", *INIT, *arguments)
    return TerminalProgram(command, env=environ_of(home, variables), cwd=home)


def addresses(url: str) -> str:
    """Return the tables that give the local servers an address, so that no server of this computer is asked."""
    return "".join(f'[model_providers.{name}]\nbase_url = "{url}"\n' for name in LOCAL)


# --- without questions ---------------------------------------------------------------------


@pytest.mark.promises("config.init")
async def test_without_a_terminal_the_suggested_answers_depend_on_the_keys_in_the_environment(
    tmp_path: Path,
) -> None:
    done = await run_parley(tmp_path, *INIT, variables={"ANTHROPIC_API_KEY": KEY})
    text = (tmp_path / "config.toml").read_text()

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("Next: parley ")
    assert done.stdout.count("Next: parley ") == 1
    assert settings_of(tmp_path) == ANTHROPIC | EDIT
    assert stat.S_IMODE(os.stat(tmp_path / "config.toml").st_mode) == 0o600
    assert '#   "read-only"           nowhere' in text
    assert KEY not in f"{text}{done}"
    assert not (tmp_path / "auth.json").exists()


async def test_options_answer_the_questions(tmp_path: Path) -> None:
    options = ("--provider", "groq", "--model", "openai/x", "--sandbox", "read-only", "--approval", "untrusted")
    done = await run_parley(tmp_path, *INIT, *options, "--yes", "--json")

    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "type": "config_written",
        "file": f"{tmp_path}/config.toml",
        "provider": "groq",
        "model": "openai/x",
        "sandbox_mode": "read-only",
        "approval_policy": "untrusted",
        "missing_variable": "GROQ_API_KEY",
    }
    assert settings_of(tmp_path) == {
        "model": "groq/openai/x",
        "sandbox_mode": "read-only",
        "approval_policy": "untrusted",
    }


async def test_a_server_with_another_address_gets_a_table(tmp_path: Path) -> None:
    options = ("--provider", "mine", "--base-url", "http://127.0.0.1:9/v1", "--env-key", "MINE", "--model", "qwen")
    done = await run_parley(tmp_path, *INIT, *options)
    shown = await run_parley(tmp_path, "config", "get", "model_providers.mine.base_url")

    assert (done.exit_code, shown.stdout) == (0, "http://127.0.0.1:9/v1\n")
    assert "MINE is not set" in done.stderr
    assert done.stdout.count("Next: parley chat") == 1
    assert settings_of(tmp_path) == EDIT | {
        "model": "mine/qwen",
        "model_providers": {"mine": {"base_url": "http://127.0.0.1:9/v1", "env_key": "MINE"}},
    }


async def test_a_test_request_that_fails_is_reported_after_the_file_was_written(
    tmp_path: Path, service: ModelService
) -> None:
    options = (*INIT, "--base-url", service.base_url, "--model", "small", "--online", "--force")
    answered = await run_parley(tmp_path, *options)
    service.status, service.body = 401, '{"error": {"message": "unknown key"}}'
    refused = await run_parley(tmp_path, *options, "--json")

    assert (answered.exit_code, answered.stderr) == (0, "")
    assert (refused.exit_code, settings_of(tmp_path)["model"]) == (1, "server/small")
    assert json.loads(refused.stdout)["fault"] == "server refused the key (status 401): unknown key"


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("--provider", "antropic"), 2, "unknown provider 'antropic' (choose from openai, anthropic, "),
        (("--provider", "groq"), 2, "the provider 'groq' requires the option --model"),
        (("--provider", "groq", "--env-key", "X", "--model", "x"), 2, "--env-key requires --base-url"),
        (("--base-url", "http://x", "--env-key", "sk-1", "--model", "x"), 2, "expected the name of an environment"),
        (("--base-url", "localhost", "--model", "x"), 2, "model_providers.server.base_url"),
        (("--provider", "openai", "--base-url", "http://x"), 2, "the URL of 'openai' cannot be changed"),
        (("--sandbox", "none"), 2, "invalid choice: 'none'"),
    ],
)
async def test_invalid_answers_write_nothing(
    tmp_path: Path, options: tuple[str, ...], code: int, reason: str
) -> None:
    done = await run_parley(tmp_path, *INIT, *options)

    assert (done.exit_code, done.stdout) == (code, "")
    assert reason in done.stderr
    assert os.listdir(tmp_path) == []


# --- an existing file ----------------------------------------------------------------------


@pytest.mark.promises("config.init")
async def test_an_existing_file_changes_only_with_force_and_keeps_its_comments(tmp_path: Path) -> None:
    top = '# mine\nmodel = "o3"  # old\nmodel_provider = "groq"\nsandbox_mode = "read-only"\n'
    before = f"{top}[limits]\n# half\nturn_calls = 9\n"
    (tmp_path / "config.toml").write_text(before)
    refused = await run_parley(tmp_path, *INIT, "--provider", "anthropic")
    unchanged = (tmp_path / "config.toml").read_text()
    done = await run_parley(tmp_path, *INIT, "--provider", "anthropic", "--force")

    assert (refused.exit_code, unchanged) == (1, before)
    assert "already exists; --force replaces the provider" in refused.stderr
    assert (done.exit_code, settings_of(tmp_path)) == (
        0,
        ANTHROPIC | {"sandbox_mode": "read-only", "approval_policy": "on-request", "limits": {"turn_calls": 9}},
    )
    text = (tmp_path / "config.toml").read_text()
    assert all(comment in text for comment in ("# mine\n", "  # old\n", "# half\n"))


async def test_a_profile_that_takes_precedence_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('profile = "fast"\n[profiles.fast]\nmodel = "o3"\n')
    done = await run_parley(tmp_path, *INIT, "--provider", "anthropic", "--force")

    assert done.exit_code == 0
    assert "`model` in config.toml has no effect at present: profile fast" in done.stderr


# --- on a terminal -------------------------------------------------------------------------


@pytest.mark.promises("config.init")
def test_a_newcomer_answers_three_questions(tmp_path: Path) -> None:
    with terminal(tmp_path, MISTRAL_API_KEY=KEY) as program:
        providers = program.answer("Provider [1]: ", "")
        program.answer("Model, or ? for a list of the models: ", "")
        program.answer("type the name of a model, or ?\nModel, or ? for a list of the models: ", "large-latest")
        permissions = program.answer("Permissions [2]: ", "5")
        program.answer("'5' is neither a number from 1 to 4 nor a name\nPermissions [2]: ", "read")
        program.answer("Send a tiny test request to the provider now? (y/n) [y]: ", "no")
        code = program.finish()

    assert code == 0
    assert "Which provider runs the model?\n   1. mistral     the key is in MISTRAL_API_KEY\n" in providers
    assert "openai      OPENAI_API_KEY is not set\n" in providers
    assert "What may the agent do?\n   1. read           read files; ask before every change\n" in permissions
    assert settings_of(tmp_path) == {
        "model": "mistral/large-latest",
        "sandbox_mode": "read-only",
        "approval_policy": "on-request",
    }
    assert "may\n                     be lost, such as a container\n" in permissions, "wrapped between words"
    assert KEY not in program.output


@pytest.mark.promises("config.init")
def test_a_key_is_stored_only_if_the_user_enters_it_and_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text('{"OTHER": 1}')
    (tmp_path / "auth.json").chmod(0o644)
    options = (
        "--provider",
        "anthropic",
        "--model",
        "claude-opus-4-5",
        "--sandbox",
        "read-only",
        "--approval",
        "never",
    )
    with terminal(tmp_path, *options) as program:
        program.answer("Key for Anthropic (not shown): ", "two words")
        program.answer("Key for Anthropic (not shown): ", KEY)
        program.answer("Send a tiny test request to the provider now? (y/n) [y]: ", "n")
        code = program.finish()

    assert code == 0
    assert json.loads((tmp_path / "auth.json").read_text()) == {"OTHER": 1, "ANTHROPIC_API_KEY": KEY}
    assert stat.S_IMODE(os.stat(tmp_path / "auth.json").st_mode) == 0o600
    assert KEY not in program.output + (tmp_path / "config.toml").read_text()
    assert "ANTHROPIC_API_KEY is not set; set it before" not in program.output


def test_without_a_key_the_last_lines_say_what_is_missing(tmp_path: Path) -> None:
    with terminal(tmp_path, "--provider", "openai") as program:
        program.answer("Model, or ? for a list of the models [gpt-5]: ", "")
        program.answer("Permissions [2]: ", "")
        program.answer("Key for OpenAI (not shown): ", "")
        code = program.finish()

    assert (code, settings_of(tmp_path)) == (0, {"model": "gpt-5"} | EDIT)
    assert "OPENAI_API_KEY is not set; set it before you start" in program.output
    assert not (tmp_path / "auth.json").exists()


@pytest.mark.promises("config.init")
def test_a_model_server_that_answers_on_this_computer_is_suggested_with_its_models(
    tmp_path: Path, service: ModelService
) -> None:
    (tmp_path / "config.toml").write_text(
        addresses("http://127.0.0.1:1/v1").replace("http://127.0.0.1:1/v1", service.base_url, 1)
    )
    with terminal(tmp_path, "--force", "--sandbox", "danger-full-access") as program:
        providers = program.answer("Provider [", "1")
        models = program.answer("Model, or ? for a list of the models [small]: ", "?")
        program.answer("Model, or ? for a list of the models [small]: ", "large")
        program.answer("Permissions [1]: ", "everything")
        program.answer("Send a tiny test request to the provider now? (y/n) [y]: ", "")
        program.read_until("the provider answered")
        code = program.finish()

    assert code == 0
    assert f"1. ollama      answers at {service.base_url}, with 2 models\n" in providers
    assert "vllm        does not answer at http://127.0.0.1:1/v1\n" in providers
    assert "      small\n      large\n" in models
    assert settings_of(tmp_path)["model"] == "ollama/large"


def test_providers_without_a_key_and_with_a_script_are_offered_and_not_asked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'model_provider = "demo"\n[model_providers.gateway]\nbase_url = "https://gateway.invalid/v1"\n'
        '[model_providers.demo]\nwire_api = "scripted"\n' + addresses("http://127.0.0.1:1/v1")
    )
    (tmp_path / "auth.json").write_text('{"GROQ_API_KEY": "x"}')
    with terminal(tmp_path, "--force", "--model", "m", "--sandbox", "read-only", GROQ_API_KEY=KEY) as program:
        providers = program.answer("Provider [2]: ", "demo")
        program.answer("Permissions [1]: ", "")
        program.answer("Send a tiny test request to the provider now? (y/n) [y]: ", "")
        program.read_until("the provider answered")
        code = program.finish()

    assert code == 0
    assert "1. gateway     needs no key\n   2. demo        needs no key\n" in providers
    assert "3. groq        the key is in auth.json\n" in providers
    assert settings_of(tmp_path)["model"] == "demo/m"


def test_another_server_is_asked_for_its_models(tmp_path: Path, service: ModelService) -> None:
    with terminal(tmp_path, "--sandbox", "read-only", "--approval", "untrusted", OWN_KEY=KEY) as program:
        program.answer("Provider [1]: ", "other")
        program.answer("Base URL, such as http://localhost:8000/v1: ", "localhost:8000")
        program.answer(
            "'localhost:8000' is not a URL that begins with http:// or https://\n"
            "Base URL, such as http://localhost:8000/v1: ",
            service.base_url,
        )
        program.answer("Environment variable with the key (empty if the server needs no key): ", "OWN_KEY")
        program.answer("Model, or ? for a list of the models: ", "?")
        program.answer("      small\n      large\nModel, or ? for a list of the models: ", "smal")
        program.read_until("Send a tiny test request to the provider now? (y/n) [y]: ")
        service.status, service.body = 404, "{}"
        program.type("y\n")
        program.read_until("server does not offer the model 'smal'")
        program.read_until("for example small")
        program.read_until("Model, or ? for a list of the models: ")
        service.status, service.body = 200, CHAT_REPLY
        program.type("small\n")
        program.read_until("the provider answered")
        code = program.finish()

    assert code == 0
    assert [(path, headers["authorization"]) for path, headers, _ in service.requests] == [
        (f"/v1/{path}", f"Bearer {KEY}") for path in ("models", "chat/completions", "models", "chat/completions")
    ]
    assert settings_of(tmp_path)["model"] == "server/small"
    assert settings_of(tmp_path)["model_providers"] == {
        "server": {"base_url": service.base_url, "env_key": "OWN_KEY"}
    }
    assert KEY not in program.output


@pytest.mark.parametrize(("typed", "code"), [("\x04", 1), ("\x03", 130)], ids=["end of input", "Ctrl-C"])
def test_a_set_up_that_is_broken_off_writes_nothing(tmp_path: Path, typed: str, code: int) -> None:
    with terminal(tmp_path, "--provider", "openai", "--model", "gpt-5") as program:
        program.read_until("Permissions [2]: ")
        program.type(typed)
        ended = program.finish()

    assert (ended, os.listdir(tmp_path)) == (code, [])
    assert "Traceback" not in program.output


# --- whether the set-up is needed ----------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (None, "", False),
        ("config.toml", "", True),
        ("config.toml", "model = [", True),
        ("auth.json", '{"ANTHROPIC_API_KEY": "x"}', False),
        ("auth.json", '{"OPENAI_API_KEY": "x"}', True),
    ],
)
def test_the_set_up_is_needed_without_a_file_and_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, text: str, expected: bool
) -> None:
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if file is not None:
        (tmp_path / file).write_text(text)

    assert is_configured() is expected
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert is_configured()
