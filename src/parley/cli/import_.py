"""`parley import`: creates conversations from files."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from parley.cli.printing import print_json, print_note
from parley.cli.runner import add_config_option
from parley.cli.settings import settings_loader
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.wire.text import quoted, visible

if TYPE_CHECKING:
    from parley.app.files.importing import Imported

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Create conversations from files that `parley export` wrote, and from rollout files of
Codex CLI up to 0.21 (sessions/**/rollout-*.jsonl in its home). A conversation keeps
its id, unless another conversation of the home has that id. A conversation that was
imported before is not imported again.

An export contains settings, such as the sandbox mode and tool servers. Check a file
from someone else before you continue its conversation.

With --json, each line is a JSON object `{"type": "import"}` for one file, with `file`,
`outcome` (imported, already_here, skipped or failed), `text` and, if there is one,
`conversation_id`.

exit code: 0 on success, even if every conversation was imported before; 1 if a file
could not be imported, in which case nothing of that file is stored; 2 for wrong
arguments or settings."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a file, or a directory whose *.jsonl files are imported"
    )
    parser.add_argument("--new-id", action="store_true", help="give every conversation a new id")
    parser.add_argument(
        "--cwd",
        metavar="DIR",
        help="the working directory of conversations from rollout files, which contain no working directory; by "
        "default the current directory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_config_option(parser)


async def run(args: argparse.Namespace) -> int:
    loader = settings_loader(args.config)
    settings = loader.choose(SettingsOverrides(cwd=args.cwd)).settings
    return await _import(args.files, loader, settings, new_id=args.new_id, as_json=args.json)


async def _import(paths: Sequence[str], loader: Loader, settings: Settings, *, new_id: bool, as_json: bool) -> int:
    from parley.app.files.importing import Outcome, files_below, import_file
    from parley.app.stores import open_store

    files = [(path, below == [path]) for given in paths for below in (files_below(given),) for path in below]
    outcomes: Counter[Outcome] = Counter()
    progress = _Progress(len(files))
    async with open_store(loader, to_write=True) as store:
        for path, is_named in files:
            progress.show()
            imported = await import_file(store, path, settings, is_named=is_named, new_id=new_id)
            progress.clear()
            outcomes[imported.outcome] += 1
            if as_json:
                _print_json(path, imported)
            elif imported.outcome is Outcome.FAILED:
                print_note("import", f"{quoted(path)}: {imported.text}")
            else:
                print(f"{quoted(path)}: {visible(imported.text)}", flush=True)
    if len(files) != 1:
        print(", ".join(f"{outcomes[one]} {one.value}" for one in Outcome), file=sys.stderr)
    return 1 if outcomes[Outcome.FAILED] else 0


def _print_json(path: str, imported: Imported) -> None:
    found = {"type": "import", "file": path, "outcome": imported.outcome.name.lower(), "text": imported.text}
    print_json(found if imported.conversation is None else {**found, "conversation_id": imported.conversation})


class _Progress:
    """Displays the number of imported files on stderr, if several files are imported and stderr is a terminal."""

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
