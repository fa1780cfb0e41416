"""The error of a launcher that could not execute the program of a command."""

from __future__ import annotations

import errno

import pytest

from parley.sandbox.launcher_output import LauncherOutput
from parley.wire.events import OutputStream

ERROR = b"bwrap: execvp ./script: No such file or directory\n"


class Shown:
    """The output that was passed on, and the error number before the held bytes are released."""

    def __init__(self, *written: tuple[OutputStream, bytes]) -> None:
        self.output: list[tuple[OutputStream, bytes]] = []
        launched = LauncherOutput(lambda stream, data: self.output.append((stream, data)), b"./script")
        for stream, data in written:
            launched(stream, data)
        self.number = launched.error_number
        self.before_release = len(self.output)
        launched.release()


def test_an_error_that_arrives_in_pieces_is_held_back() -> None:
    shown = Shown(*(("stderr", ERROR[at : at + 1]) for at in range(len(ERROR))))

    assert (shown.number, shown.before_release) == (errno.ENOENT, 0)
    assert shown.output == [("stderr", ERROR)]


@pytest.mark.parametrize(
    "text",
    [
        b"other",
        b"bwrap: execvp ./scripted: No such file or directory\n",
        ERROR + b"x" * 128,
    ],
)
def test_other_output_is_passed_on_at_once(text: bytes) -> None:
    shown = Shown(("stderr", text))

    assert (shown.number, shown.before_release, shown.output) == (None, 1, [("stderr", text)])


def test_output_keeps_its_order_when_the_command_has_written_the_text() -> None:
    shown = Shown(("stderr", ERROR), ("stdout", b"out"), ("stderr", ERROR))

    assert (shown.number, shown.output) == (None, [("stderr", ERROR), ("stdout", b"out"), ("stderr", ERROR)])
