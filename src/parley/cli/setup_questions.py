"""Asks the questions of the set-up on a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from parley.cli.printing import print_text
from parley.cli.questions import Choice, ask, ask_choice, ask_secret, ask_yes_or_no
from parley.cli.setup_answers import (
    SUGGESTED_MODELS,
    SUGGESTED_STYLE,
    Answers,
    GivenAnswers,
    chosen_provider,
    resolved,
    suggested_style,
    why_no_variable,
    with_split_model,
)
from parley.cli.setup_providers import Candidate, candidates, has_key, with_provider
from parley.config.load import Loader
from parley.config.provider_keys import key_variable, may_use_stored_key
from parley.config.types import Settings
from parley.errors import ModelError

if TYPE_CHECKING:
    from parley.app.provider_check import ProviderFault

__all__ = ["ask_questions", "offer_test_request", "offer_to_store_key", "send_test_request"]

OTHER: Final = Choice("other", "another server that speaks the Chat Completions API")

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
"""The choices for the permissions of the agent, keyed by sandbox mode and approval policy."""

MAX_LISTED: Final = 40
"""The maximum number of models that are listed for a provider."""


def ask_questions(loader: Loader, given: GivenAnswers, current: Settings | None) -> Answers:
    given = with_split_model(loader, given)
    known: dict[str, Candidate] = {}
    if given.provider is None:
        found = candidates(loader)
        known = {one.name: one for one in found}
        choices = [*(Choice(one.name, one.state) for one in found), OTHER]
        names = [one.name for one in found]
        default = names.index(current.provider.id) if current is not None and current.provider.id in names else 0
        chosen = ask_choice("Which provider runs the model?", "Provider", choices, default)
        given = _ask_for_server(given) if chosen is OTHER else given._replace(provider=chosen.name)
    provider, table = chosen_provider(loader, given)
    print_text("")
    models = known[provider].models if provider in known else ()
    model = given.model or _ask_for_model(loader, provider, table, models)
    sandbox, approval = given.sandbox, given.approval
    if sandbox is None or approval is None:
        print_text("")
        sandbox, approval = _ask_for_style(sandbox, approval, suggested_style(current))
    return Answers(provider, table, model, sandbox, approval)


def _ask_for_server(given: GivenAnswers) -> GivenAnswers:
    from parley.config.checks import is_address

    url = ask(
        "Base URL, such as http://localhost:8000/v1",
        given.base_url or "",
        check=lambda text: (
            None if is_address(text) else f"{text!r} is not a URL that begins with http:// or https://"
        ),
    )
    variable = ask(
        "Environment variable with the key (empty if the server needs no key)",
        given.env_key or "",
        check=lambda text: why_no_variable(text) if text else None,
    )
    return given._replace(provider="server", base_url=url, env_key=variable or None)


def _ask_for_model(loader: Loader, provider: str, table: Mapping[str, Any], models: Sequence[str]) -> str:
    if models:
        _list_models(models)
    settings = with_provider(loader, provider, table, "unknown")
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
    for name in models[:MAX_LISTED]:
        print_text(f"      {name}")
    if len(models) > MAX_LISTED:
        print_text(f"      and {len(models) - MAX_LISTED} more")
    if not models:
        print_text("the provider gave no list of models")


def _ask_for_style(sandbox: str | None, approval: str | None, suggested: tuple[str, str]) -> tuple[str, str]:
    """Ask for the permissions of the agent, and return the sandbox mode and the approval policy.

    Only the choices with the given sandbox mode and approval policy are offered; None means any. `suggested` is the
    default choice.
    """
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


def offer_to_store_key(settings: Settings) -> None:
    """If the API key of the provider is missing, and Parley may use a stored key for the provider, ask for the key
    and store it in auth.json. An empty input stores nothing.
    """
    from parley.app.config_file import store_key

    provider = settings.provider
    variable = key_variable(provider)
    if variable is None or has_key(settings) or not may_use_stored_key(provider):
        return
    file = os.path.join(settings.home, "auth.json")
    print_text(f"\n{variable} is not set. Paste the key to store it in {file}, which only you can read.")
    print_text("Or press Enter, and set the variable later.")
    while key := ask_secret(f"Key for {provider.name} (not shown)"):
        if key.isascii() and key.isprintable() and " " not in key:
            store_key(settings.home, variable, key)
            return
        print_text("a key has no spaces and only ASCII characters")


def offer_test_request(loader: Loader, answers: Answers, *, online: bool) -> Answers:
    """If the user agrees or `online` is True, send a test request to the provider. If the key of the provider is
    missing, send no request.

    If the provider does not offer the model, ask for another model and repeat the request. Return the answers with
    the model that was tested last.
    """
    settings = resolved(loader, answers)
    if key_variable(settings.provider) is not None and not has_key(settings):
        return answers
    print_text("")
    if not online and not ask_yes_or_no("Send a tiny test request to the provider now?", default=True):
        return answers
    while (fault := asyncio.run(send_test_request(settings))) is not None:
        print_text(f"{fault.reason}\n{fault.to_do}")
        if not fault.is_about_model:
            return answers
        answers = answers._replace(model=_ask_for_model(loader, answers.provider, answers.table, ()))
        settings = resolved(loader, answers)
    print_text("the provider answered")
    return answers


async def send_test_request(settings: Settings) -> ProviderFault | None:
    """Send a test request to the provider. Return the reason why it failed; None if it succeeded."""
    from parley.app.provider_check import ProviderFault, check_provider

    found = await check_provider(settings)
    return found if isinstance(found, ProviderFault) else None
