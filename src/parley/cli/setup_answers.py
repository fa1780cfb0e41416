"""Determines the answers to the questions of the set-up, from the command line and from the current settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from parley.cli.runner import CommandFailed, UsageError
from parley.cli.setup_providers import UNLISTED, candidates, with_provider
from parley.config.load import Loader
from parley.config.providers import READY_PROVIDERS, split_model
from parley.config.types import Settings

__all__ = [
    "SUGGESTED_MODELS",
    "SUGGESTED_STYLE",
    "Answers",
    "GivenAnswers",
    "chosen_provider",
    "resolved",
    "suggested_answers",
    "suggested_style",
    "why_no_variable",
    "with_split_model",
]

SUGGESTED_MODELS: Final = {"openai": "gpt-5", "anthropic": "claude-opus-4-5", "scripted": "scripted"}
"""The suggested models, keyed by provider. For any other provider, no model is suggested, because its model names
change often.
"""

SUGGESTED_STYLE: Final = ("workspace-write", "on-request")


class GivenAnswers(NamedTuple):
    """The answers that the command line gives to the questions of the set-up. An answer is None if the command line
    does not give it.
    """

    provider: str | None = None
    base_url: str | None = None
    env_key: str | None = None
    model: str | None = None
    sandbox: str | None = None
    approval: str | None = None


class Answers(NamedTuple):
    """The answers to all questions of the set-up."""

    provider: str
    table: Mapping[str, Any]
    """The settings in the table `[model_providers.NAME]` of the provider; empty if the provider needs none."""
    model: str
    sandbox: str
    approval: str


def suggested_answers(loader: Loader, given: GivenAnswers, current: Settings | None) -> Answers:
    given = with_split_model(loader, given)
    if given.provider is None and current is not None:
        given = given._replace(provider=current.provider.id, model=given.model or current.model_name)
    models: Sequence[str] = ()
    if given.provider is None:
        usable = next((one for one in candidates(loader) if one.is_usable), None)
        if usable is None:
            raise CommandFailed(
                "no provider has a key, and no model server answers on this computer; set the key of a provider, "
                "such as OPENAI_API_KEY or ANTHROPIC_API_KEY, or name the provider with --provider"
            )
        given = given._replace(provider=usable.name)
        models = usable.models
    provider, table = chosen_provider(loader, given)
    model = given.model or (models[0] if models else SUGGESTED_MODELS.get(provider))
    if model is None:
        raise UsageError(f"the provider {provider!r} requires the option --model", prog="parley config init")
    sandbox, approval = suggested_style(current)
    return Answers(provider, table, model, given.sandbox or sandbox, given.approval or approval)


def suggested_style(current: Settings | None) -> tuple[str, str]:
    return SUGGESTED_STYLE if current is None else (current.sandbox_mode, current.approval_policy)


def with_split_model(loader: Loader, given: GivenAnswers) -> GivenAnswers:
    """Return the answers. If they contain no provider, add the provider that the other options imply.

    `--base-url` implies the provider `server`. A model name such as `anthropic/claude-opus-4-5` implies the
    provider `anthropic`, and the model in the returned answers is then `claude-opus-4-5`.
    """
    if given.provider is not None:
        return given
    if given.base_url is not None:
        return given._replace(provider="server")
    if given.model and (parts := split_model(given.model, loader.providers())):
        return given._replace(provider=parts[0], model=parts[1])
    return given


def chosen_provider(loader: Loader, given: GivenAnswers) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the provider, and the settings for its table `[model_providers.NAME]`.

    Raises:
        UsageError: the provider is unknown, or the options contradict each other.
    """
    name = given.provider or ""
    own = loader.providers()
    if given.base_url is None:
        if name not in ("openai", *READY_PROVIDERS, *UNLISTED, *own):
            known = ", ".join(("openai", *READY_PROVIDERS, *own))
            raise UsageError(
                f"unknown provider {name!r} (choose from {known}, or give its URL with --base-url)",
                prog="parley config init",
            )
        if given.env_key is not None:
            raise UsageError("--env-key requires --base-url", prog="parley config init")
        return name, {}
    if name in ("openai", *UNLISTED):
        raise UsageError(f"the URL of {name!r} cannot be changed; use another name", prog="parley config init")
    if given.env_key and (reason := why_no_variable(given.env_key)) is not None:
        raise UsageError(f"invalid --env-key: {reason}", prog="parley config init")
    return name, {"base_url": given.base_url} | ({"env_key": given.env_key} if given.env_key else {})


def resolved(loader: Loader, answers: Answers) -> Settings:
    return with_provider(loader, answers.provider, answers.table, answers.model)


def why_no_variable(name: str) -> str | None:
    """Return the reason why `name` is not a valid name of an environment variable; None if it is valid.

    The reason does not contain `name`, because a user may have given the key instead of the name of its variable.
    """
    if name.isascii() and name.isidentifier():
        return None
    return "expected the name of an environment variable, such as OPENAI_API_KEY, not a key"
