"""The options `--url` and `--token-env`, which select the server that a command uses over HTTP."""

from __future__ import annotations

import argparse
import os
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from parley.cli.runner import UsageError
from parley.common.proxies import is_loopback
from parley.common.secret_values import shown_url

__all__ = ["TOKEN_VARIABLE", "ServerAddress", "add_server_options", "server_address"]

TOKEN_VARIABLE: Final = "PARLEY_TOKEN"
ENDPOINT: Final = "/mcp"
"""The path of the MCP endpoint. This path is added to a URL without a path."""


class ServerAddress(NamedTuple):
    """The URL of the server that `--url` selects, with the token for the server."""

    url: str
    token: str | None
    """The token; None if requests contain no token."""
    token_variable: str
    """The name of the environment variable from which the token is read."""

    @property
    def shown(self) -> str:
        """The URL without the parts that may contain secrets."""
        return shown_url(self.url)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--url` and `--token-env`, for commands that use conversations."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="use the server at this URL, such as https://parley.example/mcp, instead of the home; the token is "
        f"read from the environment variable {TOKEN_VARIABLE}",
    )
    parser.add_argument(
        "--token-env", metavar="NAME", help=f"read the token for --url from this variable, not {TOKEN_VARIABLE}"
    )


def server_address(args: argparse.Namespace) -> ServerAddress | None:
    """Return the server that the options of a command select; None if the command uses the home.

    Raises:
        UsageError: the URL or the token cannot be used, or the options contradict each other.
    """
    if args.url is None:
        if args.token_env is not None:
            raise UsageError("--token-env requires --url")
        return None
    for option, given in (("-c", getattr(args, "config", None)), ("--resident", getattr(args, "resident", False))):
        if given:
            raise UsageError(f"{option} has no effect on the server at a URL; leave out {option} or --url")
    url = _endpoint(args.url)
    variable = args.token_env or TOKEN_VARIABLE
    token = os.environ.get(variable, "").strip()
    if not token and args.token_env is not None:
        raise UsageError(f"--token-env: the environment variable {variable} is not set")
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"the environment variable {variable} contains characters that no token has")
    if token and url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise UsageError(
            f"--url: the token would be sent to {url.hostname} without encryption; use an https URL, or forward a "
            "port with ssh"
        )
    return ServerAddress(urlunsplit(url), token or None, variable)


def _endpoint(given: str) -> SplitResult:
    """Return the parts of the URL of a server. If the URL has no path, add the path of the MCP endpoint."""
    try:
        url = urlsplit(given)
        port = url.port
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise UsageError(f"invalid --url {given!r}: expected a URL such as https://parley.example/mcp")
    if url.username is not None or url.password is not None:
        raise UsageError(
            "--url contains a user name or a password, which other users of this computer can see; put the token "
            f"into the environment variable {TOKEN_VARIABLE}"
        )
    if url.fragment:
        raise UsageError(
            f"--url contains a fragment, such as the token of a link; put the token into {TOKEN_VARIABLE}"
        )
    return url if url.path not in ("", "/") else url._replace(path=ENDPOINT)
