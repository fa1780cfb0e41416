"""The status line below the input.

The line shows the state of the conversation, its settings and the number of tokens used.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import UnsetType

from parley.cli.chat.live import cut
from parley.cli.printing import for_terminal
from parley.client import Overrides
from parley.wire.tools import SettingsListResult, Tokens

__all__ = ["status_line"]


def status_line(
    *,
    state: str,
    settings: SettingsListResult | None,
    overrides: Overrides,
    attachments: int,
    cwd: str | None,
    usage: Tokens,
    width: int,
    width_of: Callable[[str], int],
) -> str:
    """Return the status line, at most `width` columns wide. `settings` are the current settings. `overrides` are
    the settings that the next message changes; they are marked with `*`. `attachments` is the number of items that
    are attached to the next message. If `settings` or `cwd` is None, the line does not show it.
    """
    parts = [] if state == "idle" else [{"running": "working", "asking": "waits for you"}[state]]
    if settings is not None:
        parts += [
            _setting(overrides.get("model"), settings.model),
            _setting(overrides.get("sandbox"), settings.sandbox),
            _setting(overrides.get("approval_policy"), settings.approval_policy),
        ]
    if attachments:
        parts.append(f"{attachments} attached")
    if usage.total_tokens:
        parts.append(f"{_short(usage.input_tokens)} in, {_short(usage.output_tokens)} out")
    if not isinstance(usage.cost_micros, UnsetType):
        parts.append(f"cost {usage.cost_micros / 1_000_000:.4f}")
    if cwd is not None:
        parts.append(_directory(cwd))
    return cut(("", for_terminal(" · ".join(parts)).replace("\n", " ")), width, width_of)[1]


def _setting(override: object, value: str) -> str:
    return value if override is None or override == value else f"{override}*"


def _directory(path: str) -> str:
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:.0f}k"
