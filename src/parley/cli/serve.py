"""`parley serve`: runs the resident server of the home, reports the server's status, or stops the server."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from parley.app.signals import SIGNALS
from parley.cli.runner import CommandFailed, UsageError, add_config_option
from parley.cli.settings import settings_loader
from parley.config.working_directory import absolute_path
from parley.wire.text import visible

if TYPE_CHECKING:
    import argparse

    from parley.app.http_choice import HttpChoice

__all__ = ["ALREADY_RUNNING", "DESCRIPTION", "NOT_RUNNING", "configure", "run"]

DESCRIPTION: Final = """\
Run the resident server of the home (PARLEY_HOME, else CODEX_HOME, else ~/.parley)
until it is stopped. While it runs, `parley mcp` connects its client to it, and turns
continue after the client has disconnected. There is one resident server for each
home; a second one reports the first and exits with 4.

The server prints the URL of its web page with a one-time code. The code is valid
once, within a minute. --sign-in prints a new URL while the server is running.

SIGTERM, Ctrl-C and --stop let running turns end, for at most `serve.drain_seconds`
(30); a second signal interrupts them immediately. --drain lets them end without a
limit, and --stop then adds the limit. In both cases, the server refuses new clients
and begins no more turns; if the server is a node, other nodes begin the new turns.

Logs go to stderr; PARLEY_LOG sets their level (debug, info, warning, error), their
format (text, json) and their file (file=PATH), for example PARLEY_LOG=info,json.
SIGHUP reloads the settings, the tokens and the certificate.

