"""Creates the text of a new config.toml, with comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.config.toml_lines import written_key, written_value

__all__ = ["new_config"]


def new_config(
    *,
    model: str,
    sandbox_mode: str,
    approval_policy: str,
    providers: Mapping[str, Mapping[str, Any]],
    model_provider: str | None = None,
) -> str:
    """Return the text of a config.toml with the given settings. `providers` contains the settings tables of
    providers, keyed by name. If `model_provider` is None, `model` begins with the name of a provider, or names a
    model of OpenAI.
    """
    provider = "" if model_provider is None else f"model_provider = {written_value(model_provider)}\n"
    text = f"""\
# The settings of Parley. `parley config` prints all settings with their values,
# `parley config set KEY VALUE` changes one of them, and `parley doctor` checks them.

# The model: the name of the provider, a slash, and the name of the model. Without
# a provider, this is the name of an OpenAI model.
model = {written_value(model)}
{provider}
# Where the commands of the agent may write without an approval:
#   "read-only"           nowhere
#   "workspace-write"     in the working directory and in directories for temporary files
#   "danger-full-access"  everywhere, without a sandbox and with network access
sandbox_mode = {written_value(sandbox_mode)}

# When the agent asks for an approval:
#   "untrusted"   before every action that is not known to be harmless
#   "on-failure"  after a command has failed in the sandbox
#   "on-request"  when the model asks to leave the sandbox
#   "never"       never; an action that is not allowed fails
approval_policy = {written_value(approval_policy)}

# At these limits, the agent asks whether it may continue. 0 means no limit.
# [limits]
# turn_tokens = 1_000_000
# turn_seconds = 3600
"""
    for name, table in providers.items():
        lines = "".join(f"{written_key((key,))} = {written_value(value)}\n" for key, value in table.items())
        text += f"\n[{written_key(('model_providers', name))}]\n{lines}"
    return text
