"""`parley`: the table of commands, and the function that runs the chosen command."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from parley.version import __version__

__all__ = ["COMMANDS", "main"]


class Command(NamedTuple):
    """A command in the table of commands. Its module, a `runner.CommandModule`, is imported when the command
    runs.
    """

    name: str
    summary: str
    module: str
    aliases: tuple[str, ...] = ()


COMMANDS: Final = (
    Command("mcp", "serve an MCP client on stdin and stdout; `mcp-server` is the same", "mcp", ("mcp-server",)),
    Command("serve", "run the resident server of the home, or report and stop it", "serve"),
    Command("chat", "talk with the agent on the terminal", "chat_command"),
    Command("exec", "run one turn in the current directory and print its answer", "exec"),
    Command("ls", "list the conversations of the home", "ls"),
    Command("show", "show a conversation so far", "show"),
    Command("watch", "follow a conversation", "watch"),
    Command("send", "send a message to a conversation", "send"),
    Command("answer", "list the open approvals, or decide one", "answer"),
    Command("interrupt", "interrupt the turn of a conversation", "interrupt"),
    Command("continue", "continue a turn that was interrupted or failed", "continue_"),
    Command("fork", "create a conversation with a copy of another one's history", "fork"),
    Command("diff", "print the changes that the patches of a conversation have made", "diff"),
    Command("attention", "list the conversations that need a person", "attention"),
    Command("replay", "play the stored events of a conversation at their original pace", "replay"),
    Command("rename", "change the title of a conversation", "rename"),
    Command("archive", "archive a conversation, or restore an archived one", "archive"),
    Command("delete", "delete a conversation", "delete"),
    Command("token", "create, list and revoke the tokens of HTTP clients", "token"),
    Command("share", "print a link with which others can read a conversation in a browser", "share"),
    Command("demo", "show a whole conversation on the terminal; no key, no network", "demo"),
    Command("sandbox", "run one command confined like the agent's commands", "sandbox"),
    Command("config", "show the settings and their sources, or change them", "config"),
    Command("doctor", "check this computer and the home, or repair a home", "doctor"),
    Command("completion", "print the script with which a shell completes parley", "completion"),
    Command("schema", "print JSON Schemas of events, notifications and tools", "schema"),
    Command("export", "write a conversation to a file", "export"),
    Command("import", "create conversations from files, including those of Codex CLI", "import_"),
    Command("backup", "write all conversations to one file while servers run", "backup"),
    Command("migrate", "copy all conversations to a PostgreSQL database", "migrate"),
    Command("gc", "remove old archived conversations and unused data", "gc"),
)

_START: Final = Command("config init", "open the chat, after the set-up if nothing is configured", "start")
"""The command that runs on a terminal if the command line names no command. The error messages of the set-up begin
with `parley config init`.
"""

_HELP: Final = f"""\
Parley, a conversation server for coding agents.

usage: parley COMMAND [OPTIONS]
       parley            on a terminal: open the chat, after the set-up if nothing is
                         configured

commands:
{"".join(f"  {command.name:<10} {command.summary}{chr(10)}" for command in COMMANDS)}
options:
  -h, --help     show this help; `parley COMMAND --help` and `parley help COMMAND` show
                 the help of a command
  -V, --version  show the version
"""

USAGE_ERROR: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names, and return its exit code. `argv` is by default the command line of this
    process. The exit code for a usage error is 2.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from parley.cli.standard_streams import open_closed_streams  # imported here: few processes need this module

        open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments and sys.stdin.isatty() and sys.stdout.isatty():
        return _run(_START, arguments, exits=argv is None)
    if not arguments:
        print(_HELP, end="", file=sys.stderr)
        return USAGE_ERROR
    if arguments in (["-V"], ["--version"]):
        print(f"parley {__version__}")
        return 0
    if arguments in (["-h"], ["--help"], ["help"]):
        print(_HELP, end="")
        return 0
    if arguments[0] == "help" and len(arguments) == 2:
        arguments = [arguments[1], "--help"]
    name, *rest = arguments
    command = next((one for one in COMMANDS if name in (one.name, *one.aliases)), None)
    if command is None:
        what = "option" if name.startswith("-") else "command"
        hint = _similar(name)
        print(f"parley: unknown {what} {name!r}; {hint}`parley --help` lists the commands", file=sys.stderr)
        return USAGE_ERROR
    return _run(command, rest, exits=argv is None)


def _run(command: Command, arguments: Sequence[str], *, exits: bool) -> int:
    """Run a command and return its exit code. If `exits` is True, the process exits after this call, and Ctrl-C is
    ignored after the command has ended.
    """
    if sys.platform == "win32":
        print("parley: requires Linux or macOS; on Windows, run Parley in WSL2", file=sys.stderr)
        return 1

    import signal

    from parley.cli.runner import run_command

    process_exit = _ProcessExit()
    if exits:
        atexit.register(process_exit.exit_if_threads_run)  # registered first, so that it is called last
    try:
        code = run_command(command.name, import_module(f"parley.cli.{command.module}"), arguments)
        if exits:  # a late Ctrl-C must not print a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # Ctrl-C was pressed before or after the command ran
        code = 128 + signal.SIGINT
    process_exit.code = code
    return code


class _ProcessExit:
    """Ends the process without freeing the state of its libraries if other threads are still running.

    Freeing this state would crash a thread that uses OpenSSL, for example while it imports the HTTP library.
    """

    code: int | None = None
    """The exit code of the process; None if the command has raised an exception."""

    def exit_if_threads_run(self) -> None:
        """If other threads are running, write the buffered output and end the process now.

        Otherwise return. Also return if the command raised an exception, or if the output cannot be written. Python
        then reports the error.
        """
        threading = sys.modules.get("threading")
        if self.code is None or threading is None or threading.active_count() == 1:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (AttributeError, OSError, ValueError):
            return  # Python reports the error when it exits
        os._exit(self.code)


def _similar(name: str) -> str:
    """Return a question that suggests the most similar command or option; an empty string if no name is similar."""
    from difflib import get_close_matches  # imported here: only a usage error needs this module

    known = ["--version", "--help", *(name for command in COMMANDS for name in (command.name, *command.aliases))]
    found = get_close_matches(name, known, n=1)
    return f"did you mean `parley {found[0]}`? " if found else ""


if __name__ == "__main__":
    sys.exit(main())
