"""The options of the commands that begin turns: the conversation, its directory, its settings and its server."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, get_args

from parley.cli.connecting import add_resident_option
from parley.cli.ids import find_conversation
from parley.cli.runner import CommandFailed, UsageError, add_config_option
from parley.cli.server_address import ServerAddress, add_server_options
from parley.client import Client, Conversation, CreateOptions, Overrides
from parley.common.files import read_file
from parley.config.working_directory import absolute_path
from parley.wire.items import ImageItem
from parley.wire.text import quoted
from parley.wire.tools import ApprovalPolicy, SandboxMode

__all__ = [
    "Opened",
    "add_turn_options",
    "check_turn_options",
    "chosen_conversation",
    "chosen_settings",
    "enter_worktree",
    "image_items",
    "open_conversation",
]

POLICIES: Final[tuple[str, ...]] = get_args(ApprovalPolicy)
MODES: Final[tuple[str, ...]] = get_args(SandboxMode)


class Opened(NamedTuple):
    """The conversation that the options of a command choose, and the settings for its next message."""

    conversation: Conversation
    overrides: Overrides
    """The settings that the next message of an existing conversation must contain. The overrides are empty for a
    new conversation, because it was created with the settings of the options.
    """
    is_new: bool


def add_turn_options(parser: argparse.ArgumentParser, *, picks: bool = False) -> None:
    """Add the options that choose a conversation, its directory, its settings and its server. If `picks` is True,
    the id of `--resume` may be missing. The parsed value is then an empty string.
    """
    conversation = parser.add_mutually_exclusive_group()
    conversation.add_argument(
        "--continue",
        dest="continues",
        action="store_true",
        help="continue the conversation of the working directory that was last active",
    )
    conversation.add_argument(
        "--resume",
        metavar="ID",
        nargs="?" if picks else None,
        const="" if picks else None,
        help="continue this conversation; a unique prefix of its id is enough"
        + ("; without an id, choose from a list" if picks else ""),
    )
    conversation.add_argument(
        "--worktree",
        action="store_true",
        help="work in a new Git worktree on a new branch, which begins at the current commit",
    )
    parser.add_argument(
        "--cwd",
        metavar="DIR",
        help="the working directory; by default the current one, and with --url the default of the server",
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="the model, or PROVIDER/MODEL for a preconfigured provider"
    )
    parser.add_argument("--profile", metavar="NAME", help="a profile of config.toml")
    parser.add_argument("--sandbox", metavar="MODE", choices=MODES, help=" | ".join(MODES))
    parser.add_argument("--approval", metavar="POLICY", choices=POLICIES, help=" | ".join(POLICIES))
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="attach an image; may be repeated"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="record the requests to the model and its replies in a new file, without secrets; "
        "the scripted provider plays the file, and `parley replay --as-test` converts it to a test",
    )
    add_server_options(parser)
    add_resident_option(parser)
    add_config_option(parser)


def check_turn_options(args: argparse.Namespace, address: ServerAddress | None) -> None:
    """Check the options, make `--cwd` absolute, and convert `--record` to a setting. `address` is the server that
    the options select; None for the home. Call this function before a server is started.

    Raises:
        UsageError: the working directory does not exist, or the options contradict each other.
        CommandFailed: the file that `--record` names exists, or its directory does not exist.
    """
    if args.record is not None:
        if address is not None:
            raise UsageError("--record cannot be used with --url; the server has the setting `record`")
        if args.continues or args.resume is not None:
            raise UsageError("--record can only record a new conversation, without --continue and --resume")
    if address is not None:
        if args.worktree:
            raise UsageError("--worktree cannot be used with --url")
        return
    if args.cwd is not None or args.resume is None:
        args.cwd = absolute_path(args.cwd or ".")
        if not os.path.isdir(args.cwd):
            raise UsageError(f"{args.cwd} is not a directory")
    if args.record is not None:
        args.config = [*args.config, f"record={json.dumps(_new_recording(args.record))}"]


async def enter_worktree(args: argparse.Namespace, report: Callable[[str], None]) -> None:
    """If `--worktree` is given, create a worktree of the repository that contains the working directory, and use
    the worktree as the working directory. Call this function after the command has connected to the server, so that
    no worktree is created if the connection fails. `report` is called with a message that names the worktree.

    Raises:
        CommandFailed: the worktree cannot be created.
        ConfigError: the settings cannot be used.
    """
    if not args.worktree:
        return
    # Imported here, because these modules load the settings and run the sandbox.
    from parley.app.local_worktree import WorktreeFailed, create_worktree
    from parley.cli.settings import settings_loader
    from parley.config.types import SettingsOverrides

    settings = settings_loader(args.config).choose(SettingsOverrides(cwd=args.cwd)).settings
    try:
        worktree = await create_worktree(settings)
    except WorktreeFailed as error:
        raise CommandFailed(f"cannot create a worktree of {args.cwd}: {error}") from None
    args.cwd = worktree.cwd
    report(f"working in {worktree.path} on the new branch {worktree.branch}")


def _new_recording(given: str) -> str:
    """Check that a new recording can be created at `given`, and return its absolute path.

    The server creates the file when it sends its first request to the model.
    """
    path = absolute_path(given)
    if os.path.lexists(path):
        raise CommandFailed(f"{quoted(path)} already exists; refusing to overwrite it")
    if not os.path.isdir(directory := os.path.dirname(path)):
        raise CommandFailed(f"cannot create {quoted(path)}: {quoted(directory)} is not a directory")
    return path


async def open_conversation(client: Client, args: argparse.Namespace) -> Opened:
    """Create or find the conversation that the options choose, and return it with the settings for its next
    message. Call `check_turn_options` first.

    Raises:
        CommandFailed: the conversation does not exist.
        ToolFailed: the server rejects the settings of a new conversation.
    """
    if (found := await chosen_conversation(client, args)) is not None:
        return Opened(found, chosen_settings(args), is_new=False)
    directory = args.cwd or (await client.settings()).cwd
    created = await client.create(cwd=directory, model=args.model, **_settings(args))
    return Opened(created, {}, is_new=True)


async def chosen_conversation(client: Client, args: argparse.Namespace) -> Conversation | None:
    """Return the conversation that `--resume` or `--continue` chooses; None if neither option is given.

    Raises:
        CommandFailed: the conversation does not exist.
    """
    if args.resume:
        return await find_conversation(client, args.resume)
    if not args.continues:
        return None
    directory = args.cwd or (await client.settings()).cwd
    listed = await client.list(cwd=directory, limit=1)
    if not listed.conversations:
        raise CommandFailed(f"there is no conversation in {directory} to continue; leave out --continue")
    return client.conversation(listed.conversations[0].conversation_id)


def chosen_settings(args: argparse.Namespace) -> Overrides:
    """Return the settings that the options choose for the next message of an existing conversation."""
    changes: Overrides = {}
    if args.model is not None:
        changes["model"] = args.model
    if args.resume is not None and args.cwd is not None:
        changes["cwd"] = args.cwd
    return {**_settings(args), **changes}


def _settings(args: argparse.Namespace) -> CreateOptions:
    settings: CreateOptions = {}
    if args.sandbox is not None:
        settings["sandbox"] = args.sandbox
    if args.approval is not None:
        settings["approval_policy"] = args.approval
    if args.profile is not None:
        settings["profile"] = args.profile
    return settings


def image_items(paths: Sequence[str]) -> tuple[ImageItem, ...]:
    """Read image files, and return them as items of a message.

    Raises:
        UsageError: a file cannot be read or is not an image.
    """
    from parley.wire.images import MAX_IMAGE_BYTES, data_url  # imported here: few commands have images

    items = []
    for path in paths:
        try:
            items.append(ImageItem(image_url=data_url(read_file(path, limit=MAX_IMAGE_BYTES + 1))))
        except OSError as error:
            raise UsageError(f"cannot read the image {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"the image {path} cannot be used: {error}") from None
    return tuple(items)
