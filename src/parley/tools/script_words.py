"""The words of a shell script, for display: as `parsed_commands.py` needs them.

Reads each character once, in a plain loop. Nothing here decides what may run.
"""

from __future__ import annotations

import string
from typing import Final, NamedTuple

__all__ = ["Word", "Words", "plain_commands", "words_of"]

Words = tuple[str, ...]

_RESERVED: Final = frozenset(
    {"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then"}
    | {"time", "until", "while"}
)
_NEVER_PLAIN: Final = frozenset(map(chr, {*range(0x20), 0x7F} - {ord("\t"), ord("\n")}))
_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "_./,:+@%=-")
_NOT_IN_DOUBLE_QUOTES: Final = frozenset("$`\\!")
_OPERATORS: Final = ("&&", "||", ";", "|", "\n")
_ESCAPED_IN_DOUBLE_QUOTES: Final = frozenset('$`"\\')


def plain_commands(script: str) -> list[Words] | None:
    """Return the commands of a script that has only plain words and connectors; None for any other.

    Every shell reads such a script alike: it has no expansion, redirection, assignment or escape.
    """
    if not _NEVER_PLAIN.isdisjoint(script):
        return None
    commands: list[Words] = []
    words: list[str] = []
    place, one_must_follow = 0, False
    while True:
        while script.startswith((" ", "\t"), place):
            place += 1
        operator = next((each for each in _OPERATORS if script.startswith(each, place)), None)
        if operator is None and place < len(script):
            word, end = _plain_word(script, place)
            if end == place:
                return None
            words.append(word)
            place = end
            continue
        if words:
            if not _is_plain_command(words):
                return None
            commands.append(tuple(words))
            words, one_must_follow = [], operator in ("&&", "||", "|")
        elif operator not in (None, "\n"):
            return None
        if operator is None:
            return None if one_must_follow else commands
        place += len(operator)


def _is_plain_command(words: list[str]) -> bool:
    first = words[0]
    return "=" not in first and first not in _RESERVED and not any(word.startswith("=") for word in words)


def _plain_word(script: str, place: int) -> tuple[str, int]:
    """Return the word that begins here, without its quotes, and its end."""
    pieces = list[str]()
    while place < len(script):
        character = script[place]
        if character in ("'", '"'):
            end = script.find(character, place + 1)
            quoted = script[place + 1 : end]
            if end == -1 or (character == '"' and not _NOT_IN_DOUBLE_QUOTES.isdisjoint(quoted)):
                break
            pieces.append(quoted)
            place = end + 1
        elif character in _PLAIN:
            pieces.append(character)
            place += 1
        else:
            break
    return "".join(pieces), place


class Word(NamedTuple):
    """A word of a script."""

    written: str
    """With its quotes and escapes."""
    meant: str
    """Without them."""


def words_of(script: str) -> list[Word]:
    """Return the words of any script. Only quotes and escapes are understood; a script in which a quote stays
    open is split at blanks instead."""
    words: list[Word] = []
    place = _end_of_blanks(script, 0)
    while place < len(script):
        read = _word_at(script, place)
        if read is None:
            return [Word(piece, piece) for piece in script.split()]
        meant, end = read
        words.append(Word(script[place:end], meant))
        place = _end_of_blanks(script, end)
    return words


def _end_of_blanks(script: str, place: int) -> int:
    while True:
        if script.startswith((" ", "\t", "\n"), place):
            place += 1
        elif script.startswith("\\\n", place):
            place += 2
        else:
            return place


def _word_at(script: str, place: int) -> tuple[str, int] | None:
    """Return the word that begins here, without quotes and escapes, and its end; None: a quote stays open."""
    pieces = list[str]()
    while place < len(script) and script[place] not in " \t\n":
        character = script[place]
        place += 1
        if character == "'":
            end = script.find("'", place)
            if end == -1:
                return None
            pieces.append(script[place:end])
            place = end + 1
        elif character == '"':
            while script[place : place + 1] not in ('"', ""):
                if script[place] == "\\":
                    pieces.append(_escaped_in_double_quotes(script[place + 1 : place + 2]))
                    place += 2
                else:
                    pieces.append(script[place])
                    place += 1
            if place >= len(script):
                return None
            place += 1
        elif character == "\\":
            if place == len(script):
                return None
            pieces.append(script[place].removeprefix("\n"))
            place += 1
        else:
            pieces.append(character)
    return "".join(pieces), place


def _escaped_in_double_quotes(character: str) -> str:
    if character == "\n":
        return ""
    return character if character in _ESCAPED_IN_DOUBLE_QUOTES else f"\\{character}"
