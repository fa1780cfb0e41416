"""The server's log: one line for each message, on stderr or in a file.

Some clients do not read the server's stderr, and a full pipe must not block the server. Therefore, a line that does
not fit into the pipe is discarded. A line with the number of discarded lines precedes the next line that fits.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from parley.cli.log_choice import LOG_VARIABLE, log_choice
from parley.cli.log_events import LogObserver
from parley.common.os_errors import os_detail
from parley.common.secret_values import SecretValues
from parley.common.telemetry import telemetry
from parley.config.log_file import hide_log_file
from parley.errors import BadSetting
from parley.wire.text import visible

__all__ = ["JsonLine", "OneLine", "set_up_logging"]

_OPEN: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OneLine(logging.Formatter):
    """Formats a log message as one line, followed by the lines of the traceback if the message has one.

    Invisible characters, including the newlines in a message, are escaped. The fields of an event follow its name.
    The lines of a traceback are indented, because an error can contain text that looks like a line of the log.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        fields: dict[str, Any] = getattr(record, "fields", {})
        pairs = "".join(f" {name}={_word(value)}" for name, value in fields.items())
        return visible(super().formatMessage(record) + pairs)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        return "\n".join(f"  {visible(line)}" for line in super().formatException(ei).splitlines())


class JsonLine(logging.Formatter):
    """Formats a log message as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "log"),
        }
        if line["event"] == "log":
            line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # These members come last, so that no field of an event can replace one of them.
        return _as_json({**getattr(record, "fields", {}), **line})


class _Redacting(logging.Formatter):
    """Redacts secrets in the lines that another formatter returns."""

    def __init__(self, formatter: logging.Formatter, secrets: SecretValues) -> None:
        super().__init__()
        self._formatter, self._secrets = formatter, secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.redact(self._formatter.format(record))


class _NeverWaiting(logging.Handler):
    def __init__(self, fd: int, *, is_json: bool) -> None:
        super().__init__()
        self._fd, self._is_json = fd, is_json
        self._dropped = 0
        self._is_cut = False
        """True if only a part of the last line was written."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self._dropped:
            line = f"{self._note_of_dropped()}\n{line}"
        data = b"\n" * self._is_cut + line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            written = os.write(self._current(), data)
        except OSError:
            self._dropped += 1
        else:  # the rest of a line may not fit into the pipe or onto the disk
            self._is_cut = written < len(data)
            self._dropped = int(self._is_cut)

    def _note_of_dropped(self) -> str:
        if self._is_json:
            return _as_json({"event": "log.dropped", "lines": self._dropped})
        return f"({self._dropped} lines were dropped)"

    def _current(self) -> int:
        return self._fd


class _File(_NeverWaiting):
    """Writes the log to a file, and creates the file again if log rotation has renamed or removed it.

    A sandboxed command may be able to replace the file or its directory. Therefore, the server resolves symbolic
    links in the path and opens the directory only once, when the server starts. A new file is always opened in this
    directory. If the new file cannot be opened, is not a regular file, belongs to another user or has another hard
    link, the log continues in the old file.
    """

    def __init__(self, path: str, *, is_json: bool, stderr: int) -> None:
        self._path, self._stderr = os.path.realpath(path), stderr
        directory, self._file_name = os.path.split(self._path)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            descriptor = self._opened()
        except OSError:
            os.close(self._directory)
            raise
        super().__init__(descriptor, is_json=is_json)
        self._found = os.fstat(descriptor)
        self._has_warned = False
        hide_log_file(self._path)

    def _current(self) -> int:
        try:
            found = os.stat(self._file_name, dir_fd=self._directory, follow_symlinks=False)
            is_same = (found.st_dev, found.st_ino) == (self._found.st_dev, self._found.st_ino)
        except OSError:
            is_same = False
        if not is_same:
            self._reopen()
        return self._fd

    def _reopen(self) -> None:
        try:
            new = self._opened(owners=(os.geteuid(), self._found.st_uid))
        except OSError as error:
            self._warn(os_detail(error))
            return
        os.close(self._fd)
        self._fd, self._found, self._has_warned = new, os.fstat(new), False

    def _warn(self, why: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = f"parley: cannot open the log file {self._path} again ({why}); the log continues in the old file\n"
        descriptor = _own(self._stderr)
        with suppress(OSError):
            os.write(descriptor, f"{visible(text[:-1])}\n".encode("utf-8", "backslashreplace"))
        if descriptor != self._stderr:
            os.close(descriptor)

    def _opened(self, *, owners: tuple[int, ...] | None = None) -> int:
        """Open or create the file. If `owners` is not None, require that the file belongs to one of these users and
        has no other hard link.
        """
        descriptor = os.open(self._file_name, _OPEN, 0o600, dir_fd=self._directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            why = "not a regular file"
        elif owners is not None and found.st_uid not in owners:
            why = "the file belongs to another user"
        elif owners is not None and found.st_nlink != 1:
            why = "the file has another hard link"
        else:
            return descriptor
        os.close(descriptor)
        raise OSError(0, why)


def set_up_logging(environ: Mapping[str, str], *, stderr: int = 2) -> None:
    """Set up logging as `PARLEY_LOG` specifies. By default, the log is written to the descriptor `stderr`.

    Raises:
        BadSetting: the value of a variable is invalid, or the log file cannot be opened.
    """
    choice = log_choice(environ)
    try:
        is_json = choice.format == "json"
        if choice.file is None:
            handler = _NeverWaiting(_own(stderr), is_json=is_json)
        else:
            handler = _File(choice.file, is_json=is_json, stderr=stderr)
    except OSError as error:
        raise BadSetting(f"cannot log to {choice.file}: {os_detail(error)}", source=LOG_VARIABLE) from None
    text = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    formatter = JsonLine() if is_json else text
    handler.setFormatter(_Redacting(formatter, SecretValues(environ)))
    logging.basicConfig(level=choice.level, handlers=[handler])
    if choice.level <= logging.INFO:
        telemetry.add(LogObserver(has_content=choice.has_content))


def _word(value: object) -> str:
    """Return the value of a field as text for a line of the log.

    A value that contains spaces or quotation marks is put in quotation marks.
    """
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return _as_json(text) if not text or any(one in text for one in ' "=\\') or text != text.strip() else text


def _own(fd: int) -> int:
    """Open the pipe or terminal of the descriptor `fd` again in non-blocking mode, and return the new descriptor.

    Return `fd` itself if it cannot be opened again or is a regular file. A new descriptor for a regular file would
    have its own offset. If stdout and stderr referred to the same file, their output would then overwrite each
    other.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        return os.open(
            f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except OSError:
        return fd


def _as_json(value: object) -> str:
    import json  # imported here, because most processes log nothing

    return json.dumps(value, default=str)
