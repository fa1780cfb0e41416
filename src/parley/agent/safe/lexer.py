"""The commands of a shell script that is so plain that every shell reads it alike.

Knows words, quotes, the operators between commands, and the few redirections that write nowhere. Refuses
to know expansions, other redirections, assignments, escapes that take something away, comments and compound
commands: a script with any of them is not understood.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["commands_in"]

_NEVER: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""What some shells take for blanks, some drop, and no argument can carry."""

_TOKEN: Final = re.compile(
    r"""[ \t]*+(?:
        (?P<quiet>(?<=[ \t])(?:2?>/dev/null|2>&1)(?=[ \t\n;|&]|\Z))
      | (?P<word>(?!=)(?:
            (?:[A-Za-z0-9_./,:+@%=-]|(?<=[A-Za-z0-9~^])[~^])++
          | '[^']*+'
          | "(?:[^"$`\\!]|\\[\x20#%-\[\]-_a-~])*+"
        )++)
      | (?P<operator>&&|\|\||[;|\n])
      | (?P<end>\Z))""",
    re.VERBOSE,
)
"""`~` and `^` mean something where a word begins, or behind `=` and `:`; a backslash between double quotes,
only before those characters that it is not allowed before here. A redirection is a word by itself: a number
right before it would be taken for a descriptor."""

_QUOTED: Final = re.compile(r"""'([^']*+)'|"([^"]*+)\"""")

_NEEDS_ANOTHER: Final = frozenset({"&&", "||", "|"})

_RESERVED: Final = re.compile(
    r"case|coproc|do|done|elif|else|esac|fi|for|function|if|in|select|then|time|until|while|!|\[\[|\]\]|\{|\}"
)
_NEVER_FIRST: Final = ("-", "+", "%")
"""How a command does not begin: a shell takes a script that begins so for its own options (`-`, `+`),
and a command for a job of its own (`%`)."""


def commands_in(script: str) -> list[tuple[str, ...]] | None:
    """Every command that the script may run, in order, each with its words; None: it is not understood.

    Which of them run depends on how those before end. A command may be one that the shell itself
    acts upon, such as `eval`: whoever asks has to know the names.
    """
    if _NEVER.search(script):
        return None
    commands: list[tuple[str, ...]] = []
    words: list[str] = []
    place, needs_another = 0, False
    while token := _TOKEN.match(script, place):
        place, operator = token.end(), token["operator"]
        if token["word"] is not None:
            words.append(_without_quotes(token["word"]))
        elif token["quiet"] is not None:
            if not words:
                return None
        elif words:
            if not _is_plain(words):
                return None
            commands.append(tuple(words))
            words, needs_another = [], operator in _NEEDS_ANOTHER
        elif operator not in (None, "\n"):
            return None
        if token["end"] is not None:
            return None if needs_another else commands
    return None


def _without_quotes(word: str) -> str:
    return _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", word)


def _is_plain(words: list[str]) -> bool:
    first = words[0]
    return not (not first or "=" in first or _RESERVED.fullmatch(first) or first.startswith(_NEVER_FIRST))
