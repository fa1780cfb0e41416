"""Lists the programs that can be safe, each with its safe options. With these options, a program only reads and
prints.

A program or option that is not listed is treated as unsafe. The lists omit options that write files, run other
programs, read a configuration that names a program, read options or file names from files, or wait for more input.
`resolving.py` finds the files of programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from parley.agent.safe.find import find_only_reads
from parley.agent.safe.git import git_only_reads
from parley.agent.safe.options import Options, operands_of, options

__all__ = ["only_reads"]


def only_reads(name: str, words: Sequence[str]) -> bool:
    """Return whether the program `name` with the arguments `words` only reads and prints."""
    if name in _OPTIONS:
        return operands_of(words, _OPTIONS[name]) is not None
    return name in _OTHERS and _OTHERS[name](words)


_ENDS_OF_FILES: Final = options(
    plain="-q -v -z --quiet --silent --verbose --zero-terminated",
    counts="-c -n --bytes --lines",
    numbers=True,
)

_OPTIONS: Final[Mapping[str, Options]] = {
    "cat": options(
        plain="""-A -E -T -b -e -n -s -t -u -v
        --number --number-nonblank --show-all --show-ends --show-nonprinting --show-tabs --squeeze-blank"""
    ),
    "grep": options(
        plain="""-E -F -G -H -I -L -P -R -T -U -a -b -c -h -i -l -n -o -q -r -s -v -w -x -y
        --basic-regexp --binary --byte-offset --count --dereference-recursive --extended-regexp
        --files-with-matches --files-without-match --fixed-strings --ignore-case --initial-tab --invert-match
        --line-buffered --line-number --line-regexp --no-filename --no-ignore-case --no-messages --null
        --only-matching --perl-regexp --quiet --recursive --silent --text --with-filename --word-regexp""",
        counts="-A -B -C -m --after-context --before-context --context --max-count",
        texts="-D -d -e --binary-files --devices --directories --exclude --exclude-dir --include --label --regexp",
        optional="--color --colour",
        numbers=True,
    ),
    "head": _ENDS_OF_FILES,
    "ls": options(
        plain="""-1 -A -B -C -F -G -H -L -N -Q -R -S -U -X -Z
        -a -b -c -d -f -g -h -i -k -l -m -n -o -p -q -r -s -t -u -v -x
        --all --almost-all --author --context --dereference --dereference-command-line --directory --escape
        --file-type --full-time --group-directories-first --hide-control-chars --human-readable
        --ignore-backups --inode --kibibytes --literal --no-group --numeric-uid-gid --quote-name --recursive
        --reverse --show-control-chars --si --size""",
        counts="-T -w --tabsize --width",
        texts="""-I --block-size --format --hide --ignore --indicator-style --quoting-style --sort --time
        --time-style""",
        optional="--classify --color",
    ),
    "nl": options(
        plain="-p --no-renumber",
        counts="-i -l -v -w --join-blank-lines --line-increment --number-width --starting-line-number",
        texts="""-b -d -f -h -n -s --body-numbering --footer-numbering --header-numbering --number-format
        --number-separator --section-delimiter""",
    ),
    "rg": options(
        plain="""-. -0 -F -H -I -L -N -P -S -U -a -c -i -l -n -o -p -q -s -u -v -w -x
        --case-sensitive --column --count --count-matches --crlf --files --files-with-matches
        --files-without-match --fixed-strings --follow --glob-case-insensitive --heading --hidden --ignore-case
        --include-zero --invert-match --json --line-number --line-regexp --multiline --multiline-dotall
        --no-column --no-config --no-filename --no-follow --no-heading --no-hidden --no-ignore --no-ignore-dot
        --no-ignore-exclude --no-ignore-files --no-ignore-global --no-ignore-parent --no-ignore-vcs
        --no-line-number --no-messages --no-unicode --null --one-file-system --only-matching --passthru --pcre2
        --pretty --quiet --smart-case --stats --text --trim --type-list --unrestricted --vimgrep
        --with-filename --word-regexp""",
        counts="""-A -B -C -M -d -m --after-context --before-context --context --max-columns --max-count
        --max-depth --max-filesize --maxdepth""",
        texts="""-E -T -e -g -r -t --color --colors --context-separator --encoding --engine --glob --iglob
        --regexp --replace --sort --sortr --type --type-not""",
    ),
    "wc": options(plain="-L -c -l -m -w --bytes --chars --lines --max-line-length --words"),
    "which": options(plain="-a"),
}

_PRINTS: Final = re.compile(r"(?:(?:^|;)(?:[0-9]+|\$)(?:,(?:[0-9]+|\$))?p)+")
_FOLLOWS: Final = re.compile(r"\+[0-9]*[bcl]?f")
_PLACES: Final = options(plain="-L -P")


def _anything(words: Sequence[str]) -> bool:
    return True


def _cd(words: Sequence[str]) -> bool:
    operands = operands_of(words, _PLACES)
    return operands is not None and len(operands) <= 1


def _pwd(words: Sequence[str]) -> bool:
    return operands_of(words, _PLACES) == []


def _sed(words: Sequence[str]) -> bool:
    """Return whether the arguments of `sed` have the form `-n [-e] N[,M]p[;...] FILES`. Other scripts can write
    files and run programs.
    """
    match words:
        case ["-n", "-e", prints, *files] | ["-n", prints, *files]:
            return _PRINTS.fullmatch(prints) is not None and not any(
                file == "" or file.startswith("-") for file in files
            )
        case _:
            return False


def _tail(words: Sequence[str]) -> bool:
    """Return whether `tail` with these arguments prints and exits without waiting for more input. An operand such
    as `+1f` is an old form of `-f`, which waits.
    """
    operands = operands_of(words, _ENDS_OF_FILES)
    return operands is not None and not any(map(_FOLLOWS.fullmatch, operands))


_OTHERS: Final[Mapping[str, Callable[[Sequence[str]], bool]]] = {
    "cd": _cd,
    "echo": _anything,
    "false": _anything,
    "find": find_only_reads,
    "git": git_only_reads,
    "pwd": _pwd,
    "sed": _sed,
    "tail": _tail,
    "true": _anything,
}
