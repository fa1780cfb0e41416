"""Lists the values that the arguments of the chat's commands can have, for completion and for pickers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import UnsetType

from parley.cli.chat.context import ChatContext
from parley.wire.text import visible
from parley.wire.tools import ConversationSummary, SettingsListResult

__all__ = [
    "Choice",
    "conversation_choices",
    "current_settings",
    "model_choices",
    "offered_choices",
    "policy_choices",
    "sandbox_choices",
    "state_of",
]

CONVERSATIONS: Final = 50

_POLICIES: Final = {
    "untrusted": "ask before every command that is not known to only read",
    "on-failure": "ask when a command fails in the sandbox",
    "on-request": "the model decides when to ask",
    "never": "never ask",
}
_MODES: Final = {
    "read-only": "commands can write no files",
    "workspace-write": "commands can write in the working directory",
    "danger-full-access": "commands run without a sandbox",
}


class Choice(NamedTuple):
    """A value that the argument of a command can have, with a description for the user."""

    value: str
    description: str = ""


async def current_settings(context: ChatContext) -> SettingsListResult:
    """Ask the server for the settings of the next message and for the possible values of each setting, and return
    both.

    The returned settings do not include the overrides that the chat will send with the next message, because the
    server does not know the overrides yet.
    """
    conversation = context.conversation
    return await context.client.settings(conversation=None if conversation is None else conversation.id)


async def model_choices(context: ChatContext) -> Sequence[Choice]:
    """Return the current model, and the models that the settings and their profiles name.

    The choices also contain, for each provider except the current one, the prefix that selects the provider, such
    as `anthropic/`.
    """
    settings = await current_settings(context)
    models = dict.fromkeys([settings.model, *settings.models])
    profiles = [one.model for one in settings.profiles if not isinstance(one.model, UnsetType)]
    named = dict.fromkeys([*models, *profiles])
    providers = [one for one in settings.model_providers if one != settings.model_provider]
    return [
        *(Choice(name, settings.model_provider if name in models else "of a profile") for name in named),
        *(Choice(f"{name}/", f"a model of {name}") for name in providers),
    ]


async def offered_choices(context: ChatContext, provider: str) -> Sequence[Choice]:
    """Return the models that a provider lists; empty if the provider does not list its models.

    If `provider` is not the current provider, each returned value begins with the name of the provider, as in
    `anthropic/claude-opus-4-5`.
    """
    settings = await current_settings(context)
    prefix = "" if provider == settings.model_provider else f"{provider}/"
    return [Choice(f"{prefix}{one}", f"offered by {provider}") for one in await context.offered_models(provider)]


async def policy_choices(context: ChatContext) -> Sequence[Choice]:
    """Return the approval policies that the server allows."""
    settings = await current_settings(context)
    return [Choice(one, _POLICIES.get(one, "")) for one in settings.approval_policies]


async def sandbox_choices(context: ChatContext) -> Sequence[Choice]:
    """Return the sandbox modes that the server allows."""
    settings = await current_settings(context)
    return [Choice(one, _MODES.get(one, "")) for one in settings.sandbox_modes]


async def conversation_choices(context: ChatContext) -> Sequence[Choice]:
    """Return the ids of at most `CONVERSATIONS` conversations, the most recently active first."""
    found = await context.client.list(limit=CONVERSATIONS)
    return [Choice(one.conversation_id, f"{state_of(one)}  {visible(one.title)}") for one in found.conversations]


def state_of(summary: ConversationSummary) -> str:
    """Return the state that a list shows for a conversation; an empty string if the state is unknown.

    An idle conversation whose last turn failed has the state `failed`.
    """
    if summary.failed is True:
        return "failed"
    return "" if isinstance(summary.state, UnsetType) else summary.state
