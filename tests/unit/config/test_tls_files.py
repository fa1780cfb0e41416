"""The TLS files of the process."""

from __future__ import annotations

from parley.config.tls_files import forget_tls_files, hidden_tls_files, hide_tls_files


def test_earlier_files_stay_hidden_until_the_server_closes() -> None:
    hide_tls_files(["/a/cert", "/a/key"])
    hide_tls_files(["/b/cert", "/a/key"])
    hidden = hidden_tls_files()
    forget_tls_files()

    assert hidden == ("/a/cert", "/a/key", "/b/cert")
    assert hidden_tls_files() == ()
