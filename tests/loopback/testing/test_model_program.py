"""`python -m parley.testing` on a port that is in use."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest


def refusal(port: str) -> str:
    program = (sys.executable, "-m", "parley.testing", "--port", port)
    done = subprocess.run(
        program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode != 0) == ("", True)
    return done.stderr


def test_a_port_that_is_in_use_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert refusal(str(port)) == (
            f"python -m parley.testing: cannot listen on 127.0.0.1:{port}: Address already in use\n"
        )


@pytest.mark.parametrize("port", ["65536", "http", "-1"])
def test_an_invalid_port_is_refused_with_the_range(port: str) -> None:
    assert f"expected a number from 0 to 65535, got {port!r}" in refusal(port)