exit code: 0 after an orderly stop, 2 for wrong arguments or settings, 3 if --status,
--sign-in, --stop or --drain finds no server, 4 if a server already runs, otherwise 1."""

NOT_RUNNING: Final = 3
ALREADY_RUNNING: Final = 4

REACH_SECONDS: Final = 5.0
"""The maximum time, in seconds, for which `--stop` and `--drain` try to reach a server that is running but refuses
connections. The server may be about to exit, or may create its socket again.
"""
REACH_AGAIN_SECONDS: Final = 0.1
"""The time, in seconds, between two attempts of `--stop` and `--drain` to reach the server."""


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--status", action="store_true", help="report the status of the resident server; exit with 3 if none runs"
    )
    what.add_argument(
        "--sign-in",
        action="store_true",
        help="print the URL of the web page with a new one-time code; exit with 3 if no server runs",
    )
    what.add_argument(
        "--stop",
        action="store_true",
        help="stop the resident server and wait until it has ended; exit with 3 if none runs",
    )
    what.add_argument(
        "--drain",
        action="store_true",
        help="like --stop, but never interrupt a turn: wait until all running turns have ended",
    )
    what.add_argument(
        "--exit-when-idle",
        action="store_true",
        help="exit after `serve.idle_exit_minutes` (30) without clients and turns",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON when ready, or print the report as JSON"
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="also listen on a unix socket at this path, for clients of this user"
    )
    http = parser.add_argument_group(
        "HTTP",
        "These options override `serve.host`, `serve.port`, and so on. Clients need a token.\n"
        "`parley token create` creates a token. --json prints a token that is valid while\n"
        "the server runs. PARLEY_SERVE_TOKEN sets that token.",
    )
    http.add_argument("--no-http", action="store_true", help="listen on the socket of the home only")
    http.add_argument("--host", help="the address or name to listen on (default: 127.0.0.1)")
    http.add_argument("--port", type=int, help="the port to listen on; 0, the default, takes a free one")
    http.add_argument("--tls-cert", metavar="FILE", help="the certificate chain, in PEM format")
    http.add_argument("--tls-key", metavar="FILE", help="the private key of the certificate")
    add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    if (args.status or args.stop or args.drain or args.sign_in) and args.config:
        raise UsageError("-c has no effect on a server that is already running")
    if args.port is not None and not 0 <= args.port <= 65_535:
        raise UsageError(f"invalid --port {args.port} (choose from 0 to 65535)")
    if args.status:
        return _report(_ask("status"), as_json=args.json)
    if args.sign_in:
        page = _ask("sign-in")["page"]
        print(json.dumps({"page": page}) if args.json else visible(page))
        return 0
    if args.stop or args.drain:
        return _stop("stop" if args.stop else "drain", as_json=args.json)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the server unblocks them with its own handlers
    import asyncio

    from parley.app.run_resident import AlreadyRunning, run_resident
    from parley.cli.logs import set_up_logging

    def ready(description: Mapping[str, Any]) -> None:
        where = " and ".join(filter(None, (description["url"], description["socket"])))
        if args.json:
            print(json.dumps(description), flush=True)
            return
        print(f"serving {visible(where)}, as process {os.getpid()}", flush=True)
        if description["page"] is not None:
            print(f"page    {visible(description['page'])}", flush=True)

    try:
        set_up_logging(os.environ)
        asyncio.run(
            run_resident(
                args.config,
                exits_when_idle=args.exit_when_idle,
                http=_http_choice(args),
                socket_path=None if args.socket is None else absolute_path(args.socket),
                ready=ready,
            )
        )
    except AlreadyRunning as error:
        if args.json:
            print(json.dumps({**error.description, "running": True}))
        known = (error.description.get("url"), error.description.get("socket"))
        where = " and ".join(filter(None, known)) or "an unknown address"
        to_do = "" if args.no_http else _how_to_get_page(has_page=known[0] is not None)
        raise CommandFailed(f"{error}, at {where}{to_do}", code=ALREADY_RUNNING) from None
    return 0


def _how_to_get_page(*, has_page: bool) -> str:
    """Return the end of the error message for a server that is already running. If `has_page` is True, the returned
    text explains how to open the web page of the server. Otherwise, it explains how to start a server with a page.
    """
    if has_page:
        return "; `parley serve --sign-in` prints a URL of its web page"
    return (
        ", without a web page; `parley serve --stop` stops it, and `parley serve` then starts one with a page; "
        "open chats reconnect"
    )


def _http_choice(args: argparse.Namespace) -> HttpChoice | None:
    from parley.app.http_choice import TOKEN_VARIABLE, HttpChoice

    token = os.environ.pop(TOKEN_VARIABLE, None)  # child processes must not inherit the token
    if args.no_http:
        return None
    return HttpChoice(
        host=args.host,
        port=args.port,
        tls_cert=None if args.tls_cert is None else absolute_path(args.tls_cert),
        tls_key=None if args.tls_key is None else absolute_path(args.tls_key),
        token=token or None,
        creates_token=args.json,
    )


class _Unreachable(CommandFailed):
    """Raised when a resident server is running but cannot be reached."""


def _ask(kind: str) -> dict[str, Any]:
    from parley.common.resident_socket import NoResident, Refused, ask, connect

    home = settings_loader().home
    try:
        with connect(home) as channel:
            return ask(channel, kind)
    except NoResident as error:
        from parley.app.discovery import describe_holder, is_running

        if is_running(home):
            holder, detail = describe_holder(home), str(error) or "its socket was removed"
            raise _Unreachable(
                f"the resident server runs as {holder}, but cannot be reached: {detail}; it listens again "
                "within a few seconds, unless it hangs"
            ) from None
        raise CommandFailed(str(error) or f"no resident server of {home} runs", code=NOT_RUNNING) from None
    except Refused as error:
        raise CommandFailed(f"the resident server refused: {error}") from None


def _report(status: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({name: value for name, value in status.items() if name != "ok"}))
        return 0
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["started"]))
    print(f"process {status['pid']}, Parley {status['version']}, since {since}")
    print(f"socket  {visible(status['socket'])}")
    if status.get("url"):
        print(f"address {visible(status['url'])}")
    print(f"clients {status['clients']}, running turns {status['turns']}")
    if status["node"]:
        print(f"node    {status['node']}")
    elif status["not_a_node"]:
        print(f"node    not a node: {status['not_a_node']}")
    if status.get("store") not in ("available", None):
        print("the server cannot reach its database")
    if status["stopping"]:
        print("the server is stopping")
    return 0


def _ask_to_end(kind: str) -> dict[str, Any] | None:
    """Send the request `kind`, `stop` or `drain`, to the resident server, and return the response. If the server
    exited before it could be reached, return None. After `drain`, the server waits for its running turns without a
    time limit.

    Raises:
        CommandFailed: no resident server is running, the server cannot be reached within `REACH_SECONDS`, or the
            server rejected the request.
    """
    until, was_running = time.monotonic() + REACH_SECONDS, False
    while True:
        try:
            return _ask(kind)
        except _Unreachable:
            if time.monotonic() > until:
                raise
            was_running = True
        except CommandFailed as error:
            if was_running and error.code == NOT_RUNNING:
                return None
            raise
        time.sleep(REACH_AGAIN_SECONDS)


def _stop(kind: str, *, as_json: bool) -> int:
    from parley.app.discovery import wait_until_stopped

    if (stopped := _ask_to_end(kind)) is None:
        if as_json:
            print(json.dumps({"pid": None, "stopped": True}))
        return 0
    if not as_json:
        how = "stopping" if kind == "stop" else "draining"
        print(f"{how} process {stopped['pid']}; running turns end first", file=sys.stderr)
    try:
        wait_until_stopped(settings_loader().home)
    except OSError as error:
        raise CommandFailed(f"cannot wait until it has ended: {error.strerror}") from None
    if as_json:
        print(json.dumps({"pid": stopped["pid"], "stopped": True}))
    return 0
