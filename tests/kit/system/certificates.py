"""Certificates for tests of TLS."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["make_certificate"]

REQUEST = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"


async def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for localhost and its key. Skip the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    cert, key = directory / "cert.pem", directory / "key.pem"
    process = await asyncio.create_subprocess_exec(
        *REQUEST.split(),
        *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors
    return cert, key
