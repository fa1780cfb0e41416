"""`parley config init`: asks for a provider, a model and the permissions of the agent, and writes config.toml.

`parley` without a command runs the same set-up on a terminal if nothing is configured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final, get_args

from parley.cli.printing import print_json, print_note, print_text
from parley.cli.runner import FAILED, CommandFailed
from parley.cli.settings import report_override, settings_loader
from parley.cli.setup_answers import Answers, GivenAnswers, resolved, suggested_answers
from parley.cli.setup_providers import UNLISTED, has_key
from parley.cli.setup_questions import ask_questions, offer_test_request, offer_to_store_key, send_test_request
from parley.config.load import Loader, why_unusable
from parley.config.provider_keys import key_variable
from parley.config.providers import split_model
from parley.config.toml_lines import written_key, written_value
from parley.config.types import ApprovalPolicy, SandboxMode, Settings, SettingsOverrides
from parley.errors import ConfigError

if TYPE_CHECKING:
    from parley.app.provider_check import ProviderFault

__all__ = ["DESCRIPTION", "configure", "is_configured", "run", "run_setup"]

DESCRIPTION: Final = """\
Write config.toml: the provider and the model, and what the agent may do.

On a terminal, the command asks three questions. The suggested answers depend on the
keys in the environment and on the model servers that run on this computer. Options
answer the questions in advance. Without a terminal, or with --yes, the command asks
nothing and uses the suggested answers.

An existing file is changed only with --force. Its comments and its other settings
stay. No key is written to config.toml. If a key is missing, the command offers to
store it in auth.json in the home, which is readable only for you. At the end, it
offers to send a tiny test request; without questions, --online sends one.

examples:
  parley config init
  parley config init --provider anthropic --model claude-opus-4-5 --yes
  parley config init --provider local --base-url http://localhost:8000/v1 --model qwen

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

_OPTIONS: Final = ("provider", "base_url", "env_key", "model", "sandbox", "approval")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", metavar="NAME", help="the provider, such as anthropic")
    parser.add_argument("--base-url", metavar="URL", help="the base URL of a provider that Parley does not know")
    parser.add_argument(
        "--env-key", metavar="NAME", help="the environment variable that contains the key for --base-url"
    )
    parser.add_argument("--model", metavar="NAME", help="the name of the model at the provider")
    parser.add_argument("--sandbox", choices=get_args(SandboxMode), help="where commands may write")
    parser.add_argument("--approval", choices=get_args(ApprovalPolicy), help="when the agent asks for an approval")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and use the suggested answers")
    parser.add_argument("--online", action="store_true", help="send a tiny test request to the provider")
    parser.add_argument("--force", action="store_true", help="change config.toml if it exists")


def run(args: argparse.Namespace) -> int:
    given = GivenAnswers(**{name: getattr(args, name, None) for name in _OPTIONS})
    as_json = getattr(args, "json", False)
    asks = not getattr(args, "yes", False) and not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    online, force = getattr(args, "online", False), getattr(args, "force", False)
    return _set_up(given, asks=asks, online=online, force=force, as_json=as_json)


def run_setup() -> int:
    """Ask the questions of the set-up on the terminal, write config.toml, and return the exit code. The caller then
    opens the chat.

    Raises:
        CommandFailed: config.toml already exists, or the user ended the input. Nothing was written.
        ConfigError: the home or its settings cannot be used.
    """
    print_text(
        "Parley needs a provider that runs a model. `parley config init --force` changes the answers later.\n"
    )
    return _set_up(GivenAnswers(), asks=True, online=False, force=False, as_json=False, opens_chat=True)


def is_configured() -> bool:
    """Return whether a turn can begin without the set-up: config.toml exists, or the default provider has a key.

    If the settings cannot be used, also return True, because the set-up cannot correct them.
    """
    from parley.app.config_file import config_path

    try:
        loader = settings_loader()
        if os.path.lexists(config_path(loader.home)):
            return True
        settings = loader.choose(SettingsOverrides()).settings
    except ConfigError:
        return True
    return key_variable(settings.provider) is None or has_key(settings)


