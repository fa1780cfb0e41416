"""`parley config init`: asks for a provider, a model and the permissions of the agent, and writes config.toml.

`parley` without a command runs the same set-up on a terminal if nothing is configured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from parley.cli.printing import print_json, print_note, print_text
from parley.cli.questions import Choice, ask, ask_choice, ask_secret, ask_yes_or_no
from parley.cli.runner import FAILED, CommandFailed, UsageError
from parley.cli.settings import report_override, settings_loader
from parley.config.load import Loader, why_unusable
from parley.config.provider_keys import find_key, key_variable, may_use_stored_key
from parley.config.providers import AZURE_ENDPOINT, READY_PROVIDERS, split_model
from parley.config.toml_lines import written_key, written_value
from parley.config.types import ApprovalPolicy, SandboxMode, Settings, SettingsOverrides
from parley.errors import ConfigError, ModelError

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

SUGGESTED_MODELS: Final = {"openai": "gpt-5", "anthropic": "claude-opus-4-5", "scripted": "scripted"}
"""The suggested models, by provider. For other providers, no model is suggested, because their model names change
often.
"""

OTHER: Final = Choice("other", "another server that speaks the Chat Completions API")
UNLISTED: Final = ("scripted", "oss")
"""Providers that the user can name, but that the list of choices does not contain."""

STYLES: Final = {
    ("read-only", "on-request"): Choice("read", "read files; ask before every change"),
    ("workspace-write", "on-request"): Choice(
        "edit", "read files, change files in the working directory; ask before everything else"
    ),
    ("workspace-write", "never"): Choice(
        "edit-silently", "read files, change files in the working directory; everything else fails"
    ),
    ("danger-full-access", "never"): Choice(
        "everything", "no sandbox and no questions; only for a computer that may be lost, such as a container"
    ),
}
"""The combinations of sandbox mode and approval policy that the third question offers."""
SUGGESTED_STYLE: Final = ("workspace-write", "on-request")

MOST_LISTED: Final = 40
"""The maximum number of models that are listed for a provider."""


_OPTIONS: Final = ("provider", "base_url", "env_key", "model", "sandbox", "approval")


class _Given(NamedTuple):
    """The answers in the command line. None stands for a missing answer."""

    provider: str | None = None
    base_url: str | None = None
    env_key: str | None = None
    model: str | None = None
    sandbox: str | None = None
    approval: str | None = None


class _Candidate(NamedTuple):
    """A provider that the user can choose."""

    name: str
    state: str
    """A description of what the provider still needs, or of the reason why the provider can be used."""
    is_usable: bool
    models: tuple[str, ...] = ()
    """The models of a server on this computer; empty for other providers."""


class _Answers(NamedTuple):
    """The answers to all questions."""

    provider: str
    table: Mapping[str, Any]
    """The settings for the table of the provider; empty if the provider needs no settings."""
    model: str
    sandbox: str
    approval: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", metavar="NAME", help="the provider, such as anthropic")
    parser.add_argument("--base-url", metavar="URL", help="the address of a provider that Parley does not know")
    parser.add_argument("--env-key", metavar="NAME", help="the environment variable with the key of that provider")
    parser.add_argument("--model", metavar="NAME", help="the name of the model at the provider")
    parser.add_argument("--sandbox", choices=get_args(SandboxMode), help="where commands may write")
    parser.add_argument("--approval", choices=get_args(ApprovalPolicy), help="when the agent asks for an approval")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and use the suggested answers")
    parser.add_argument("--online", action="store_true", help="send a tiny test request to the provider")
    parser.add_argument("--force", action="store_true", help="change config.toml if it exists")


def run(args: argparse.Namespace) -> int:
    given = _Given(**{name: getattr(args, name, None) for name in _OPTIONS})
    as_json = getattr(args, "json", False)
    asks = not getattr(args, "yes", False) and not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    online, force = getattr(args, "online", False), getattr(args, "force", False)
    return _set_up(given, asks=asks, online=online, force=force, as_json=as_json)


def run_setup() -> int:
    """Ask the questions on the terminal and write config.toml. Return the exit code.

    Raises:
        CommandFailed: the file exists, or the user ended the input. Nothing was written.
        ConfigError: the home or its settings cannot be used.
    """
    return _set_up(_Given(), asks=True, online=False, force=False, as_json=False)


def is_configured() -> bool:
    """Return whether a turn can begin without the set-up: config.toml exists, or the default provider has a key.

    Return True if the settings cannot be used, because the set-up cannot correct them.
    """
    from parley.app.config_file import config_path

    try:
        loader = settings_loader()
        if os.path.lexists(config_path(loader.home)):
            return True
        settings = loader.choose(SettingsOverrides()).settings
    except ConfigError:
        return True
    return key_variable(settings.provider) is None or _has_key(settings)


def _has_key(settings: Settings) -> bool:
    return find_key(settings.provider, settings.home, settings.environ) is not None


def _set_up(given: _Given, *, asks: bool, online: bool, force: bool, as_json: bool) -> int:
    from parley.app.config_file import config_path

    loader = settings_loader()
    path = config_path(loader.home)
    exists = os.path.lexists(path)
    if exists and not force:
        raise CommandFailed(
            f"{path} already exists; --force changes the settings that the questions are about, and keeps the rest"
        )
    current = _current(loader) if exists else None
    try:
        answers = _ask(loader, given, current) if asks else _without_questions(loader, given, current)
        settings = _resolved(loader, answers)
        if asks:
            _offer_to_store_key(settings)
            answers = _offer_test_request(loader, answers, online=online)
    except EOFError:
        print_text("")
        raise CommandFailed("the input ended, so config.toml was not written") from None
    file = _write(loader, answers, exists=exists)
    for key in ("model", "sandbox_mode", "approval_policy"):
        report_override((key,))
    fault = asyncio.run(_test(settings)) if online and not asks else None
    _report(file, answers, settings, fault, as_json=as_json)
    return 0 if fault is None else FAILED


def _current(loader: Loader) -> Settings | None:
    """Return the present settings, which determine the suggested answers; None if the settings cannot be used."""
    try:
        return loader.choose(SettingsOverrides()).settings
    except ConfigError:
        return None


# --- the questions -----------------------------------------------------------------------


def _ask(loader: Loader, given: _Given, current: Settings | None) -> _Answers:
    given = _with_split_model(loader, given)
    known: dict[str, _Candidate] = {}
    if given.provider is None:
        found = _candidates(loader)
        known = {one.name: one for one in found}
        choices = [*(Choice(one.name, one.state) for one in found), OTHER]
        names = [one.name for one in found]
        default = names.index(current.provider.id) if current is not None and current.provider.id in names else 0
        chosen = ask_choice("Which provider runs the model?", "Provider", choices, default)
        given = _ask_for_server(given) if chosen is OTHER else given._replace(provider=chosen.name)
    provider, table = _provider(loader, given)
    print_text("")
    models = known[provider].models if provider in known else ()
    model = given.model or _ask_for_model(loader, provider, table, models)
    sandbox, approval = given.sandbox, given.approval
    if sandbox is None or approval is None:
        print_text("")
        sandbox, approval = _ask_for_style(sandbox, approval, _suggested_style(current))
    return _Answers(provider, table, model, sandbox, approval)


def _ask_for_server(given: _Given) -> _Given:
    from parley.config.checks import is_address

    url = ask(
        "Address, such as http://localhost:8000/v1",
        given.base_url or "",
        check=lambda text: None if is_address(text) else "expected an http or https address",
    )
    variable = ask("Environment variable with the key (empty if the server needs no key)", given.env_key or "")
    return given._replace(provider="server", base_url=url, env_key=variable or None)


def _ask_for_model(loader: Loader, provider: str, table: Mapping[str, Any], models: Sequence[str]) -> str:
    if models:
        _list_models(models)
    settings = _with_provider(loader, provider, table, "unknown")
    suggested = models[0] if models else SUGGESTED_MODELS.get(provider, "")
    while True:
        answer = ask(
            "Model, or ? for a list of the models",
            suggested,
            check=lambda text: None if text else "type the name of a model, or ?",
        )
        if answer != "?":
            return answer
        _print_models(settings)


def _print_models(settings: Settings) -> None:
    from parley.app.model_lists import models_of

    try:
        models = asyncio.run(models_of(settings))
    except ModelError as error:
        print_text(f"the provider gave no list: {error}")
    else:
        _list_models(models)


def _list_models(models: Sequence[str]) -> None:
    for name in models[:MOST_LISTED]:
        print_text(f"      {name}")
    if len(models) > MOST_LISTED:
        print_text(f"      and {len(models) - MOST_LISTED} more")
    if not models:
        print_text("the provider gave no list of models")


def _suggested_style(current: Settings | None) -> tuple[str, str]:
    return SUGGESTED_STYLE if current is None else (current.sandbox_mode, current.approval_policy)


def _ask_for_style(sandbox: str | None, approval: str | None, suggested: tuple[str, str]) -> tuple[str, str]:
    """Ask for the permissions of the agent. Offer only the answers that agree with the given values."""
    styles = {
        style: choice
        for style, choice in STYLES.items()
        if sandbox in (None, style[0]) and approval in (None, style[1])
    }
    if suggested not in styles:
        suggested = SUGGESTED_STYLE
    if not styles:
        return sandbox or suggested[0], approval or suggested[1]
    default = list(styles).index(suggested) if suggested in styles else 0
    chosen = ask_choice("What may the agent do?", "Permissions", list(styles.values()), default)
    return next(style for style, choice in styles.items() if choice == chosen)


def _offer_to_store_key(settings: Settings) -> None:
    """Ask for a missing API key and store the key, if Parley can store keys on this system."""
    from parley.app.config_file import store_key

    provider = settings.provider
    variable = key_variable(provider)
    if variable is None or _has_key(settings) or not may_use_stored_key(provider):
        return
    file = os.path.join(settings.home, "auth.json")
    print_text(f"\n{variable} is not set. Paste the key to store it in {file}, which only you can read.")
    print_text("Or press Enter, and set the variable later.")
    while key := ask_secret(f"Key for {provider.name} (not shown)"):
        if key.isascii() and key.isprintable() and " " not in key:
            store_key(settings.home, variable, key)
            return
        print_text("a key has no spaces and only ASCII characters")


def _offer_test_request(loader: Loader, answers: _Answers, *, online: bool) -> _Answers:
    """Send a test request if the user agrees. If the provider does not offer the model, ask for another model.
    Return the answers with the last model.
    """
    settings = _resolved(loader, answers)
    if key_variable(settings.provider) is not None and not _has_key(settings):
        return answers
    print_text("")
    if not online and not ask_yes_or_no("Send a tiny test request to the provider now?", default=True):
        return answers
    while (fault := asyncio.run(_test(settings))) is not None:
        print_text(f"{fault.reason}\n{fault.to_do}")
        if not fault.is_about_model:
            return answers
        answers = answers._replace(model=_ask_for_model(loader, answers.provider, answers.table, ()))
        settings = _resolved(loader, answers)
    print_text("the provider answered")
    return answers


async def _test(settings: Settings) -> ProviderFault | None:
    """Send a test request. Return the reason why it failed; None if the provider answered."""
    from parley.app.provider_check import ProviderFault, check_provider

    found = await check_provider(settings)
    return found if isinstance(found, ProviderFault) else None


# --- answers without questions -----------------------------------------------------------


def _without_questions(loader: Loader, given: _Given, current: Settings | None) -> _Answers:
    given = _with_split_model(loader, given)
    if given.provider is None and current is not None:
        given = given._replace(provider=current.provider.id, model=given.model or current.model_name)
    models: Sequence[str] = ()
    if given.provider is None:
        usable = next((one for one in _candidates(loader) if one.is_usable), None)
        if usable is None:
            raise CommandFailed(
                "no provider has a key, and no model server answers on this computer; set the key of a provider, "
                "such as OPENAI_API_KEY or ANTHROPIC_API_KEY, or name the provider with --provider"
            )
        given = given._replace(provider=usable.name)
        models = usable.models
    provider, table = _provider(loader, given)
    model = given.model or (models[0] if models else SUGGESTED_MODELS.get(provider))
    if model is None:
        raise UsageError(f"the option --model is needed for the provider {provider!r}", prog="parley config init")
    sandbox, approval = _suggested_style(current)
    return _Answers(provider, table, model, given.sandbox or sandbox, given.approval or approval)


def _with_split_model(loader: Loader, given: _Given) -> _Given:
    """Return the answers with the provider that the name of the model contains, if no option names a provider."""
    if given.provider is not None:
        return given
    if given.base_url is not None:
        return given._replace(provider="server")
    if given.model and (parts := split_model(given.model, loader.providers())):
        return given._replace(provider=parts[0], model=parts[1])
    return given


def _provider(loader: Loader, given: _Given) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the provider, and the settings that its table needs.

    Raises:
        UsageError: the provider is unknown, or the options contradict each other.
    """
    name = given.provider or ""
    own = loader.providers()
    if given.base_url is None:
        if name not in ("openai", *READY_PROVIDERS, *UNLISTED, *own):
            known = ", ".join(("openai", *READY_PROVIDERS, *own))
            raise UsageError(
                f"unknown provider {name!r} (choose from {known}, or give its address with --base-url)",
                prog="parley config init",
            )
        if given.env_key is not None:
            raise UsageError("--env-key needs --base-url", prog="parley config init")
        return name, {}
    if name in ("openai", *UNLISTED):
        raise UsageError(f"the address of {name!r} cannot be changed; use another name", prog="parley config init")
    return name, {"base_url": given.base_url} | ({"env_key": given.env_key} if given.env_key else {})


