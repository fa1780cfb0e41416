"""The parts of `parley doctor` that check the home, the settings, the store and the programs."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Final
from urllib.parse import urlsplit

from parley.cli.doctor_report import DoctorReport
from parley.common.git_addresses import GIT_SEARCH_PATH
from parley.common.os_errors import os_detail
from parley.config.errors import ProfileNotFound, ProviderNotFound
from parley.config.load import STORE_VARIABLE, Loader
from parley.config.nodes import why_not_node
from parley.config.types import NodeSettings, Settings, SettingsOverrides, WorkspaceSettings
from parley.errors import BadSetting, ConfigError

__all__ = ["HOME_PROBLEM", "check_database", "check_home", "check_programs", "check_settings", "shown_address"]

PROBE_BYTES: Final = 64 * 1024
"""The size, in bytes, of the test file that the command writes to check that the disk is not full."""
FEW_BYTES: Final = 2**30
"""The number of free bytes on the disk below which the command prints a warning."""
HOME_PROBLEM: Final = "the home or its settings cannot be used"


# --- the home and its disk ---------------------------------------------------------------


def check_home(report: DoctorReport, home: str) -> None:
    """Check that the home can store conversations, that its files have safe permissions, and that its disk has free
    space.
    """
    from parley.app.standalone import exposed_files

    if (fault := _fault(home)) is not None:
        report.fail("home", f"{home}: {fault}", problem=HOME_PROBLEM)
    elif os.path.lexists(home):
        report.ok("home", f"{home}: ok")
    else:
        report.info("home", f"{home}: does not exist yet; Parley creates it when needed")
    for sentence in exposed_files(home):
        report.warn("exposed", sentence)
    _check_disk(report, home)


def _check_disk(report: DoctorReport, home: str) -> None:
    try:
        usage = shutil.disk_usage(_nearest(home))
    except OSError as error:
        report.warn("disk", f"its size cannot be read: {os_detail(error)}")
        return
    text = f"{_size(usage.free)} free of {_size(usage.total)}"
    if usage.free < FEW_BYTES:
        report.warn(
            "disk", text, to_do="free some space: Parley cannot store events on a full disk (see `parley gc`)"
        )
    else:
        report.ok("disk", text)


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.{0 if unit == 'bytes' else 1}f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _fault(home: str) -> str | None:
    """Return the reason why the home cannot store conversations; None if the home can store conversations."""
    if not os.path.lexists(home):
        parent = _nearest(home)
        if not os.path.isdir(parent):
            return f"cannot be created: {parent} is not a directory"
        if not os.access(parent, os.W_OK | os.X_OK):
            return f"cannot be created: {parent} is not writable"
        why = _why_not_writable(parent)
        return None if why is None else f"cannot be created: {parent} cannot be written: {why}"
    if not os.path.isdir(home):
        return "not a directory"
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return "is not writable"

    from parley.app.standalone import why_no_conversations

    if (why := why_no_conversations(home)) is not None:
        return why
    why = _why_not_writable(home)
    return None if why is None else f"cannot be written: {why}"


def _why_not_writable(directory: str) -> str | None:
    """Return the reason why a small file cannot be written in a directory; None if the file can be written.

    The file is removed afterwards.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return os_detail(error)
    return None