def _set_up(
    given: GivenAnswers, *, asks: bool, online: bool, force: bool, as_json: bool, opens_chat: bool = False
) -> int:
    from parley.app.config_file import config_path

    loader = settings_loader()
    path = config_path(loader.home)
    exists = os.path.lexists(path)
    if exists and not force:
        raise CommandFailed(
            f"{path} already exists; --force replaces the provider, the model and the permissions, and keeps all "
            "other settings"
        )
    current = _current(loader) if exists else None
    try:
        answers = ask_questions(loader, given, current) if asks else suggested_answers(loader, given, current)
        settings = resolved(loader, answers)
        if asks:
            offer_to_store_key(settings)
            answers = offer_test_request(loader, answers, online=online)
    except EOFError:
        print_text("")
        raise CommandFailed("the input ended, so config.toml was not written") from None
    file = _write(loader, answers, exists=exists)
    for key in ("model", "sandbox_mode", "approval_policy"):
        report_override((key,))
    fault = asyncio.run(send_test_request(settings)) if online and not asks else None
    _report(file, answers, settings, fault, as_json=as_json)
    if not as_json and not opens_chat:
        print_text("\nNext: parley chat")
    return 0 if fault is None else FAILED


def _current(loader: Loader) -> Settings | None:
    """Return the current settings, from which the suggested answers are taken; None if the settings cannot be
    used.
    """
    try:
        return loader.choose(SettingsOverrides()).settings
    except ConfigError:
        return None


# --- the file ----------------------------------------------------------------------------


def _write(loader: Loader, answers: Answers, *, exists: bool) -> str:
    """Write the answers to config.toml, and return the path of the written file. `exists` is True if config.toml
    exists.
    """
    from parley.app.config_file import ConfigExists, change_config, config_path, create_config

    if exists:
        return change_config(loader.home, lambda text: _checked(_changed(text, answers)))
    try:
        return create_config(loader.home, _checked(_new(answers)))
    except ConfigExists:
        raise CommandFailed(f"{config_path(loader.home)} was created by another command") from None


def _checked(text: str) -> str:
    if (error := why_unusable(settings_loader(text=text))) is not None:
        raise error
    return text


def _model_settings(answers: Answers) -> dict[str, str]:
    """Return the settings that choose the model and its provider: `model` and, if necessary, `model_provider`."""
    if answers.provider in UNLISTED:
        return {"model": answers.model, "model_provider": answers.provider}
    if answers.provider == "openai" and split_model(answers.model, {}) is None:
        return {"model": answers.model}
    return {"model": f"{answers.provider}/{answers.model}"}


def _new(answers: Answers) -> str:
    from parley.config.new_file import new_config

    providers = {answers.provider: answers.table} if answers.table else {}
    return new_config(
        **_model_settings(answers),
        sandbox_mode=answers.sandbox,
        approval_policy=answers.approval,
        providers=providers,
    )


def _changed(text: str, answers: Answers) -> str:
    """Return `text`, the content of the existing config.toml, with the settings changed to the answers."""
    from parley.config.editing import with_setting, without_setting

    if not text.strip():
        return _new(answers)
    named = _model_settings(answers)
    if "model_provider" not in named and (without := without_setting(text, "model_provider")) is not None:
        text = without[0]
    values = {
        **named,
        "sandbox_mode": answers.sandbox,
        "approval_policy": answers.approval,
        **{
            written_key(("model_providers", answers.provider, name)): value for name, value in answers.table.items()
        },
    }
    for key, value in values.items():
        text, _, _ = with_setting(text, key, written_value(value))
    return text


# --- the report --------------------------------------------------------------------------


def _report(file: str, answers: Answers, settings: Settings, fault: ProviderFault | None, *, as_json: bool) -> None:
    variable = key_variable(settings.provider)
    lacks_key = variable is not None and not has_key(settings)
    if as_json:
        print_json(
            {
                "type": "config_written",
                "file": file,
                "provider": answers.provider,
                "model": answers.model,
                "sandbox_mode": answers.sandbox,
                "approval_policy": answers.approval,
                **({"missing_variable": variable} if lacks_key else {}),
                **({"fault": fault.reason, "to_do": fault.to_do} if fault is not None else {}),
            }
        )
        return
    print_text(f"\nwrote {file}")
    print_text(f"  provider         {answers.provider}")
    print_text(f"  model            {answers.model}")
    print_text(f"  sandbox_mode     {answers.sandbox}")
    print_text(f"  approval_policy  {answers.approval}")
    if lacks_key:
        print_note("config", f"{variable} is not set; set it before you start, with `export {variable}=...`")
    elif fault is not None:
        print_note("config", f"{fault.reason}; {fault.to_do}")
