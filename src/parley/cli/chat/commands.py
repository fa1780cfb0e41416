"""The commands of the chat: lines such as `/model gpt-5`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from parley.cli.chat.choices import Choice, conversation_choices, model_choices, policy_choices, sandbox_choices
from parley.cli.chat.commands_conversation import (
    archive,
    compact,
    continue_turn,
    delete,
    fork,
    interrupt,
    new,
    rename,
    resume,
)
from parley.cli.chat.commands_queue import queue, queue_choices
from parley.cli.chat.commands_settings import approvals, model, reasoning, sandbox
from parley.cli.chat.commands_show import copy, diff, export, plan, status
from parley.cli.chat.context import ChatContext
from parley.cli.runner import CommandFailed
from parley.client import RequestFailed, ToolFailed

__all__ = ["COMMANDS", "Command", "find_command", "handle_command", "help_text", "nearest_command"]

PREFIX: Final = "/"


class Command(NamedTuple):
    """A command of the chat, such as `/model`."""

    name: str
    arguments: str
    """The names of the arguments as the help shows them; an empty string if the command has no arguments."""
    summary: str
    run: Callable[[ChatContext, str], Awaitable[None]]
    """The function that runs the command. Its second argument is the text after the name of the command, without
    surrounding spaces.
    """
    choices: Callable[[ChatContext], Awaitable[Sequence[Choice]]] | None = None
    """A function that returns the values that completion offers for the first argument; None if completion offers
    no values.
    """


async def _help(context: ChatContext, argument: str) -> None:
    context.print(help_text(), wraps=True)


async def _quit(context: ChatContext, argument: str) -> None:
    context.exit()


COMMANDS: Final = (
    Command("help", "", "list the commands", _help),
    Command("model", "[NAME]", "choose the model, or use NAME", model, model_choices),
    Command("approvals", "[POLICY]", "choose when the agent asks for approval", approvals, policy_choices),
    Command("sandbox", "[MODE]", "choose what commands of the agent may write", sandbox, sandbox_choices),
    Command("new", "", "begin a new conversation", new),
    Command("resume", "[ID]", "choose another conversation, or open ID", resume, conversation_choices),
    Command("fork", "", "copy this conversation, and continue in the copy", fork),
    Command("rename", "TITLE", "change the title of this conversation", rename),
    Command("archive", "", "archive this conversation, and begin a new one", archive),
    Command("delete", "", "delete this conversation, after a confirmation", delete),
    Command("diff", "", "show the changes of all patches", diff),
    Command("plan", "[TASK]", "show the agent's plan, or ask for a plan of TASK", plan),
    Command("copy", "", "copy the last answer to the clipboard", copy),
    Command("export", "[FILE]", "write the conversation to a .md or .jsonl file", export),
    Command("status", "", "show the settings, the tokens and the directory", status),
    Command("reasoning", "", "show or fold the reasoning of the model", reasoning),
    Command("queue", "[ACTION]", "list the waiting messages, or remove N, edit N, continue", queue, queue_choices),
    Command("interrupt", "", "interrupt the turn, and pause the queue", interrupt),
    Command("continue", "", "continue after an interrupted or failed turn", continue_turn),
    Command("compact", "", "replace the history with a summary", compact),
    Command("quit", "", "leave the chat; a running turn continues on the server", _quit),
)

ALIASES: Final[Mapping[str, str]] = {"exit": "quit", "?": "help"}


async def handle_command(context: ChatContext, line: str) -> bool:
    """Run the command in an input line.

    If the command is unknown, print a note and put the line back into the input. Always return True, because this
    function handles every line that begins with `/`.
    """
    name, _, argument = line.strip().removeprefix(PREFIX).partition(" ")
    argument = argument.strip()
    if (command := find_command(name)) is None:
        context.note(unknown_command(name))
        context.set_input(line)
        return True
    try:
        if argument and not command.arguments:
            raise CommandFailed(f"/{command.name} takes no argument")
        if not argument and command.arguments and not command.arguments.startswith("["):
            raise CommandFailed(f"usage: /{command.name} {command.arguments}")
        await command.run(context, argument)
    except CommandFailed as error:
        context.note(str(error))
    except ToolFailed as error:
        # the message must not name a tool, because users do not know the tools
        context.note(error.message or "the server gave no reason")
    except RequestFailed as error:
        context.note(error.message)
    return True


def find_command(name: str) -> Command | None:
    """Return the command with the given name or alias; None if no command has this name."""
    name = ALIASES.get(name, name)
    return next((one for one in COMMANDS if one.name == name), None)


def nearest_command(name: str) -> Command | None:
    """Return the command that a mistyped or shortened name probably means; None if no command is similar."""
    names = [one.name for one in COMMANDS]
    found = [one for one in names if name and one.startswith(name)] or get_close_matches(name, names, n=1)
    return find_command(found[0]) if found else None


def unknown_command(name: str) -> str:
    """Return the error message for an unknown command."""
    nearest = nearest_command(name)
    hint = "." if nearest is None else f"; did you mean /{nearest.name}?"
    return f"unknown command /{name}{hint} /help lists the commands. A space before / sends the line as a message."


def help_text() -> str:
    """Return the help of the chat: the commands with their summaries, and the keys."""
    width = max(len(f"/{one.name} {one.arguments}".rstrip()) for one in COMMANDS)
    lines = [f"  {f'/{one.name} {one.arguments}'.rstrip():<{width}}  {one.summary}" for one in COMMANDS]
    return "\n".join([*lines, *_KEYS])


_KEYS: Final = (
    "",
    "  @PATH     name a file of the directory; an image is sent with the message",
    "  !COMMAND  run your own command here; the next message includes its output",
    "  Ctrl-R    search your earlier messages, and reuse or fork from one",
    "  Ctrl-T    choose another conversation",
)
