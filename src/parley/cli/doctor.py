"""`parley doctor`: checks this computer and the home, and explains how to fix problems.

Each line of the output begins with a stable name, for people and for scripts. No line contains a key.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from parley.cli.runner import add_config_option
from parley.cli.settings import refuse_database, settings_loader
from parley.common.files import read_file
from parley.common.git_addresses import GIT_SEARCH_PATH
from parley.common.os_errors import os_detail
from parley.config.errors import ProviderNotFound
from parley.config.load import STORE_VARIABLE, Loader
from parley.config.nodes import why_not_node
from parley.config.types import NodeSettings, Settings, SettingsOverrides, WorkspaceSettings
from parley.config.working_directory import working_directory
from parley.errors import BadSetting, CommandNotStarted, ConfigError
from parley.version import __version__
from parley.wire.text import visible

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Check this computer: Python and the system, the home and its settings, the model and
whether its key is set, the script and the programs that the settings name, the
webhook and whether its secret is set, and the sandbox: which mechanisms were tried,
which one is used and why, what limits the memory and processes of commands, and what
is hidden from commands. Prints what to do about each problem. Changes nothing and
uses no network.

With --repair, nothing is checked. All readable parts of the home's conversations
are written to a new home; the old home is not changed.

The last line is the verdict: ready, or not ready with the reasons. A missing API key
is a reason, but does not change the exit code.

exit code: 0 if home and settings can be used and commands can be confined, or if
every conversation was repaired completely; 2 for wrong arguments or, with --repair,
wrong settings; otherwise 1."""

PROBE_BYTES: Final = 64 * 1024
"""The size of the file, in bytes, with which the command checks that the disk is not full."""

COLUMN: Final = 12
"""The column in which the text of a line begins, after its name."""


class _Switch(NamedTuple):
    """A kernel setting that determines whether bubblewrap can create its namespaces."""

    name: str
    against: str
    """The value that prevents bubblewrap from creating its namespaces."""
    mend: str

    def value(self) -> str | None:
        """Return the current value, or None if this system has no such setting."""
        try:
            with open(f"/proc/sys/{self.name.replace('.', '/')}", encoding="ascii") as file:
                return file.read().strip()
        except (OSError, ValueError):
            return None


SWITCHES: Final = (
    _Switch(
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "give bubblewrap an AppArmor profile that allows user namespaces (Ubuntu from 23.10 on): the package "
        "apparmor-profiles has one, bwrap-userns-restrict in /usr/share/apparmor/extra-profiles; copy it to "
        "/etc/apparmor.d and load it with `apparmor_parser -r`",
    ),
    _Switch(
        "kernel.unprivileged_userns_clone",
        "0",
        "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`",
    ),
    _Switch("user.max_user_namespaces", "0", "allow user namespaces: `sysctl user.max_user_namespaces=15000`"),
)

