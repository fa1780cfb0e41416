"""Measures commands of a terminal and of scripts with a running resident server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Final

from bench.pipe import Gone
from bench.report import BARE, Row
from bench.resident import Resident, resident
from bench.servers import Parley
from bench.startup import bare_start

__all__ = ["cli"]

STARTS: Final = 15
PROGRAM: Final = (sys.executable, "-P", "-m", "parley")
NOTE: Final = f'median of {STARTS}; {BARE} is a complete run of `python -c "import asyncio, msgspec"`'


def cli(base_url: str) -> list[Row]:
    bare, listed, accepted = [], [], []
    with resident(base_url) as server:
        for _ in range(STARTS):
            bare.append(bare_start())
            listed.append(_list(server))
            accepted.append(_send(server))
    return [
        Row(
            what=what,
            unit="ms",
            values={Parley.name: median(times) * 1000, BARE: median(bare) * 1000},
            notes=(NOTE,),
        )
        for what, times in (
            ("complete run of `parley ls`", listed),
            ("start of `parley exec` to accepted message", accepted),
        )
    ]


def _list(server: Resident) -> float:
    began = time.perf_counter()
    subprocess.run((*PROGRAM, "ls"), env=server.environ, cwd=server.work, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _send(server: Resident) -> float:
    """Return the time until the resident server has accepted the message of `parley exec`."""
    began = time.perf_counter()
    with subprocess.Popen(
        (*PROGRAM, "exec", "hi", "--json"),
        env=server.environ,
        cwd=server.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        accepted = None
        for line in process.stdout:
            if accepted is None and json.loads(line)["type"] == "message":
                accepted = time.perf_counter() - began
    if accepted is None or process.returncode != 0:
        raise Gone(f"parley exec exited with {process.returncode}")
    return accepted
