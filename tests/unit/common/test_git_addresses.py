"""The addresses of repositories (`parley.common.git_addresses`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.common.git_addresses import EXPECTED_ADDRESS, GitAddress, parse_git_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/git/app.git", GitAddress("/srv/git/app.git", "file", "/srv/git/app.git")),
        ("file:///srv/my%20app.git", GitAddress("file:///srv/my%20app.git", "file", "/srv/my app.git")),
        ("ssh://git@example.com:22/app.git", GitAddress("ssh://git@example.com:22/app.git", "ssh")),
        ("git@example.com:team/app.git", GitAddress("git@example.com:team/app.git", "ssh")),
        ("https://example.com/app.git", GitAddress("https://example.com/app.git", "https")),
        (
            "https://ada:p%40ss@example.com:8443/app.git",
            GitAddress("https://example.com:8443/app.git", "https", None, "ada", "p@ss"),
        ),
        ("http://127.0.0.1:8080/app.git", GitAddress("http://127.0.0.1:8080/app.git", "http")),
        ("http://[::1]/app.git", GitAddress("http://[::1]/app.git", "http")),
    ],
)
def test_an_address_is_split_from_its_password(text: str, expected: GitAddress) -> None:
    assert parse_git_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relative/path",
        "-uploadpack=touch /tmp/x",
        "ext::sh -c touch% /tmp/x",
        "fd::7",
        "git://example.com/app.git",
        "ftp://example.com/app.git",
        "http://example.com/app.git",
        "https:///app.git",
        "https://example.com",
        "https://example.com/app.git?token=secret",
        "https://example.com/app.git#secret",
        "https://-oProxyCommand=x/app.git",
        "https://example.com:0/app.git",
        "https://example.com:99999/app.git",
        "https://exa mple.com/app.git",
        "https://example.com/a\nb",
        "https://ex\u0430mple.com/app.git",
        "ssh://-oProxyCommand=touch/app.git",
        "ssh://-x@example.com/app.git",
        "ssh://git:password@example.com/app.git",
        "-x@example.com:app.git",
        "git@-oProxyCommand=x:app.git",
        "git@example.com:-app.git",
        "git@example.com:a::b",
        "example.com:app.git",
        "file://host/app.git",
        "file:////host/app.git",
        "file:///a%0ab",
    ],
)
def test_other_addresses_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_git_address(text)

    assert not text or text not in str(raised.value)


@given(st.text(st.characters(max_codepoint=0x17F), max_size=60) | st.from_regex(r"(https|ssh|file|http)://[ -~]*"))
def test_an_accepted_address_uses_one_of_the_protocols(text: str) -> None:
    try:
        found = parse_git_address(text)
    except ValueError:
        return
    assert found.protocol in ("file", "http", "https", "ssh")
    assert not found.url.startswith("-")
    assert "::" not in found.url.partition("[")[0] or found.protocol == "file"


def test_the_error_names_the_valid_forms() -> None:
    with pytest.raises(ValueError, match="https://, ssh://, file:///"):
        parse_git_address("svn://example.com")
    assert "USER@HOST:" in EXPECTED_ADDRESS