NOT_BY_A_SWITCH: Final = (
    "let bubblewrap create user namespaces: in a container this needs a seccomp profile with unshare and mount"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", metavar="DIRECTORY", help="the new home, a new or empty directory")
    add_config_option(parser)


async def run(args: argparse.Namespace) -> int:
    if args.repair is not None:
        loader = settings_loader(args.config)
        refuse_database(loader, "restore it from a backup of pg_dump or of the server")
        return await _repaired(loader.home, args.repair)
    return await _check(args.config)


async def _repaired(home: str, target: str) -> int:
    from parley.app.files.repairing import repair_home

    done = await repair_home(home, target, report=print)
    print(f"conversations: {done.whole} whole, {done.partial} partial, {done.lost} lost")
    print(f"new home: {visible(target)}; to use it, set PARLEY_HOME or put its parley.db in place of the old one")
    return 1 if done.partial or done.lost else 0


async def _check(overrides: Sequence[str]) -> int:
    _line("parley", __version__)
    _line("python", f"{platform.python_version()}, {sys.executable}")
    _line("sqlite", _sqlite())
    _line("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    problems = []
    is_usable, settings = _look_at_home(overrides)
    if not is_usable or settings is None:
        problems.append("the home or its settings cannot be used")
    if not await _look_at_database(overrides) and settings is not None:
        problems.append("the database cannot be used")
    if settings is not None:
        if not _look_at_model(settings):
            problems.append("the script cannot be read")
        _look_at_providers(settings_loader(overrides))
        _look_at_programs(settings)
    print()
    if not await _look_at_sandbox(settings):
        problems.append("commands cannot be confined")
    code = 1 if problems else 0
    if settings is not None and (no_key := _why_no_key(settings)) is not None:
        problems.append(no_key.rstrip("."))  # servers can run without the key, so the exit code is the same
    _line("verdict", f"not ready: {'; '.join(problems)}" if problems else "ready")
    return code


def _line(name: str, text: str) -> None:
    print(f"{name:<{COLUMN}}{visible(text)}", flush=True)


def _sqlite() -> str:
    try:
        import sqlite3
    except ImportError:
        return "missing: this Python was built without it"
    return sqlite3.sqlite_version


# --- home, settings, model ---------------------------------------------------------------


def _look_at_home(overrides: Sequence[str]) -> tuple[bool, Settings | None]:
    """Check the home. Return two values: whether the home can store conversations, and its settings. The settings
    are None if they are invalid.
    """
    try:
        loader = Loader(environ=os.environ, server_dir=working_directory(), overrides=overrides)
        home = loader.home
    except ConfigError as error:
        _line("settings", f"cannot be used: {error}")
        return False, None
    except OSError as error:
        _line("settings", f"cannot be used: the working directory does not exist: {error.strerror}")
        return False, None
    fault = _fault(home)
    not_yet = "" if os.path.lexists(home) else "does not exist yet; Parley creates it when needed"
    _line("home", f"{home}: {fault or not_yet or 'ok'}")
    for sentence in _exposed(home):
        _line("exposed", sentence)
    file = os.path.join(home, "config.toml")
    try:
        settings = loader.choose(SettingsOverrides()).settings
        unknown = loader.unknown_keys()
    except ConfigError as error:
        _line("settings", f"cannot be used: {error}")
        if isinstance(error, ProviderNotFound):
            _line("to do", f"correct `model_provider`, or add a table [model_providers.{error.provider}] to {file}")
        return fault is None, None
    _line("settings", f"{file}: {'ok' if os.path.exists(file) else 'does not exist; defaults are used'}")
    for sentence in unknown:
        _line("unknown", sentence)
    _look_at_webhook(loader)
    _look_at_node(loader)
    has_workspace = _look_at_workspace(loader)
    return fault is None and has_workspace, settings


async def _look_at_database(overrides: Sequence[str]) -> bool:
    """Check the PostgreSQL database of the home. Return False if it cannot store conversations."""
    from parley.app.stores import inspect_postgres

    try:
        url = settings_loader(overrides).store_url()
    except ConfigError as error:
        if isinstance(error, BadSetting) and error.source == STORE_VARIABLE:
            _line("database", f"cannot be used: {error}")
        return False  # an error of config.toml has been reported with the other settings
    if url is None:
        return True
    is_usable, sentences = await inspect_postgres(url)
    for sentence in sentences:
        _line("database", sentence)
    return is_usable


def _look_at_webhook(loader: Loader) -> None:
    try:
        webhook = loader.webhook()
    except ConfigError as error:
        _line("webhook", f"is not notified: {error}")
    else:
        if webhook is not None:
            _line("webhook", f"notified{_shown_address(webhook.url)}, the secret is set")


def _look_at_node(loader: Loader) -> None:
    """Say whether a server with these settings is a node, if the settings or the token suggest it."""
    try:
        node, why = loader.node_settings(), why_not_node(loader)
        if node == NodeSettings() and loader.node_token() is None:
            return
    except ConfigError as error:
        _line("node", f"cannot be used: {error}")
        return
    name, url = node.id or platform.node(), node.url or "the address of `parley serve`"
    _line("node", f"{name} at {url}" if why is None else f"not a node: {why}")


def _look_at_workspace(loader: Loader) -> bool:
    """Describe the directories of this server as a node, and its repositories, if the settings name them. Return
    False if these settings cannot be used.
    """
    try:
        workspace = loader.workspace_settings()
    except ConfigError as error:
        _line("workspace", f"cannot be used: {error}")
        return False
    if workspace == WorkspaceSettings():
        return True
    below = f", below {', '.join(workspace.roots)}" if workspace.roots else ""
    _line("workspace", f"{workspace.mode}{below}")
    if workspace.mode == "git":
        _line("workspace", f"repositories: {', '.join(workspace.repositories) or 'none'}; {workspace.directory}")
        if shutil.which("git", path=GIT_SEARCH_PATH) is None:
            _line("workspace", f"git is not installed in {GIT_SEARCH_PATH}: turns in repositories fail")
    for root in workspace.roots:
        if not os.path.isdir(os.path.expanduser(root)):
            _line("workspace", f"{root} does not exist: the turns of its directories fail")
    return True


def _fault(home: str) -> str | None:
    """Return the reason why the home cannot store conversations; None if it can."""
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
    """Return the reason why a small file cannot be written in a directory; None if it can be written. The file is
    then removed.
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


def _exposed(home: str) -> Iterator[str]:
    from parley.app.standalone import exposed_files

    return exposed_files(home)


def _nearest(path: str) -> str:
    """Return the nearest existing directory to a path: the path itself, or one that contains it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _look_at_providers(loader: Loader) -> None:
    """Print the ready providers: which of them can be used, and which variables the others need."""
    missing = loader.ready_providers()
    _line("ready", ", ".join(name for name, variable in missing.items() if variable is None))
    if lacking := [f"{name} ({variable})" for name, variable in missing.items() if variable is not None]:
        _line("not ready", ", ".join(lacking))


def _look_at_model(settings: Settings) -> bool:
    """Describe the model. Return False if its script cannot be read."""
    from parley.app.standalone import has_price

    provider = settings.provider
    _line("model", f"{settings.model}, by {provider.id} ({provider.wire_api}{_shown_address(provider.base_url)})")
    if (settings.limits.turn_cost or settings.limits.conversation_cost) and not has_price(settings):
        _line("price", "unknown for this model, so the limits on the cost have no effect; set it in [prices]")
    if provider.is_openai or provider.env_key:
        _line("key", _why_no_key(settings) or "is set")
    else:
        _line("key", "not needed")
    _line("policy", f"approval_policy {settings.approval_policy}, sandbox_mode {settings.sandbox_mode}")
    if provider.script is None:
        return True
    try:
        read_file(provider.script)
    except OSError as error:
        _line("script", f"{provider.script}: {os_detail(error)}")
        return False
    return True


def _why_no_key(settings: Settings) -> str | None:
    from parley.app.standalone import why_no_key

    return why_no_key(settings)


def _look_at_programs(settings: Settings) -> None:
    """Report the programs in the settings that do not exist."""
    named = [(f"tool server {server.name}", server.command) for server in settings.mcp_servers if server.command]
    if settings.notify:
        named.append(("notify", settings.notify[0]))
    for what, program in named:
        # A relative path with a slash depends on the directory of a conversation.
        is_relative = "/" in program and not program.startswith("/")
        if not is_relative and shutil.which(program, path=settings.environ.get("PATH")) is None:
            _line("program", f"{what}: {program} does not exist or is not executable")


def _shown_address(url: str | None) -> str:
    """Return ` at ` and the URL without the parts that may contain secrets. Return an empty string if `url` is
    empty.
    """
    if not url:
        return ""
    parts = urlsplit(url)
    return f" at {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- the sandbox -------------------------------------------------------------------------


async def _look_at_sandbox(settings: Settings | None) -> bool:
    """Check the sandbox, with the default policy if `settings` is None. Return whether commands can be confined."""
    from parley.app.standalone import sandbox_report

    try:
        report, limits = await sandbox_report(settings)
    except CommandNotStarted as error:
        _line("sandbox", f"none: no command can be started: {error}")
        return False
    for tried in report.tried:
        facts = ", ".join(f"{name}: {value}" for name, value in tried.facts)
        state = "works" if tried.fault is None else f"does not work: {tried.fault}"
        _line(tried.name, f"{state}; {facts}" if facts else state)
    for switch in SWITCHES:
        if (value := switch.value()) is not None:
            _line("namespaces", f"{switch.name} is {value}")
    _line("limits", limits)
    if settings is not None:
        _look_at_hidden(report.hidden, settings.sandbox.hidden_paths)
    chosen = "auto" if settings is None else settings.sandbox.mechanism
    because = "the first that works" if chosen == "auto" else "chosen by the settings"
    _line("sandbox", f"{report.used}, {because}" if report.used else f"none: {report.why_none}")
    faults = {tried.name: tried.fault for tried in report.tried if tried.fault is not None}
    for advice in _advice(faults, is_installed=any("path" in dict(tried.facts) for tried in report.tried)):
        _line("to do", advice)
    return report.used is not None


def _look_at_hidden(hidden: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [path for path in wanted if not os.path.exists(path)]
    if hidden:
        _line("hidden", f"commands cannot read: {', '.join(hidden)}")
    if missing:
        _line("missing", f"hidden paths that do not exist: {', '.join(missing)}")


def _advice(faults: Mapping[str, str], *, is_installed: bool) -> Iterator[str]:
    if sys.platform not in ("linux", "darwin"):
        yield "run Parley inside WSL2: Windows itself cannot confine commands"
        return
    if platform.release().endswith("-Microsoft"):
        yield "use WSL2: this is WSL1, whose kernel cannot confine commands (`wsl --set-version NAME 2`)"
        return
    if "bubblewrap" in faults and (not is_installed or "is needed" in faults["bubblewrap"]):
        yield (
            "install bubblewrap, 0.4 or newer: `apt install bubblewrap`, `dnf install bubblewrap` or "
            "`apk add bubblewrap`"
        )
    elif "bubblewrap" in faults:
        yield from [switch.mend for switch in SWITCHES if switch.value() == switch.against] or [NOT_BY_A_SWITCH]
    if "landlock" in faults:
        yield "for Landlock: use kernel 6.2 or newer, with `landlock` in /sys/kernel/security/lsm"
