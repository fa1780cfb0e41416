"""The relay, which copies bytes between the client of `parley mcp` and the resident server of the home directory.

The relay first sends one line of its own, the hello. Then the relay copies all bytes without interpreting them.
This module imports only the standard library, so that a relay starts faster than a server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from parley.app.signals import SIGNALS
from parley.common.resident_socket import RELAY, NoResident, Refused, ask, connect
from parley.config.installation import own_installation

__all__ = ["Relay"]

COPY_BYTES: Final = 256 * 1024

SERVER_ENDED: Final = 1
"""The exit code of `parley mcp` if the resident server closes the connection before the client leaves."""


class Relay:
    """The connection of one client to the resident server, in the client's `parley mcp` process."""

    def __init__(
        self, home: str, *, environ: Mapping[str, str], directory: str, overrides: Sequence[str] = ()
    ) -> None:
        """Connect to the server and send the hello. Nothing is read from the client yet. The hello contains
        `environ`, `directory` and `overrides`: the environment, the working directory and the command-line settings
        of `parley mcp`.

        Raises:
            NoResident: no resident server is running. This process must serve the client itself.
            Refused: the resident server refused the client. This process must serve the client itself.
        """
        self._home = home
        self._channel = connect(home)
        try:
            hello = ask(
                self._channel,
                RELAY,
                env=dict(environ),
                cwd=directory,
                overrides=list(overrides),
                installed=own_installation(),
            )
        except BaseException:
            self._channel.close()
            raise
        self._channel.settimeout(None)
        self._client_id = hello.get("client")
        self._is_closing = False
        """True if the relay ended the connection, because the client has left or a signal has arrived."""

    def run(self) -> int:
        """Copy bytes until the client or the server ends the connection, and return the exit code: 0 if the client
        has left or a signal has arrived, and `SERVER_ENDED` if the server has ended the connection first.
        """
        on_terminal = os.isatty(0)
        for number in SIGNALS:
            # Under `nohup`, SIGHUP stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt if number == signal.SIGINT and on_terminal else self._close)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        threading.Thread(target=self._copy_input, name="input", daemon=True).start()
        try:
            self._copy_output()
        except OSError:
            self._is_closing = True  # the client no longer reads
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a late signal must not change the exit code
        if self._is_closing:
            return 0
        with suppress(OSError):
            os.write(2, b"parley mcp: the resident server has ended\n")
        return SERVER_ENDED

    def _copy_input(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the main thread handles the signals
        try:
            while data := _read(0):
                self._channel.sendall(data)
        except OSError:
            pass  # the server has ended, which the other thread handles
        else:
            self._is_closing = True
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def _copy_output(self) -> None:
        """Copy bytes to the client until the server ends the connection.

        Raises:
            OSError: the client has closed its side.
        """
        buffer = memoryview(bytearray(COPY_BYTES))
        while size := self._receive(buffer):
            _write(1, buffer[:size])

    def _receive(self, buffer: memoryview) -> int:
        try:
            return self._channel.recv_into(buffer)
        except ConnectionError:
            return 0

    def _close(self, number: int, frame: FrameType | None) -> None:
        """End the connection. The server removes the client, whose turns continue unless a setting requires an
        interrupt. The arguments are those of a signal handler.
        """
        self._is_closing = True
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the turns of this client. If the client has no running turns, end the connection. The arguments
        are those of a signal handler.
        """
        try:
            with connect(self._home) as second:
                interrupted = ask(second, "interrupt", client=self._client_id).get("interrupted")
        except (NoResident, Refused):
            interrupted = 0
        if not interrupted:
            self._close(number, frame)


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, COPY_BYTES)
        except BlockingIOError:  # the client has made its pipe non-blocking
            _wait(fd, select.POLLIN)


def _write(fd: int, data: memoryview) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)


def _wait(fd: int, events: int) -> None:
    poll = select.poll()
    poll.register(fd, events)
    poll.poll()
