"""`parley`: which subcommand is meant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from parley.version import __version__

__all__ = ["main"]

USAGE = """\
Parley, a conversation server for coding agents.

usage: parley COMMAND [OPTIONS]

commands:
  mcp       serve an MCP client on stdin and stdout; `mcp-server` is the same
  demo      show a whole conversation on the terminal; no key, no network
  sandbox   run one command confined as the agent's are
  doctor    say what Parley finds on this computer, and what it lacks
  schema    print JSON Schemas of events, notifications and tools
  export    write a conversation into a file
  import    make conversations of files, also of those of Codex CLI
  backup    write all conversations into one file, while servers run
  gc        remove what is archived and old, and what no conversation uses

options:
  -h, --help   this text; `parley COMMAND --help` for a command
  --version    the version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code: that of the subcommand, or 2 for a line that makes no sense."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.platform == "win32" and arguments and not arguments[0].startswith("-"):
        print("parley: needs Linux or macOS; on Windows run it inside WSL2", file=sys.stderr)
        return 1
    match arguments:
        case ["mcp" | "mcp-server", *rest]:
            from parley.cli.mcp import run_mcp

            return run_mcp(rest)
        case ["demo", *rest]:
            from parley.cli.demo import run_demo

            return run_demo(rest)
        case ["sandbox", *rest]:
            from parley.cli.sandbox import run_sandbox

            return run_sandbox(rest)
        case ["doctor", *rest]:
            from parley.cli.doctor import run_doctor

            return run_doctor(rest)
        case ["schema", *rest]:
            from parley.cli.schema import run_schema

            return run_schema(rest)
        case ["export", *rest]:
            from parley.cli.export import run_export

            return run_export(rest)
        case ["import", *rest]:
            from parley.cli.import_ import run_import

            return run_import(rest)
        case ["backup", *rest]:
            from parley.cli.backup import run_backup

            return run_backup(rest)
        case ["gc", *rest]:
            from parley.cli.gc import run_gc

            return run_gc(rest)
        case ["--version"]:
            print(f"parley {__version__}")
            return 0
        case ["-h" | "--help" | "help"]:
            print(USAGE, end="")
            return 0
        case []:
            print(USAGE, end="", file=sys.stderr)
            return 2
        case _:
            what = "option" if arguments[0].startswith("-") else "command"
            print(f"parley: unknown {what} {arguments[0]!r}; `parley --help` lists the commands", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
