"""The lines that precede the protocol on the socket of a resident server: `parley.common.resident_socket`."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from parley.common.resident_socket import NoResident, Refused, ask, connect, decode_answer, encode_line, open_socket


def test_a_line_names_its_kind_and_version_and_keeps_bytes_that_are_not_utf_8() -> None:
    line = encode_line("relay", env={"NAME": os.fsdecode(b"\xff")}, cwd="/")

    assert json.loads(line) == {"parley": "relay", "v": 1, "env": {"NAME": "\udcff"}, "cwd": "/"}
    assert line.isascii()
    assert line.endswith(b"}\n")


def test_an_answer_is_accepted_or_refused_with_its_reason() -> None:
    assert decode_answer(b'{"ok": true, "client": 3}')["client"] == 3
    for line, reason in (
        (b'{"ok": false, "reason": "it is stopping"}', "it is stopping"),
        (b'{"ok": 1}', "it gave no reason"),
        (b"[]", "it gave no reason"),
    ):
        with pytest.raises(Refused, match=reason):
            decode_answer(line)
    with pytest.raises(NoResident, match="not JSON"):
        decode_answer(b"HTTP/1.1 400 Bad Request")


def test_a_home_without_a_server_has_no_resident(tmp_path: Path) -> None:
    with pytest.raises(NoResident, match=r"^$"):
        connect(str(tmp_path))
    (tmp_path / "serve.sock").write_text("no socket")
    with pytest.raises(NoResident, match=r"^$"):
        connect(str(tmp_path))


def test_a_home_whose_path_is_too_long_for_a_socket_can_be_used(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 120)
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "short"))
        os.rename(tmp_path / "short", home / "serve.sock")
        listener.listen()
        connect(str(home)).close()
        open_socket(str(home / "serve.sock"), timeout_seconds=0).close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the resident server ended during the handshake"),
        (b'{"ok": tr', "the resident server ended during the handshake"),
        (b"x" * 100_000, "the resident server sent a response of more than 65,536 bytes"),
        (b"x" * 65_536 + b"\n", "the resident server sent a response of more than 65,536 bytes"),
    ],
)
def test_a_server_that_ends_or_talks_too_long_is_no_resident(answer: bytes, why: str) -> None:
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            theirs.recv(4096)
            try:
                theirs.sendall(answer)
            except OSError:
                pass  # the client has read enough

    server = threading.Thread(target=serve)
    server.start()
    with ours, pytest.raises(NoResident, match=f"^{why}$"):
        ask(ours, "status")
    server.join()
