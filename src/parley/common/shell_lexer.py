"""Splits a shell script into commands and words without running a shell.

`commands_in` accepts only scripts that every shell interprets in the same way. Such a script consists of plain
words, quotes, operators between commands, and redirections that write to no file. The function rejects expansions,
all other redirections, backslashes that a shell would remove, comments and compound commands. `words_of` splits any
script, for display.

The lexer reads each character once, in a plain loop, so that the result does not depend on the regular expressions
of a Python release. The caller limits the length of the script.
"""

from __future__ import annotations

import string
from typing import Final, NamedTuple

__all__ = ["RESERVED", "Word", "Words", "commands_in", "words_of"]

Words = tuple[str, ...]

_NEVER: Final = frozenset(map(chr, {*range(0x20), 0x7F, *range(0xD800, 0xE000)} - {ord("\t"), ord("\n")}))
"""Characters that a plain word cannot contain, because some shells treat these characters as blanks and other
shells ignore them. NUL is included because no argument can contain NUL.
"""

_BLANKS: Final = (" ", "\t")
_OPERATORS: Final = ("&&", "||", ";", "|", "\n")
_NEEDS_ANOTHER: Final = frozenset({"&&", "||", "|"})

_REDIRECTIONS: Final = ("2>/dev/null", ">/dev/null", "2>&1")
_AFTER_REDIRECTION: Final = (*_BLANKS, "\n", ";", "|", "&")

_LETTERS: Final = frozenset(string.ascii_letters + string.digits)
_PLAIN: Final = _LETTERS | set("_./,:+@%=-")
_PLAIN_INSIDE: Final = frozenset("~^")
_BEFORE_PLAIN_INSIDE: Final = _LETTERS | _PLAIN_INSIDE
"""Characters after which `~` and `^` have no special meaning. `~` is special at the start of a word and after `=`
and `:`; `^` is special at the start of a word.
"""

_NOT_IN_DOUBLE_QUOTES: Final = frozenset("$`!")
_PLAIN_ESCAPED: Final = frozenset(map(chr, range(0x20, 0x7F))) - set('!"$\\`')
"""Characters before which a backslash in double quotes is a literal backslash."""

RESERVED: Final = frozenset(
    {"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then"}
    | {"time", "until", "while"}
)
"""Reserved words that look like plain words. A reserved word that is the first word of a command begins, continues
or ends a compound command.
"""

_BLANKS_OF_WORDS: Final = (*_BLANKS, "\n")
_ESCAPED_IN_DOUBLE_QUOTES: Final = frozenset('$`"\\')


def commands_in(script: str, *, words_only: bool = False) -> list[Words] | None:
    """Return every command that the script may run, in order, each as a tuple of words; None if the lexer does not
    accept the script.

    If `words_only` is True, scripts with redirections or escapes, or with `~` or `^` outside quotes, are not
    accepted.

    Which commands run depends on the exit codes of earlier commands. The caller must check the first word of each
    command, which may be a reserved word, an assignment, or a builtin such as `eval`.
    """
    if not _NEVER.isdisjoint(script):
        return None
    commands: list[Words] = []
    words: list[str] = []
    place, needs_another = 0, False
    while True:
        while script.startswith(_BLANKS, place):
            place += 1
        operator = next((each for each in _OPERATORS if script.startswith(each, place)), None)
        if operator is not None or place == len(script):
            if words:
                commands.append(tuple(words))
                words, needs_another = [], operator in _NEEDS_ANOTHER
            elif operator not in (None, "\n"):
                return None
            if operator is None:
                return None if needs_another else commands
            place += len(operator)
        elif words and not words_only and (end := _end_of_redirection(script, place)) is not None:
            place = end
        elif (read := _plain_word_at(script, place, words_only)) is not None:
            word, place = read
            words.append(word)
        else:
            return None


def _end_of_redirection(script: str, place: int) -> int | None:
    """Return the position after the redirection at `place`. Return None if there is no redirection, or if the
    redirection may write to a file.

    A blank must precede the redirection. A shell would otherwise read a number directly before the redirection as a
    descriptor.
    """
    if script[place - 1] not in _BLANKS:
        return None
    for redirection in _REDIRECTIONS:
        if script.startswith(redirection, place):
            end = place + len(redirection)
            return end if end == len(script) or script.startswith(_AFTER_REDIRECTION, end) else None
    return None


def _plain_word_at(script: str, place: int, words_only: bool) -> tuple[str, int] | None:
    """Return the plain word that begins at `place`, without its quotes, and the position after it; None if no plain
    word begins there.

    A plain word consists of quoted strings without expansions, and of unquoted characters that have no special
    meaning. If `words_only` is True, words with escapes, or with `~` or `^` outside quotes, do not count as plain.
    """
    if script.startswith("=", place):
        return None
    begin, pieces = place, list[str]()
    while place < len(script):
        character = script[place]
        if character in ("'", '"'):
            end = script.find("'", place + 1) if character == "'" else _end_of_double_quotes(script, place + 1)
            if end == -1 or (words_only and character == '"' and "\\" in script[place:end]):
                return None
            pieces.append(script[place + 1 : end])
            place = end + 1
        elif character in _PLAIN or (
            not words_only
            and character in _PLAIN_INSIDE
            and place > begin
            and script[place - 1] in _BEFORE_PLAIN_INSIDE
        ):
            pieces.append(character)
            place += 1
        else:
            break
    return ("".join(pieces), place) if place > begin else None


def _end_of_double_quotes(script: str, place: int) -> int:
    """Return the position of the double quote that closes the string at `place`. Return -1 if there is no such
    quote, or if a shell would expand a character before that quote.
    """
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


# --- words of any script ------------------------------------------------------------------


class Word(NamedTuple):
    """A word of a script, with and without its quotes."""

    source: str
    """The word with its quotes and escapes."""
    value: str
    """The word without quotes and escapes."""


def words_of(script: str) -> list[Word]:
    """Return the words of any script, split at blanks that are neither quoted nor escaped.

    If a quote is not closed, the script is split at all blanks instead.
    """
    words: list[Word] = []
    place = _end_of_blanks(script, 0)
    while place < len(script):
        read = _word_at(script, place)
        if read is None:
            return [Word(piece, piece) for piece in script.split()]
        value, end = read
        words.append(Word(script[place:end], value))
        place = _end_of_blanks(script, end)
    return words


def _end_of_blanks(script: str, place: int) -> int:
    while True:
        if script.startswith(_BLANKS_OF_WORDS, place):
            place += 1
        elif script.startswith("\\\n", place):
            place += 2
        else:
            return place


def _word_at(script: str, place: int) -> tuple[str, int] | None:
    """Return the word that begins at `place`, without quotes and escapes, and the position after the word. Return
    None if a quote is not closed.
    """
    pieces = list[str]()
    while place < len(script) and script[place] not in _BLANKS_OF_WORDS:
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
