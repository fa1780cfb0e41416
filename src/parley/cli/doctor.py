"""`parley doctor`: checks this computer and the home, and explains how to fix problems.

No line of the output contains an API key.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Final

from parley.cli.doctor_home import HOME_PROBLEM, check_database, check_home, check_programs, check_settings
from parley.cli.doctor_model import check_model, check_online, list_providers
from parley.cli.doctor_report import DoctorReport
from parley.cli.doctor_resident import check_resident
from parley.cli.doctor_sandbox import check_sandbox
from parley.cli.runner import UsageError, add_config_option
from parley.cli.settings import refuse_database, settings_loader
from parley.config.load import Loader
from parley.config.types import Settings
from parley.errors import ConfigError
from parley.version import __version__
from parley.wire.text import visible

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Check this computer: Python and the system, the home, its disk and its settings, the
database, the model and whether its key is set, the script and the programs that the
settings name, the webhook and whether its secret is set, the resident server, and the
sandbox: which mechanisms were tried, which one is used and why, what limits the
memory and processes of commands, and what is hidden from commands. Prints what to do
about each problem. Changes nothing. Without --online, connects only to servers on
this computer, to the URL in serve.public_url and to the database.

With --online, also send one tiny request to the provider of the model. It costs a few
tokens, and finds a wrong key, an unknown model and problems of the network.

With --repair, nothing is checked. All readable parts of the home's conversations
are written to a new home; the old home is not changed.

The last line is the verdict: ready, or not ready with the reasons. A missing API key
is a reason, but does not change the exit code unless --online needs the key.

exit code: 0 if home and settings can be used, commands can be confined and the
resident server and the provider answered, or if every conversation was repaired
completely; 2 for wrong arguments or, with --repair, wrong settings; otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--online", action="store_true", help="also send a tiny request to the provider")
    parser.add_argument("--repair", metavar="DIRECTORY", help="the new home, a new or empty directory")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_config_option(parser)


async def run(args: argparse.Namespace) -> int:
    if args.repair is None:
        return await _check(args.config, online=args.online, as_json=args.json)
    if args.online or args.json:
        raise UsageError("--repair cannot be combined with --online and --json")
    loader = settings_loader(args.config)
    refuse_database(loader, "restore it from a backup of pg_dump or of the server")
    return await _repaired(loader.home, args.repair)


async def _repaired(home: str, target: str) -> int:
    from parley.app.files.repairing import repair_home

    done = await repair_home(home, target, report=print)
    print(f"conversations: {done.whole} whole, {done.partial} partial, {done.lost} lost")
    print(f"new home: {visible(target)}; to use it, set PARLEY_HOME or put its parley.db in place of the old one")
    return 1 if done.partial or done.lost else 0


async def _check(overrides: Sequence[str], *, online: bool, as_json: bool) -> int:
    report = DoctorReport(as_json=as_json)
    report.info("parley", __version__)
    report.info("python", f"{platform.python_version()}, {sys.executable}")
    _check_sqlite(report)
    report.info("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    settings = await _check_home_and_settings(report, overrides)
    if settings is not None and online:
        await check_online(report, settings)
    report.begin_section()
    await check_sandbox(report, settings)
    report.verdict()
    return report.exit_code


def _check_sqlite(report: DoctorReport) -> None:
    try:
        import sqlite3
    except ImportError:
        report.fail(
            "sqlite",
            "missing: this Python was built without it",
            problem=HOME_PROBLEM,
            to_do="use another Python, for example the one of your distribution",
        )
    else:
        report.info("sqlite", sqlite3.sqlite_version)


async def _check_home_and_settings(report: DoctorReport, overrides: Sequence[str]) -> Settings | None:
    """Check the home, the settings, the database, the model and the resident server. Return the settings; None if
    they cannot be used.
    """
    try:
        loader = settings_loader(overrides)
        home = loader.home
    except ConfigError as error:
        report.fail("settings", f"cannot be used: {error}", problem=HOME_PROBLEM)
        return None
    check_home(report, home)
    settings = check_settings(report, loader)
    await check_database(report, loader)
    if settings is not None:
        _check_model(report, loader, settings)
    check_resident(report, loader)
    return settings


def _check_model(report: DoctorReport, loader: Loader, settings: Settings) -> None:
    check_model(report, settings)
    list_providers(report, loader)
    check_programs(report, settings)
