"""The commands of a shell script that is so plain that every shell reads it alike.

Knows words, quotes, the operators between commands, and the few redirections that write nowhere. Refuses
to know expansions, other redirections, assignments, escapes that take something away, comments and compound
commands: a script with any of them is not understood. Reads each character once, in a plain loop: the answer
must not depend on how a release of Python implements regular expressions.
"""

from __future__ import annotations

import string
from typing import Final

__all__ = ["MAX_CHARACTERS", "MAX_COMMANDS", "commands_in"]

MAX_CHARACTERS: Final = 16 * 1024
"""The longest script that is read. It is read on the event loop, where every client waits for it."""

MAX_COMMANDS: Final = 100
"""The most commands that a script may have: for each one, options are checked and files looked up."""

_NEVER: Final = frozenset(map(chr, {*range(0x20), 0x7F, *range(0xD800, 0xE000)} - {ord("\t"), ord("\n")}))
"""Characters that some shells treat as blanks, some drop, and no argument can carry."""

_BLANKS: Final = (" ", "\t")
_OPERATORS: Final = ("&&", "||", ";", "|", "\n")
_NEEDS_ANOTHER: Final = frozenset({"&&", "||", "|"})

_REDIRECTIONS: Final = ("2>/dev/null", ">/dev/null", "2>&1")
_AFTER_REDIRECTION: Final = (*_BLANKS, "\n", ";", "|", "&")

_LETTERS: Final = frozenset(string.ascii_letters + string.digits)
_PLAIN: Final = _LETTERS | set("_./,:+@%=-")
_PLAIN_INSIDE: Final = frozenset("~^")
_BEFORE_PLAIN_INSIDE: Final = _LETTERS | _PLAIN_INSIDE
"""`~` and `^` are plain after a letter, a digit or one of themselves: `~` means something at the start of a word
and after `=` and `:`, and `^` at the start of a word."""

_NOT_IN_DOUBLE_QUOTES: Final = frozenset("$`!")
_PLAIN_ESCAPED: Final = frozenset(map(chr, range(0x20, 0x7F))) - set('!"$\\`')
"""Characters before which a backslash between double quotes stands for itself."""

_RESERVED: Final = frozenset(
    {"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then"}
    | {"time", "until", "while", "!", "[[", "]]", "{", "}"}
)
_NEVER_FIRST: Final = ("-", "+", "%")
"""How a command does not begin: a shell takes a script that begins so for its own options (`-`, `+`),
and a command for a job of its own (`%`)."""


def commands_in(script: str) -> list[tuple[str, ...]] | None:
    """Return every command that the script may run, in order, each with its words; None: not understood.

    Which of them run depends on the exit codes of those before. A command may be one that the shell itself
    acts upon, such as `eval`: the caller has to know the names. A script beyond the limits of this module
    is not understood.
    """
    if len(script) > MAX_CHARACTERS or not _NEVER.isdisjoint(script):
        return None
    commands: list[tuple[str, ...]] = []
    words: list[str] = []
    place, needs_another = 0, False
    while True:
        while script.startswith(_BLANKS, place):
            place += 1
        operator = next((each for each in _OPERATORS if script.startswith(each, place)), None)
        if operator is not None or place == len(script):
            if words:
                if not _is_plain(words) or len(commands) == MAX_COMMANDS:
                    return None
                commands.append(tuple(words))
                words, needs_another = [], operator in _NEEDS_ANOTHER
            elif operator not in (None, "\n"):
                return None
            if operator is None:
                return None if needs_another else commands
            place += len(operator)
        elif words and (end := _end_of_redirection(script, place)) is not None:
            place = end
        elif (read := _word_at(script, place)) is not None:
            word, place = read
            words.append(word)
        else:
            return None


def _end_of_redirection(script: str, place: int) -> int | None:
    """Return the end of a redirection that writes nowhere, if one stands here.

    It is a word by itself: a number directly before it would be taken for a descriptor.
    """
    if script[place - 1] not in _BLANKS:
        return None
    for redirection in _REDIRECTIONS:
        if script.startswith(redirection, place):
            end = place + len(redirection)
            return end if end == len(script) or script.startswith(_AFTER_REDIRECTION, end) else None
    return None


def _word_at(script: str, place: int) -> tuple[str, int] | None:
    """Return the word that begins here, without its quotes, and its end; None: no plain word begins here."""
    if script.startswith("=", place):
        return None
    begin, pieces = place, list[str]()
    while place < len(script):
        character = script[place]
        if character in ("'", '"'):
            end = script.find("'", place + 1) if character == "'" else _end_of_double_quotes(script, place + 1)
            if end == -1:
                return None
            pieces.append(script[place + 1 : end])
            place = end + 1
        elif character in _PLAIN or (
            character in _PLAIN_INSIDE and place > begin and script[place - 1] in _BEFORE_PLAIN_INSIDE
        ):
            pieces.append(character)
            place += 1
        else:
            break
    return ("".join(pieces), place) if place > begin else None


def _end_of_double_quotes(script: str, place: int) -> int:
    """Return where the closing quote stands; -1: there is none, or something that a shell acts upon before it."""
    while place < len(script):
        character = script[place]
        if character == '"':
            return place
        if character in _NOT_IN_DOUBLE_QUOTES:
            return -1
        if character == "\\":
            place += 1
            if script[place : place + 1] not in _PLAIN_ESCAPED:
                return -1
        place += 1
    return -1


def _is_plain(words: list[str]) -> bool:
    first = words[0]
    return first != "" and "=" not in first and first not in _RESERVED and not first.startswith(_NEVER_FIRST)
