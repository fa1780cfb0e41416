"""`parley import`: conversations out of files."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from parley.cli.ending import run_unless_ended
from parley.cli.here import loader_here
from parley.cli.options import options_in
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error
from parley.config.types import Settings, Wanted
from parley.errors import ParleyError
from parley.wire.text import quoted, visible

__all__ = ["run_import"]

USAGE: Final = """\
usage: parley import [OPTIONS] FILE [FILE]...

Make conversations of files: what `parley export` wrote, and the rollout files
of Codex CLI up to 0.21 (sessions/**/rollout-*.jsonl in its home). FILE may be a
directory; every *.jsonl in it and below is imported. A conversation keeps its
id; if another conversation of the home has that id, it gets a new one. What was
imported before is not imported again.

An export contains settings, such as the sandbox mode and tool servers. Check a
file from someone else before you continue its conversation.

options:
  --new-id                 give every conversation a new id
  --cwd DIR                where the conversations of rollout files work, which
                           do not say it; here without it
  -c, --config KEY=VALUE   a setting that wins over config.toml, as for
                           `parley mcp`. May be given more than once
  -h, --help               this text

exit code: 0, also when everything was here already; 1 when a file could not be
imported, of which nothing is left then; 2 for a wrong command line.
"""


def run_import(arguments: Sequence[str]) -> int:
    """Import them, and return the exit code that the usage tells of."""
    values = {"--cwd": "--cwd", "-c": "--config", "--config": "--config"}
    try:
        given = options_in(arguments, command="import", flags=("--new-id",), values=values)
        if given is None:
            print(USAGE, end="")
            return 0
        if not given.operands:
            raise BadLine("expected at least one file to import; see `parley import --help`")
    except BadLine as error:
        print_error("import", error)
        return 2
    try:
        loader = loader_here(given.values.get("--config", ()))
        settings = loader.choose(Wanted(cwd=given.last("--cwd"))).settings
        return run_unless_ended(_import(given.operands, settings, new_id="--new-id" in given.flags))
    except ParleyError as error:
        print_error("import", error)
        return 1


async def _import(paths: Sequence[str], settings: Settings, *, new_id: bool) -> int:
    from parley.app.files.homes import open_home
    from parley.app.files.importing import Outcome, files_below, import_file

    files = [(path, below == [path]) for given in paths for below in (files_below(given),) for path in below]
    outcomes: Counter[Outcome] = Counter()
    progress = _Progress(len(files))
    async with open_home(settings.home, to_write=True) as store:
        for path, is_named in files:
            progress.show()
            imported = await import_file(store, path, settings, is_named=is_named, new_id=new_id)
            progress.clear()
            outcomes[imported.outcome] += 1
            if imported.outcome is Outcome.FAILED:
                print_error("import", f"{quoted(path)}: {imported.text}")
            else:
                print(f"{quoted(path)}: {visible(imported.text)}", flush=True)
    if len(files) != 1:
        print(", ".join(f"{outcomes[one]} {one.value}" for one in Outcome), file=sys.stderr)
    return 1 if outcomes[Outcome.FAILED] else 0


class _Progress:
    """How far it is, for somebody who watches."""

    def __init__(self, files: int) -> None:
        self._files, self._done = files, 0
        self._is_watched = files > 1 and sys.stderr.isatty()

    def show(self) -> None:
        self._done += 1
        if self._is_watched:
            print(f"{self._done} of {self._files} ...", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_watched:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
