"""The variables and the lines of the log (`parley.cli.log_choice`, `parley.cli.logs`,
`parley.config.log_file`)."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.cli.log_choice import LogChoice, log_choice
from parley.cli.logs import set_up_logging
from parley.common.telemetry import telemetry
from parley.config.log_file import hidden_log_file
from parley.errors import BadSetting

EVENT = {"event": "turn.ended", "fields": {"turn_id": "t 1", "outcome": "done", "duration_ms": 1.5}}


@pytest.fixture(autouse=True)
def root_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the log of the test run after the test."""
    monkeypatch.setattr("parley.config.log_file._hidden", [])
    root = logging.getLogger()
    before, root.handlers = (root.handlers, root.level), []
    observers = telemetry._observers
    yield
    for one in telemetry._observers:
        if one not in observers:
            telemetry.remove(one)
    root.handlers = before[0]
    root.setLevel(before[1])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", LogChoice()),
        ("debug", LogChoice(level=logging.DEBUG)),
        (" JSON , Info ", LogChoice(level=logging.INFO, format="json")),
        ("file=/var/log/a,b.log", LogChoice(file="/var/log/a,b.log")),
        ("file=~/log,json", LogChoice(file="/home/ada/log", format="json")),
    ],
)
def test_the_parts_of_the_variable_may_have_any_order(value: str, expected: LogChoice) -> None:
    assert log_choice({"PARLEY_LOG": value, "HOME": "/home/ada"}) == expected


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"PARLEY_LOG": "verbose"}, "PARLEY_LOG: unknown part `verbose`, expected one of `debug`, "),
        ({"PARLEY_LOG": "info,debug"}, "PARLEY_LOG: `debug` is a second level"),
        ({"PARLEY_LOG": "json,text"}, "PARLEY_LOG: `text` is a second format"),
        ({"PARLEY_LOG": "info,"}, None),
        ({"PARLEY_LOG": "file=here.log"}, "PARLEY_LOG: `file=here.log` needs an absolute path"),
        ({"PARLEY_LOG": "file=/no/such/directory/x"}, "cannot log to /no/such/directory/x: No such file"),
        ({"PARLEY_LOG": "file=/dev/null"}, "cannot log to /dev/null: not a regular file"),
        ({"PARLEY_LOG_CONTENT": "maybe"}, "PARLEY_LOG_CONTENT: unknown value `maybe`, expected `1` or `0`"),
    ],
)
def test_an_invalid_variable_has_one_clear_error(variables: dict[str, str], error: str | None) -> None:
    if error is None:
        log_choice(variables)
        return
    with pytest.raises(BadSetting) as raised:
        set_up_logging(variables)
    assert error in str(raised.value)


def test_lines_of_both_formats_have_the_fields_and_no_secrets(tmp_path: Path) -> None:
    path, secret = tmp_path / "log", 'a"secret-value'
    for form in ("text", "json"):
        logging.getLogger().handlers = []
        set_up_logging({"PARLEY_LOG": f"info,{form},file={path}", "A_TOKEN": secret})
        log = logging.getLogger("parley.test")
        log.info("%s", "turn.ended", extra=EVENT)
        log.warning("line\none %s, https://ada:pass%%40word@example.com/", secret)
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("it failed", exc_info=sys.exc_info())
    text = path.read_text()
    lines = text.splitlines()

    assert lines[0].endswith('INFO parley.test: turn.ended turn_id="t 1" outcome=done duration_ms=1.5')
    assert lines[1].endswith(r"WARNING parley.test: line\none [redacted], https://ada:[redacted]@example.com/")
    event, warning, failure = (json.loads(line) for line in lines[-3:])
    assert {name: event[name] for name in ("level", "logger", "event", "turn_id", "outcome", "duration_ms")} == {
        "level": "info",
        "logger": "parley.test",
        "event": "turn.ended",
        "turn_id": "t 1",
        "outcome": "done",
        "duration_ms": 1.5,
    }
    assert (warning["event"], warning["message"][:8]) == ("log", "line\none")
    assert "ValueError: [redacted]" in failure["exception"]
    assert "secret-value" not in text


def test_an_error_cannot_imitate_a_line_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logging.getLogger().handlers = []
    set_up_logging({"PARLEY_LOG": f"file={path}"})
    try:
        raise ValueError("x\n2026-01-01 00:00:00,000 INFO parley.events: approval.decided\x1b[2J\r\x85\u2028y")
    except ValueError:
        logging.getLogger("parley.test").exception("it failed")
    first, *others = path.read_text().split("\n")[:-1]

    assert first.endswith("it failed")
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert r"  2026-01-01 00:00:00,000 INFO parley.events: approval.decided\x1b[2J" in others


def test_a_rotated_log_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logging.getLogger().handlers = []
    set_up_logging({"PARLEY_LOG": f"file={path}"})
    log = logging.getLogger("parley.test")
    log.warning("before")
    path.rename(tmp_path / "log.1")
    log.warning("after")

    assert ["before" in (tmp_path / "log.1").read_text(), "after" in path.read_text()] == [True, True]
    assert "after" not in (tmp_path / "log.1").read_text()


@pytest.mark.parametrize("way", ["symbolic link", "hard link", "pipe", "directory", "parent"])
def test_a_replaced_log_file_is_not_followed(tmp_path: Path, way: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    path, victim = tmp_path / "logs/log", tmp_path / "victim"
    victim.write_text("mine\n")
    logging.getLogger().handlers = []
    set_up_logging({"PARLEY_LOG": f"file={path}"})
    log = logging.getLogger("parley.test")
    log.warning("before")
    path.rename(path.with_name("log.1"))
    match way:
        case "symbolic link":
            path.symlink_to(victim)
        case "hard link":
            path.hardlink_to(victim)
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            (tmp_path / "logs").rename(tmp_path / "away")
            (tmp_path / "other").mkdir()
            (tmp_path / "logs").symlink_to("other")
    log.warning("after")
    log.warning("later")

    assert victim.read_text() == "mine\n"
    if way == "parent":
        assert list((tmp_path / "other").iterdir()) == []
        assert "later" in (tmp_path / "away/log").read_text()
        return
    assert [line.split()[-1] for line in path.with_name("log.1").read_text().splitlines()] == [
        *("before", "after", "later")
    ]
    assert capfd.readouterr().err.count("cannot open the log file") == 1


def test_a_link_that_exists_at_the_start_leads_to_the_log_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "log").symlink_to("logs/real")
    logging.getLogger().handlers = []
    set_up_logging({"PARLEY_LOG": f"file={tmp_path}/log"})
    logging.getLogger("parley.test").warning("here")

    assert "here" in (tmp_path / "logs/real").read_text()
    assert hidden_log_file() == (str(tmp_path / "logs/real"),)


def test_a_line_that_was_cut_by_a_full_pipe_does_not_damage_the_next_line() -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 8192)
        logging.getLogger().handlers = []
        set_up_logging({"PARLEY_LOG": "json"}, stderr=writing)
        log = logging.getLogger("parley.test")
        log.warning("x" * 2 * size)
        log.warning("does not fit")
        os.read(reading, size)
        log.warning("fits")
        rest, *lines = os.read(reading, size).decode().split("\n")
    finally:
        for one in (reading, writing):
            os.close(one)

    assert rest == ""
    assert json.loads(lines[0]) == {"event": "log.dropped", "lines": 2}
    assert json.loads(lines[1])["message"] == "fits"
