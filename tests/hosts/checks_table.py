"""The table of hosts and checks in the docs. Tests record the results, and this program writes the table.

`python tests/hosts/checks_table.py begin` removes old results, and `... write` writes the table. The table is
written only if every host was tested, so a run without npm changes nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hosts.host_clis import HostCli

__all__ = ["record_check"]

TABLE: Final = Path(__file__).parents[2] / "docs" / "hosts" / "checks.md"
_WORDS: Final = {"passed": "yes", "failed": "**no**", "skipped": "not tried"}
_HEAD: Final = """\
# What was checked

Each host ran one prompt, without a person and without network access. A stand-in replaced the host's model, and
the scripted model replaced the model of Parley's agent. `make test-hosts` runs the checks and writes this table.

"""


def _results() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "parley-test" / "host-checks.jsonl"


def record_check(check: str, host: HostCli, outcome: str) -> None:
    """Record the result of one check with one host."""
    path = _results()
    path.parent.mkdir(parents=True, exist_ok=True)
    version = host.package.rpartition("@")[2].partition("-linux")[0]
    line = json.dumps({"check": check, "host": f"{host.name} {version}", "outcome": outcome})
    with path.open("a") as results:  # one short line with O_APPEND: several workers may write
        results.write(line + "\n")


def table(lines: list[str]) -> str | None:
    """Return the table as Markdown; None if a host was not tested."""
    outcomes: dict[str, dict[str, str]] = {}
    hosts: set[str] = set()
    for line in lines:
        result = json.loads(line)
        hosts.add(result["host"])
        outcomes.setdefault(result["check"], {})[result["host"]] = result["outcome"]
    if not outcomes or any(outcome == "skipped" for row in outcomes.values() for outcome in row.values()):
        return None
    columns = sorted(hosts, key=str.lower)
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    rows += [
        [check, *(_WORDS[row.get(host, "skipped")] for host in columns)]
        for check, row in sorted(outcomes.items(), key=lambda item: int(item[0].partition(".")[0]))
    ]
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(command: str) -> None:
    path = _results()
    if command == "begin":
        path.unlink(missing_ok=True)
    elif path.exists() and (text := table(path.read_text().splitlines())) is not None:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(text)
        print(f"wrote {TABLE}")
    else:
        print("not every host was tried: the table in the docs stays as it is")


if __name__ == "__main__":
    main(sys.argv[1])
