"""Compares settings by strictness. A stricter setting allows a turn to do less."""

from __future__ import annotations

from typing import Final, Literal

from parley.config.types import ResolvedSettings, Settings

__all__ = ["RestrictedSetting", "looser_setting", "values_within"]

RestrictedSetting = Literal["sandbox_mode", "approval_policy"]
"""The name of a setting whose values are ordered by strictness."""

STRICTEST_FIRST: Final[dict[RestrictedSetting, tuple[str, ...]]] = {
    "sandbox_mode": ("read-only", "workspace-write", "danger-full-access"),
    "approval_policy": ("untrusted", "on-request", "on-failure", "never"),
}
_HARMLESS: Final = frozenset({"model", "cwd", "output_schema", *STRICTEST_FIRST})
"""The names of the settings that `looser_setting` does not compare for equality. `model` and `output_schema` do not
determine what a turn may do. The caller checks `cwd`, and the settings in `STRICTEST_FIRST` are compared by
strictness.
"""


def values_within(name: RestrictedSetting, limit: Settings) -> tuple[str, ...]:
    """Return the values of the setting `name` that are at least as strict as the value in `limit`; the strictest
    value is first.

    If `limit` uses a sandbox, the approval policy `never` keeps every command in the sandbox. Every other approval
    policy is looser, because a command can leave the sandbox with an approval.
    """
    value = getattr(limit, name)
    if name == "approval_policy" and value == "never" and limit.sandbox_mode != "danger-full-access":
        return (value,)
    values = STRICTEST_FIRST[name]
    return values[: values.index(value) + 1]


def looser_setting(proposed: ResolvedSettings, limit: ResolvedSettings) -> str | None:
    """Return the name of a setting in `proposed` that may allow more than the same setting in `limit`; None if no
    setting allows more.

    `sandbox_mode` and `approval_policy` may be stricter than in `limit`. The model and the output schema may
    differ. The working directory is not compared, because the caller checks it. All other settings must be equal.
    """
    for name in STRICTEST_FIRST:
        if getattr(proposed.settings, name) not in values_within(name, limit.settings):
            return name
    names = (proposed.values.keys() | limit.values.keys()) - _HARMLESS
    return next((name for name in sorted(names) if proposed.values.get(name) != limit.values.get(name)), None)
