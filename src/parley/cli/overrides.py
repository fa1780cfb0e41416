"""`-c KEY=VALUE`: the option that all subcommands with settings have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parley.cli.printing import print_error

__all__ = ["BadLine", "run_with_overrides"]


class BadLine(Exception):
    """The command line makes no sense. The text says why."""


def run_with_overrides(
    arguments: Sequence[str], *, command: str, usage: str, run: Callable[[list[str]], int]
) -> int:
    """Run a subcommand that takes settings and nothing else; its exit code, or 2 for a line that makes no sense."""
    try:
        overrides = _overrides_in(arguments, command=command)
    except BadLine as error:
        print_error(command, error)
        return 2
    if overrides is None:
        print(usage, end="")
        return 0
    return run(overrides)


def _overrides_in(arguments: Sequence[str], *, command: str) -> list[str] | None:
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
                raise BadLine(f"option {rest[0]} requires KEY=VALUE")
            case _:
                what = "unknown option" if rest[0].startswith("-") else "unexpected argument"
                raise BadLine(f"{what} {rest[0]!r}; see `parley {command} --help`")
        rest = others
    return overrides
