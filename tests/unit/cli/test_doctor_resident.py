"""The check of the resident server in `parley doctor` (`parley.cli.doctor_resident`)."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest

from kit.system.ports import free_port
from parley.cli import doctor_resident
from parley.cli.doctor_report import DoctorReport
from parley.config.load import Loader
from parley.version import __version__


def test_a_server_that_answers_on_its_socket_but_not_on_its_port_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}/mcp"
    status: dict[str, Any] = {"pid": 1, "version": __version__, "started": 0, "stopping": False}
    status |= {"url": url, "own_url": url, "listens_on": "127.0.0.1"}
    monkeypatch.setattr(doctor_resident, "connect", lambda home: nullcontext())
    monkeypatch.setattr(doctor_resident, "ask", lambda channel, kind: status)
    report = DoctorReport(as_json=False)
    doctor_resident.check_resident(report, Loader(environ=os.environ, server_dir="/", home="/nowhere"))
    report.verdict()

    assert report.exit_code == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"address     {url} cannot be reached: Connection refused (os error 111)",
        "to do       restart it: `parley serve --stop`, and then `parley serve`",
        "verdict     not ready: the resident server does not accept HTTP connections",
    ]
