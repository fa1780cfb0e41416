"""Checks whether `git` with given arguments only reads and prints.

Git runs programs that a repository's configuration names, such as filters. The sandbox, and the settings that are
passed to Git, restrict these programs. This module accepts no argument that makes Git run other programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parley.agent.safe.options import operands_of, options

__all__ = ["git_only_reads"]

_SHOWN_CHANGES: Final = """-R -W -b -c -m -p -q -r -s -t -u -w -z
    --binary --cc --check --color-words --combined-all-paths --compact-summary --exit-code --find-copies-harder
    --full-index --function-context --histogram --ignore-all-space --ignore-blank-lines --ignore-cr-at-eol
    --ignore-space-at-eol --ignore-space-change --minimal --name-only --name-status --no-color --no-ext-diff
    --no-indent-heuristic --no-patch --no-prefix --no-renames --no-textconv --numstat --patch --patch-with-raw
    --patch-with-stat --patience --pickaxe-all --pickaxe-regex --quiet --raw --shortstat --summary --text """
_SHOWN_CHANGES_COUNTS: Final = "-U --inter-hunk-context --unified "
_SHOWN_CHANGES_TEXTS: Final = "-G -S --diff-algorithm --diff-filter "
_SHOWN_CHANGES_OPTIONAL: Final = """-C -M --abbrev --color --color-moved --dirstat --find-copies --find-renames
    --ignore-submodules --relative --stat --word-diff """

_DIFF: Final = options(
    plain=_SHOWN_CHANGES + "--cached --merge-base --staged",
    counts=_SHOWN_CHANGES_COUNTS,
    texts=_SHOWN_CHANGES_TEXTS,
    optional=_SHOWN_CHANGES_OPTIONAL,
)

_FORMAT: Final = re.compile(
    r"""oneline | short | medium | full | fuller | email | raw
      | (?: t?format: | (?=.*%) )
        [^%]*
        (?: % (?: [-+\x20]? (?: [HhTtPpsfbBNnDdSem%] | [ac][nNeElLdDrtiIsh] | g[dDsnNeE] | x[0-9A-Fa-f]{2} )
                | C (?: red | green | blue | reset | \([A-Za-z0-9,#\x20-]+\) ) )
            [^%]*
        )*""",
    re.VERBOSE,
)
"""The pattern of the accepted values of `--format` and `--pretty`. The pattern does not accept placeholders for
signatures, because Git runs a program to check signatures. It does not accept the names of formats that a
repository may define either.
"""

_LOG: Final = options(
    plain=_SHOWN_CHANGES
    + """-E -F -P -g -i
    --abbrev-commit --all --all-match --author-date-order --boundary --cherry --cherry-mark --cherry-pick --children
    --date-order --extended-regexp --first-parent --fixed-strings --follow --full-history --graph --invert-grep
    --left-only --left-right --merges --no-abbrev-commit --no-decorate --no-expand-tabs --no-mailmap --no-merges
    --no-notes --no-show-signature --not --oneline --parents --perl-regexp --regexp-ignore-case --relative-date
    --reverse --right-only --simplify-by-decoration --topo-order --walk-reflogs""",
    counts=_SHOWN_CHANGES_COUNTS + "-n --max-count --max-parents --min-parents --skip",
    texts=_SHOWN_CHANGES_TEXTS + "-L --after --author --before --committer --date --glob --grep --since --until",
    optional=_SHOWN_CHANGES_OPTIONAL + "--branches --decorate --no-walk --remotes --tags",
    formats="--format --pretty",
    formatted=_FORMAT,
    numbers=True,
)

_STATUS: Final = options(
    plain="""-b -s -z --ahead-behind --branch --long --no-ahead-behind --no-column --no-renames --null --renames
    --short --show-stash""",
    optional="-u --column --find-renames --ignore-submodules --ignored --porcelain --untracked-files",
)

_BRANCH: Final = options(
    plain="""-a -i -r -v --all --ignore-case --list --no-abbrev --no-color --no-column --remotes --show-current
    --verbose""",
    texts="--sort",
    optional="--abbrev --color --column --contains --merged --no-contains --no-merged --points-at",
)
_LISTS: Final = re.compile(r"--list|--(?:no-)?(?:contains|merged)(?:=.*)?|--points-at(?:=.*)?")

_SUBCOMMANDS: Final = {"branch": _BRANCH, "diff": _DIFF, "log": _LOG, "show": _LOG, "status": _STATUS}


def git_only_reads(words: Sequence[str]) -> bool:
    """Return whether `git` with these arguments only reads and prints.

    Only `--no-pager` is accepted before the subcommand, because other options there change settings or select
    another repository.
    """
    rest = [*words]
    if rest[:1] == ["--no-pager"]:
        rest.pop(0)
    subcommand = rest.pop(0) if rest else ""
    known = _SUBCOMMANDS.get(subcommand)
    operands = None if known is None else operands_of(rest, known)
    return operands is not None and (subcommand != "branch" or not operands or _asks_for_a_list(rest))


def _asks_for_a_list(words: Sequence[str]) -> bool:
    """Return whether `git branch` with these arguments only lists branches. An operand would create a branch,
    unless an option makes Git treat the operand as a pattern.
    """
    before = words[: words.index("--")] if "--" in words else words
    return any(map(_LISTS.fullmatch, before))
