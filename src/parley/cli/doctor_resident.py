"""The part of `parley doctor` that checks the resident server of the home."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from parley.cli.doctor_report import DoctorReport
from parley.common.os_errors import os_detail
from parley.common.resident_socket import NoResident, Refused, ask, connect
from parley.config.load import Loader
from parley.version import __version__

__all__ = ["check_resident"]

CONNECT_SECONDS: Final = 5.0
RESTART: Final = "restart it: `parley serve --stop`, and then `parley serve`"


def check_resident(report: DoctorReport, loader: Loader) -> None:
    """Check whether a resident server is running and reachable, and whether the server uses the installed version
    of Parley and the current settings.
    """
    from parley.app.discovery import describe_holder, is_running

    home = loader.home
    try:
        with connect(home) as channel:
            status = ask(channel, "status")
    except NoResident as error:
        detail = str(error)
        if not is_running(home):
            report.info("resident", "not running (`parley serve` starts it)")
            return
        report.fail(
            "resident",
            f"runs as {describe_holder(home)}, but cannot be reached: {detail or 'its socket was removed'}",
            problem="the resident server does not answer",
            to_do="wait a few seconds until the server has created its socket again; if it hangs, end the process",
        )
    except Refused as error:
        report.fail(
            "resident",
            f"refused to report its status: {error}",
            problem="the resident server does not answer",
            to_do=RESTART,
        )
    else:
        _check_status(report, status)


def _check_status(report: DoctorReport, status: Mapping[str, Any]) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["started"]))
    stopping = ", stopping" if status["stopping"] else ""
    report.ok("resident", f"process {status['pid']}, Parley {status['version']}, since {since}{stopping}")
    if node := status.get("node"):
        report.info("resident", f"is the node {node}")
    if status["version"] != __version__:
        report.warn("resident", f"has another version than this command, {__version__}", to_do=RESTART)
    if changed := status.get("changed_settings"):
        report.warn(
            "resident",
            f"was started before these settings were changed in config.toml: {', '.join(changed)}",
            to_do=RESTART,
        )
    if status.get("store") not in ("available", None):
        report.fail(
            "resident",
            "cannot reach its database",
            problem="the resident server cannot reach its database",
            to_do="check whether the database server runs; the resident server then continues by itself",
        )
    if own_url := status.get("own_url"):
        _check_own_url(report, own_url, status["listens_on"])
        if status["url"] != own_url:
            _check_public_url(report, status["url"])


def _check_own_url(report: DoctorReport, url: str, host: str) -> None:
    """Check that the resident server accepts connections at `url`, its own URL. `host` is the address on which the
    server listens.
    """
    if (why := _why_unreachable(url)) is not None:
        report.fail(
            "address",
            f"{url} cannot be reached: {why}",
            problem="the resident server does not accept HTTP connections",
            to_do=RESTART,
        )
        return
    others = "this computer only" if _is_loopback(host) else "other computers can connect, with a token"
    report.ok("address", f"{url}, {others}")


def _check_public_url(report: DoctorReport, url: str) -> None:
    """Print whether this computer can reach `url`, the URL of a proxy in front of the server. A failure does not
    count as a problem, because clients on other computers may be able to reach the proxy.
    """
    shown = f"{url} (serve.public_url)"
    if (why := _why_unreachable(url)) is None:
        report.ok("address", f"{shown} can be reached from this computer")
    else:
        report.info(
            "address",
            f"{shown} cannot be reached from this computer: {why}; clients on other computers may reach it",
        )


def _why_unreachable(url: str) -> str | None:
    """Return the reason why no connection to the host of `url` can be established; None if a connection was
    established.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return os_detail(error)
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