# --- the providers -----------------------------------------------------------------------


def _candidates(loader: Loader) -> list[_Candidate]:
    """Return the providers, with the usable ones first."""
    names = dict.fromkeys((*loader.providers(), "openai", *READY_PROVIDERS))
    settings = {name: one for name in names if (one := _usable_settings(loader, name)) is not None}
    local = [one for one in settings.values() if key_variable(one.provider) is None]
    running = asyncio.run(_answering(local)) if local else {}
    found = [_candidate(name, settings.get(name), running.get(name)) for name in names if name not in UNLISTED]
    return sorted(found, key=lambda one: not one.is_usable)


async def _answering(local: Sequence[Settings]) -> dict[str, tuple[str, ...]]:
    from parley.app.model_lists import answering_providers

    return await answering_providers(local)


def _candidate(name: str, settings: Settings | None, models: tuple[str, ...] | None) -> _Candidate:
    if settings is None:  # Azure is the only listed provider without a fixed address
        return _Candidate(name, f"{AZURE_ENDPOINT} is not set", is_usable=False)
    variable = key_variable(settings.provider)
    if variable is None:
        if models is None:
            return _Candidate(name, f"does not answer at {settings.provider.base_url}", is_usable=False)
        count = "1 model" if len(models) == 1 else f"{len(models)} models"
        return _Candidate(
            name, f"answers at {settings.provider.base_url}, with {count}", is_usable=True, models=models
        )
    if _has_key(settings):
        source = variable if settings.environ.get(variable, "").strip() else "auth.json"
        return _Candidate(name, f"the key is in {source}", is_usable=True)
    return _Candidate(name, f"{variable} is not set", is_usable=False)


