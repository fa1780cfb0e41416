"""`-c KEY=VALUE`: the option that all subcommands with settings have."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BadLine", "overrides_in"]


class BadLine(Exception):
    """The command line makes no sense. The text says why."""


def overrides_in(arguments: Sequence[str], *, command: str) -> list[str] | None:
    """The settings that were given, in order, on a command line that has nothing else; None: somebody wants
    to read the usage.

    Raises:
        BadLine: it has something else.
    """
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        match rest:
            case ["-h" | "--help", *_]:
                return None
            case ["-c" | "--config", setting, *others]:
                overrides.append(setting)
            case [option, *others] if option.startswith("--config="):
                overrides.append(option.removeprefix("--config="))
            case ["-c" | "--config"]:
                raise BadLine(f"{rest[0]} needs KEY=VALUE behind it")
            case _:
                raise BadLine(f"cannot use {rest[0]!r} here; try `parley {command} --help`")
        rest = others
    return overrides
