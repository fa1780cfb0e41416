"""The commands that change the settings of the next message: `/model`, `/approvals`, `/sandbox`, `/reasoning`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from parley.cli.chat.choices import (
    Choice,
    current_settings,
    model_choices,
    offered_choices,
    policy_choices,
    sandbox_choices,
)
from parley.cli.chat.context import ChatContext
from parley.cli.chat.pickers import pick_choice
from parley.cli.runner import CommandFailed
from parley.client import Overrides
from parley.config.load import check_overrides
from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from parley.wire.text import listed, quoted
from parley.wire.tools import ApprovalPolicy, SandboxMode

__all__ = ["approvals", "model", "reasoning", "sandbox"]


async def model(context: ChatContext, name: str) -> None:
    """Use the model `name` from the next message on. If `name` is empty, let the user choose a model."""
    if not name:
        name = await _picked_model(context)
    if name.endswith("/"):
        name = await _picked_model_of(context, name.removesuffix("/"))
    if not name:
        return
    if len(name.split()) != 1:
        raise CommandFailed(f"invalid model {name!r}: expected a name such as gpt-5 or anthropic/claude-opus-4-5")
    _check(SettingsOverrides(model=name))
    _override(context, {"model": name})
    context.note(f"model: {name}, from the next message on")


async def _picked_model(context: ChatContext) -> str:
    """Let the user choose a model or a provider. Return the name of the model, the name of the provider followed by
    a slash, or an empty string if the user chose nothing.
    """
    settings = await current_settings(context)
    current = context.overrides.get("model") or settings.model
    known = {settings.model, *settings.models}
    offered = [one for one in await offered_choices(context, settings.model_provider) if one.value not in known]
    choices = [*await model_choices(context), *offered]
    choices.sort(key=lambda one: one.value.endswith("/"))  # the providers are last
    return await pick_choice(context, "Model", choices, current=current) or ""


async def _picked_model_of(context: ChatContext, provider: str) -> str:
    """Let the user choose a model of a provider. Return the name of the model, or an empty string if the user chose
    nothing.

    If the provider does not list its models, put the beginning of a `/model` command into the input, for the user
    to complete.
    """
    settings = await current_settings(context)
    if provider not in settings.model_providers:
        raise CommandFailed(
            f"the provider {quoted(provider)} cannot be used (choose from {listed(settings.model_providers)})"
        )
    offered = await offered_choices(context, provider)
    if not offered:
        context.note(f"the models of {provider} cannot be listed; add the name of the model")
        context.set_input(f"/model {provider}/")
        return ""
    return await pick_choice(context, f"Models of {provider}", offered) or ""


async def approvals(context: ChatContext, policy: str) -> None:
    """Use the approval policy `policy` from the next message on. If `policy` is empty, let the user choose one."""
    settings, choices = await current_settings(context), await policy_choices(context)
    current = context.overrides.get("approval_policy", settings.approval_policy)
    if chosen := policy or await pick_choice(context, "Approvals", choices, current=current):
        _check(SettingsOverrides(approval_policy=chosen))
        _refuse_others("approval policy", chosen, settings.approval_policies)
        _override(context, {"approval_policy": cast(ApprovalPolicy, chosen)})
        context.note(f"approvals: {_described(chosen, choices)}, from the next message on")


async def sandbox(context: ChatContext, mode: str) -> None:
    """Use the sandbox mode `mode` from the next message on. If `mode` is empty, let the user choose one."""
    settings, choices = await current_settings(context), await sandbox_choices(context)
    current = context.overrides.get("sandbox", settings.sandbox)
    if chosen := mode or await pick_choice(context, "Sandbox", choices, current=current):
        _check(SettingsOverrides(sandbox=chosen))
        _refuse_others("sandbox mode", chosen, settings.sandbox_modes)
        _override(context, {"sandbox": cast(SandboxMode, chosen)})
        context.note(f"sandbox: {_described(chosen, choices)}, from the next message on")


async def reasoning(context: ChatContext, argument: str) -> None:
    """Switch between showing the whole reasoning of the model and showing only its first line."""
    context.shows_reasoning = not context.shows_reasoning
    context.note("reasoning: shown" if context.shows_reasoning else "reasoning: folded")


def _override(context: ChatContext, changed: Overrides) -> None:
    """Add the settings in `changed` to the overrides of the next message. A message that is being sent keeps its
    own overrides.
    """
    context.overrides = {**context.overrides, **changed}


def _check(overrides: SettingsOverrides) -> None:
    try:
        check_overrides(overrides)
    except BadSetting as error:
        raise CommandFailed(str(error)) from None


def _refuse_others(kind: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        choices = f"choose from {listed(allowed)}" if allowed else "your role allows no change"
        raise CommandFailed(f"the server does not allow the {kind} {value} ({choices})")


def _described(value: str, choices: Sequence[Choice]) -> str:
    description = next((one.description for one in choices if one.value == value), "")
    return f"{value} ({description})" if description else value