def _usable_settings(loader: Loader, provider: str) -> Settings | None:
    """Return the settings with a provider; None if the provider has no address."""
    try:
        return _with_provider(loader, provider, {}, "unknown")
    except ConfigError:
        return None


def _with_provider(loader: Loader, provider: str, table: Mapping[str, Any], model: str) -> Settings:
    """Return the settings in which a provider and a model are chosen.

    Raises:
        ConfigError: the provider cannot be used.
    """
    chosen = {"model_provider": provider, "model": model}
    tables = {"model_providers": {provider: dict(table)}} if table else {}
    return loader.choose(SettingsOverrides(config=chosen | tables)).settings


def _resolved(loader: Loader, answers: _Answers) -> Settings:
    return _with_provider(loader, answers.provider, answers.table, answers.model)


# --- the file ----------------------------------------------------------------------------


def _write(loader: Loader, answers: _Answers, *, exists: bool) -> str:
    """Write config.toml, and return the path of the file that was written."""
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


def _model_settings(answers: _Answers) -> dict[str, str]:
    """Return the settings that name the provider and the model."""
    if answers.provider in UNLISTED:
        return {"model": answers.model, "model_provider": answers.provider}
    if answers.provider == "openai" and split_model(answers.model, {}) is None:
        return {"model": answers.model}
    return {"model": f"{answers.provider}/{answers.model}"}


def _new(answers: _Answers) -> str:
    from parley.config.new_file import new_config

    providers = {answers.provider: answers.table} if answers.table else {}
    return new_config(
        **_model_settings(answers),
        sandbox_mode=answers.sandbox,
        approval_policy=answers.approval,
        providers=providers,
    )


def _changed(text: str, answers: _Answers) -> str:
    """Return the text of an existing config.toml, changed to contain the answers."""
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


def _report(
    file: str, answers: _Answers, settings: Settings, fault: ProviderFault | None, *, as_json: bool
) -> None:
    variable = key_variable(settings.provider)
    lacks_key = variable is not None and not _has_key(settings)
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
    print_text("\nNext: parley chat")
