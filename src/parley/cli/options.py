"""A command line of options and operands in any order, as the commands about files have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parley.cli.overrides import BadLine

__all__ = ["Given", "options_in"]


class Given:
    """What stands on the line."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, list[str]] = {}
        self.operands: list[str] = []

    def last(self, option: str) -> str | None:
        """The value of an option, the last where it was given more than once."""
        values = self.values.get(option)
        return values[-1] if values else None


def options_in(
    arguments: Sequence[str], *, command: str, flags: Sequence[str] = (), values: Mapping[str, str] | None = None
) -> Given | None:
    """What was given; None: somebody wants to read the usage.

    `values` are the options that take one, and the name under which it is found.

    Raises:
        BadLine: there is an option that the command does not have, or one without its value.
    """
    taking = values or {}
    given = Given()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option, glued, value = word.partition("=")
        if word == "--":
            given.operands += rest
            break
        if word in ("-h", "--help"):
            return None
        if word in flags:
            given.flags.add(word)
        elif word in taking or (option in taking and option.startswith("--")):
            if not glued:
                if not rest:
                    raise BadLine(f"option {word} requires a value")
                value = rest.pop(0)
            given.values.setdefault(taking[option], []).append(value)
        elif word.startswith("-"):
            raise BadLine(f"unknown option {word!r}; see `parley {command} --help`")
        else:
            given.operands.append(word)
    return given