def _nearest(path: str) -> str:
    """Return `path` if it exists; otherwise return its nearest parent directory that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


# --- the settings ------------------------------------------------------------------------


def check_settings(report: DoctorReport, loader: Loader) -> Settings | None:
    """Check config.toml, and add the result to `report`. Return the settings; None if they cannot be used."""
    file = os.path.join(loader.home, "config.toml")
    try:
        settings = loader.choose(SettingsOverrides()).settings
        unknown = loader.unknown_keys()
    except ConfigError as error:
        report.fail(
            "settings", f"cannot be used: {error}", problem=HOME_PROBLEM, to_do=_settings_advice(error, file)
        )
        return None
    if os.path.exists(file):
        report.ok("settings", f"{file}: ok")
    else:
        report.info("settings", f"{file}: does not exist; defaults are used (`parley config init` creates it)")
    for sentence in unknown:
        report.warn("unknown", sentence)
    _check_webhook(report, loader)
    _check_node(report, loader)
    _check_workspace(report, loader)
    return settings


def _settings_advice(error: ConfigError, file: str) -> str | None:
    match error:
        case ProviderNotFound(provider=provider):
            return f"correct `model_provider`, or add a table [model_providers.{provider}] to {file}"
        case ProfileNotFound(profile=profile):
            return f"correct `profile`, or add a table [profiles.{profile}] to {file}"
        case BadSetting(is_invalid_toml=True, source=source, line=line):
            return f"correct line {line} of {source} with a text editor"
        case BadSetting(key=str(key)) if key:
            return f"correct the value, for example with `parley config set {key} VALUE`"
        case _:
            return None


def _check_webhook(report: DoctorReport, loader: Loader) -> None:
    try:
        webhook = loader.webhook()
    except ConfigError as error:
        report.warn("webhook", f"is not notified: {error}")
    else:
        if webhook is not None:
            report.ok("webhook", f"notified{shown_address(webhook.url)}, the secret is set")


def _check_node(report: DoctorReport, loader: Loader) -> None:
    """Print whether a server with the settings of `loader` is a node. If neither a node setting nor the shared
    token of the nodes is set, print nothing.
    """
    try:
        node, why = loader.node_settings(), why_not_node(loader)
        if node == NodeSettings() and loader.node_token() is None:
            return
    except ConfigError as error:
        report.warn("node", f"cannot be used: {error}")
        return
    name, url = node.id or platform.node(), node.url or "the address of `parley serve`"
    report.info(
        "node", f"{name} at {url}" if why is None else f"a server with this environment is not a node: {why}"
    )


def _check_workspace(report: DoctorReport, loader: Loader) -> None:
    """Print the workspace settings, and a warning if Git or a workspace root is missing. If no workspace setting is
    set, print nothing.
    """
    try:
        workspace = loader.workspace_settings()
    except ConfigError as error:
        report.fail("workspace", f"cannot be used: {error}", problem=HOME_PROBLEM)
        return
    if workspace == WorkspaceSettings():
        return
    below = f", below {', '.join(workspace.roots)}" if workspace.roots else ""
    report.info("workspace", f"{workspace.mode}{below}")
    if workspace.mode == "git":
        report.info(
            "workspace", f"repositories: {', '.join(workspace.repositories) or 'none'}; {workspace.directory}"
        )
        if shutil.which("git", path=GIT_SEARCH_PATH) is None:
            report.warn("workspace", f"git is not installed in {GIT_SEARCH_PATH}: turns in repositories fail")
    for root in workspace.roots:
        if not os.path.isdir(os.path.expanduser(root)):
            report.warn("workspace", f"{root} does not exist, so turns in its subdirectories fail")


def check_programs(report: DoctorReport, settings: Settings) -> None:
    """Print a row for each program that the settings name but that does not exist."""
    named = [(f"tool server {server.name}", server.command) for server in settings.mcp_servers if server.command]
    if settings.notify:
        named.append(("notify", settings.notify[0]))
    for what, program in named:
        # A relative path with a slash depends on the directory of a conversation.
        is_relative = "/" in program and not program.startswith("/")
        if not is_relative and shutil.which(program, path=settings.environ.get("PATH")) is None:
            report.warn("program", f"{what}: {program} does not exist or is not executable")


def shown_address(url: str | None) -> str:
    """Return the phrase ` at URL`, without the parts of the URL that may contain secrets. If `url` is empty or
    None, return an empty string.
    """
    if not url:
        return ""
    parts = urlsplit(url)
    return f" at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- the store ---------------------------------------------------------------------------


async def check_database(report: DoctorReport, loader: Loader) -> None:
    """Check the database that contains the conversations: the SQLite file in the home, or a PostgreSQL database."""
    from parley.app.stores import inspect_postgres

    try:
        url = loader.store_url()
    except ConfigError as error:
        if isinstance(error, BadSetting) and error.source == STORE_VARIABLE:
            report.fail("database", f"cannot be used: {error}", problem="the database cannot be used")
        return  # an error of config.toml has been reported with the other settings
    if url is None:
        report.info("database", _sqlite_file(loader.home))
        return
    is_usable, sentences = await inspect_postgres(url)
    for number, sentence in enumerate(sentences, 1):
        if is_usable or number < len(sentences):
            report.info("database", sentence)
        else:
            report.fail(
                "database",
                sentence,
                problem="the database cannot be used",
                to_do=f"check `store.url` or {STORE_VARIABLE}, and whether the database server runs",
            )


def _sqlite_file(home: str) -> str:
    path = os.path.join(home, "parley.db")
    try:
        return f"SQLite, {path}, {_size(os.stat(path).st_size)}"
    except OSError:
        return f"SQLite, {path}, which the first conversation creates"
