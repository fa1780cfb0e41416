"""Finds the HTTP proxy that an environment names for a URL, and recognises URLs that need no proxy."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_loopback", "is_on_this_computer", "proxy_for"]


def is_loopback(host: str) -> bool:
    """Return whether a host name or an IP address names this computer."""
    from ipaddress import ip_address  # imported here: start-up does not need this module

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_on_this_computer(url: str) -> bool:
    """Return whether the server at a URL runs on this computer. Requests to such a server must not use a proxy: the
    proxy could not reach the server, and would get the secrets in the requests.
    """
    from urllib.parse import urlsplit  # imported here: start-up does not need this module

    return is_loopback(urlsplit(url).hostname or "")


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that an environment names for a URL, or None if the environment names no proxy. A variable
    in lower case takes precedence over the same variable in upper case.

    The HTTP library's own look-up is not used, because it reads the environment of this process instead of
    `environ`. It would also read passwords from `~/.netrc`, and the library rejects a request that has both an API
    key and a password.
    """
    named = {name: value for name, value in environ.items() if value and name[-6:].lower() == "_proxy"}
    if not named:
        return None
    from urllib.parse import urlsplit  # imported here: start-up does not need this module

    # The variable in lower case sorts last and takes precedence.
    proxies = {name[:-6].lower(): value for name, value in sorted(named.items())}
    if "REQUEST_METHOD" in environ and "http_proxy" not in environ:
        proxies.pop("http", None)  # in a CGI program, `HTTP_PROXY` comes from a request header
    parts = urlsplit(url)
    if parts.hostname is None or _needs_no_proxy(parts.hostname, parts.netloc, proxies.get("no", "")):
        return None
    return proxies.get(parts.scheme)


def _needs_no_proxy(host: str, host_with_port: str, without: str) -> bool:
    """Return whether the list `without` (the value of `no_proxy`) contains a host, with or without its port, or one
    of the host's parent domains. The item `*` matches every host.
    """
    for name in (one.strip().lstrip(".").lower() for one in without.split(",")):
        if name == "*" or (name and any(f".{one}".endswith(f".{name}") for one in (host, host_with_port.lower()))):
            return True
    return False
