"""The resident server as a service: its notifications to systemd, and the files in `packaging/`."""

from __future__ import annotations

import asyncio
import configparser
import plistlib
import signal
import socket
from pathlib import Path

import pytest

from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import ScriptedModel

PACKAGING = Path(__file__).parents[2] / "packaging"


@pytest.mark.child_process
@pytest.mark.promises("resident.systemd")
async def test_systemd_is_notified_when_the_server_is_ready_and_when_it_stops(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    notify_socket = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(notify_socket)
        systemd.settimeout(TIMEOUT_SECONDS)
        async with ResidentProcess(
            parley_model, tmp_path / "home", env={"NOTIFY_SOCKET": notify_socket}
        ) as resident:
            ready = await asyncio.to_thread(systemd.recv, 100)
            resident.process.send_signal(signal.SIGHUP)
            resident.process.send_signal(signal.SIGTERM)
            stopping = await asyncio.to_thread(systemd.recv, 100)
            code = await resident.process.wait()

    assert (ready, stopping, code) == (b"READY=1", b"STOPPING=1", 0)


def test_the_unit_waits_for_the_notification_and_signals_the_server_alone() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read(PACKAGING / "parley.service")

    service = unit["Service"]
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert int(service["TimeoutStopSec"]) > 30


def test_the_agent_of_launchd_starts_the_server() -> None:
    agent = plistlib.loads((PACKAGING / "parley.plist").read_bytes())

    assert agent["ProgramArguments"][1:] == ["serve"]
    assert agent["ExitTimeOut"] > 30
