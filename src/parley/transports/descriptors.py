"""The transport over a pair of descriptors, such as stdin and stdout.

Each descriptor may be a pipe, a socket, a terminal or a file. Sending never waits: the frames of one iteration of
the event loop are written together, and bytes that the client has not read yet are buffered. While a client leaves
at least `STOP_READING_BYTES` unread, the server reads no messages from this client.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from parley.common.os_errors import OUT_OF_MEMORY
from parley.wire.framing import LineFramer, Overlong, outline_of

__all__ = ["DescriptorOutbox", "DescriptorTransport"]

READ_BYTES: Final = 256 * 1024
FILE_READ_BYTES: Final = 16 * 1024
"""The size in bytes of the chunks in which a file is read. Reading stops when the client has left too many
responses unread, but it can stop only between two chunks. The chunks are small, so that the server handles only a
few more messages after that.
"""
HIGH_WATER_BYTES: Final = 1024 * 1024
"""The high-water mark in bytes. While more bytes are unread, no events are sent. A client that keeps up leaves
fewer bytes unread, even if the operating system does not schedule the client for a few milliseconds. Every
connection may need this much memory.
"""
LOW_WATER_BYTES: Final = 256 * 1024
"""The low-water mark in bytes. After the sending of events has stopped, it resumes when the number of unread bytes
has fallen below this mark. The mark is well below the high-water mark, so that sending does not stop and start too
often.
"""
STOP_READING_BYTES: Final = 16 * 1024 * 1024
"""The number of unread bytes at which the server stops reading messages from a client. The server reads messages
again when fewer bytes are unread.
"""
CHECK_SECONDS: Final = 0.25
"""The time, in seconds, between two checks for a disconnected client while its input is not being read."""
LARGE_BYTES: Final = 1024 * 1024
"""The minimum size, in bytes, of a frame that is written separately. Joining large frames would copy them."""
PIPE_BYTES: Final = 1024 * 1024
"""The size in bytes of the buffer that is requested for a pipe. With a large buffer, fewer writes and wake-ups are
necessary.
"""


class DescriptorOutbox:
    """The outbox of a `DescriptorTransport`. If a write fails, the client has disconnected; the outbox is then
    closed and raises no error.
    """

    def __init__(
        self,
        fd: int,
        *,
        on_closed: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
        most_unread: int = sys.maxsize,
    ) -> None:
        """Create the outbox, which writes to the descriptor `fd`.

        `on_closed` is called when the outbox is closed, and `on_room` when the number of unread bytes has
        decreased. A client that leaves more than `most_unread` bytes unread is disconnected.
        """
        self.writable = True
        self.closed = False
        self.unread = 0
        self._on_closed, self._on_room, self._most_unread = on_closed, on_room, most_unread
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._chunks: deque[memoryview] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._open: _OpenFrame | None = None
        """The frame that is being written in parts; None if no frame is open."""
        self._flushing = False
        self._polling = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._fd, self._write, self._pollable = _open_for_writing(fd)

    def send(self, frame: bytes) -> None:
        if self.closed:
            return
        if not self._flushing:
            self._loop.call_soon(self._flush)
            self._flushing = True
        self._frames.append(frame)  # while a frame is open, other frames wait for its end
        self.unread += len(frame) + 1
        if self.unread >= HIGH_WATER_BYTES:
            self._fill()

    def when_writable(self, wake: Callable[[], None]) -> None:
        if self.closed:
            return
        self._waiting.append(wake)
        if not self._flushing:
            self._loop.call_soon(self._flush)
            self._flushing = True

    def begin_frame(self) -> _OpenFrame:
        """Begin a frame that is written in parts, and return the frame. Frames that are passed to `send` before the
        end of this frame wait for its end.
        """
        frame = _OpenFrame(self)
        if not self.closed:
            assert self._open is None
            self._write_frames()
        if not self.closed:  # a write may find that the client has disconnected
            self.writable, self._open = False, frame
        return frame

    def write_part(self, part: bytes) -> None:
        """Write the next part of the open frame."""
        if not self.closed:
            self._chunks.append(memoryview(part))
            self.unread += len(part)
            self._write_chunks()

    def end_frame(self) -> None:
        """End the open frame. The frames that were waiting for its end are written next."""
        self._open = None
        self.write_part(b"\n")
        if not self._flushing and not self.closed:
            self._loop.call_soon(self._flush)
            self._flushing = True

    @property
    def is_behind(self) -> bool:
        """True if the client has left more than `LOW_WATER_BYTES` unread. The sender of the open frame then waits
        before it writes the next part.
        """
        return sum(map(len, self._chunks)) > LOW_WATER_BYTES

    async def flush(self) -> None:
        """Wait until the client has read all sent frames, or until the outbox is closed."""
        while not self.closed and (self._frames or self._chunks or self._open):
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Close the outbox: discard the bytes that the client has not read, and all frames that are sent after this
        call.
        """
        if self.closed:
            return
        self.closed, self.writable, self.unread = True, True, 0
        self._frames.clear()
        self._chunks.clear()
        self._waiting.clear()
        self._drained.set()
        if self._open is not None:
            self._open.wake()
            self._open = None
        if self._polling:
            self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._on_closed()

    def _flush(self) -> None:
        self._flushing = False
        if not self.closed:
            self._write_frames()
            self._make_room()

    def _fill(self) -> None:
        if self.writable:
            # A burst of frames in one loop iteration does not mean that the client is slow.
            self._write_frames()
            self.writable = self.unread < HIGH_WATER_BYTES and self._open is None
        if self.unread > self._most_unread:
            self.close()

    def _can_write(self) -> None:
        self._write_chunks()
        self._make_room()

    def _write_frames(self) -> None:
        if self._frames and self._open is None:
            try:
                # Frames are nearly always small.
                if self.unread < LARGE_BYTES or max(map(len, self._frames)) < LARGE_BYTES:
                    joined = [b"\n".join((*self._frames, b""))]
                else:
                    joined = [*_joined(self._frames)]
            except MemoryError:
                joined = [piece for frame in self._frames for piece in (frame, b"\n")]
            self._chunks.extend(map(memoryview, joined))
            self._frames.clear()
        self._write_chunks()

    def _write_chunks(self) -> None:
        """Write as many bytes as the descriptor accepts. This method does not wake the waiting senders, because
        they could call `send` while another call to `send` is running.
        """
        chunks = self._chunks
        while chunks:
            try:
                written = self._write(chunks[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # the client has disconnected, or the disk of the file is full
                self.close()
                return
            self.unread -= written
            if written == len(chunks[0]):
                chunks.popleft()
            else:
                chunks[0] = chunks[0][written:]
        self._poll(bool(chunks))

    def _poll(self, wanted: bool) -> None:
        if wanted == self._polling or not self._pollable:
            return
        self._polling = wanted
        if wanted:
            self._loop.add_writer(self._fd, self._can_write)
        else:
            self._loop.remove_writer(self._fd)

    def _make_room(self) -> None:
        if self._open is not None and not self.is_behind:
            self._open.wake()
        elif not self._chunks and not self._frames:
            self._drained.set()
        self._on_room()
        if self.unread <= LOW_WATER_BYTES and self._open is None:
            self.writable = True
        for _ in range(len(self._waiting)):  # a callback that registers again is called only in the next round
            if not self.writable:
                return
            self._waiting.popleft()()


class _OpenFrame:
    """A frame that is written in parts."""

    def __init__(self, outbox: DescriptorOutbox) -> None:
        self._outbox = outbox
        self._room = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._outbox.closed

    def write(self, part: bytes) -> None:
        self._outbox.write_part(part)

    async def room(self) -> None:
        await asyncio.sleep(0)  # let other tasks run
        while not self._outbox.closed and self._outbox.is_behind:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._outbox.end_frame()

    def wake(self) -> None:
        self._room.set()


class DescriptorTransport:
    """The transport of one client, over a descriptor for reading and a descriptor for writing."""

    def __init__(
        self,
        *,
        stdin: int = 0,
        stdout: int = 1,
        stop_reading_at: int = STOP_READING_BYTES,
        most_unread: int = sys.maxsize,
        why_too_large: Callable[[int], str | None] = lambda size: None,
        received: bytes = b"",
    ) -> None:
        """Create the transport. While the client leaves `stop_reading_at` bytes unread, its input is not read. If
        the client leaves more than `most_unread` bytes unread, it is disconnected.

        `why_too_large` is called with the number of bytes of an incomplete message that have been read. The
        function returns the reason why there is not enough memory for the message, or None if there is enough
        memory. `received` contains bytes that were already read from `stdin`. These bytes are processed first.
        """
        self._received = received
        self._stop_reading_at = stop_reading_at
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._framer = LineFramer(why_too_large=why_too_large)
        self._take: Callable[[bytes | Overlong], None] = lambda frame: None
        self._unhandled: deque[bytes | Overlong] = deque()
        """Frames that have been read but not handled yet, because there was not enough memory."""
        self._reading = False
        self._has_hung_up = False
        self._changed = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._stdin: int | None
        self._stdin, self._pollable = _open_for_reading(stdin)
        try:
            self.outbox = DescriptorOutbox(
                stdout, on_closed=self.stop_reading, on_room=self._regulate, most_unread=most_unread
            )
        except OSError:
            self._close_stdin()
            raise

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Pass every frame to `take`. Return when the client has closed its sending side or `stop_reading` is
        called.
        """
        self._take = take
        if self._received:
            received, self._received = self._received, b""
            self._feed(received)
        if self._stdin is None:
            return
        if self._pollable:
            self._regulate()
            await self._ended.wait()
        else:
            await self._read_file(self._stdin)

    def stop_reading(self) -> None:
        """Read no further frames. A running `read` returns."""
        self._ended.set()
        self._regulate()

    def close(self) -> None:
        """Stop reading and writing, and close both descriptors."""
        self.outbox.close()
        self.stop_reading()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _regulate(self) -> None:
        self._changed.set()
        has_room = self.outbox.unread < self._stop_reading_at or self._has_hung_up
        wanted = self._pollable and not self._ended.is_set() and has_room and not self._unhandled
        if wanted == self._reading or self._stdin is None:
            return
        self._reading = wanted
        if self._watch is not None:
            self._watch.cancel()
        if wanted:
            self._loop.add_reader(self._stdin, self._readable)
        else:
            self._loop.remove_reader(self._stdin)
            self._watch_for_the_end()

    def _watch_for_the_end(self) -> None:
        """While reading is paused, check periodically whether the client has disconnected."""
        if self._reading or self._stdin is None or self._ended.is_set():
            return
        poll = select.poll()
        poll.register(self._stdin, getattr(select, "POLLRDHUP", 0))
        if poll.poll(0):
            self._has_hung_up = True  # only buffered bytes are left to read
            self._regulate()
        else:
            self._watch = self._loop.call_later(CHECK_SECONDS, self._watch_for_the_end)

    def _readable(self) -> None:
        assert self._stdin is not None
        try:
            data = os.read(self._stdin, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        except MemoryError:  # discard the line that is being read, and continue later
            self._framer.skip(OUT_OF_MEMORY)
            self._pause()
            return
        self._feed(data)
        if self._unhandled:
            self._pause()
        else:
            self._regulate()

    def _pause(self) -> None:
        """Pause reading until there is enough memory for the frames that have been read."""
        assert self._stdin is not None
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stdin)
        self._watch = self._loop.call_later(CHECK_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._stdin is None:
            return
        if self._handle_frames():
            self._regulate()
        else:
            self._pause()

    async def _read_file(self, fd: int) -> None:
        while not self._ended.is_set():
            if self.outbox.unread >= self._stop_reading_at:
                self._changed.clear()
                await self._changed.wait()  # wait until the client has read enough, or reading is stopped
                continue
            try:
                self._feed(os.read(fd, FILE_READ_BYTES))
            except OSError:
                self._feed(b"")
            await asyncio.sleep(0)  # let the handlers run, because a file is always readable

    def _feed(self, data: bytes) -> None:
        try:
            frames = self._framer.feed(data) if data else self._framer.end()
        except MemoryError:  # free the parts of the line, because the line cannot be assembled
            self._framer.skip(OUT_OF_MEMORY)
            frames = self._framer.feed(data) if data else self._framer.end()
        self._unhandled.extend(frames)
        del frames  # free a frame that is too large before its error response is built
        self._handle_frames()
        if not data:
            self._ended.set()

    def _handle_frames(self) -> bool:
        """Pass the frames to the handler in order. Return True if all frames were passed. If there was not enough
        memory for a frame, keep only its beginning and its end, so that an error response can be sent later, and
        return False.
        """
        while self._unhandled:
            try:
                self._take(self._unhandled[0])
            except MemoryError:
                self._unhandled[0] = outline_of(self._unhandled[0], OUT_OF_MEMORY)
                return False
            self._unhandled.popleft()
        return True


def _joined(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Yield byte strings that contain the frames with their line ends. Small frames are joined, and large frames
    are yielded separately, because joining would copy them.
    """
    small: list[bytes] = []
    for frame in frames:
        if len(frame) < LARGE_BYTES:
            small.append(frame)
            continue
        if small:
            yield b"\n".join((*small, b""))
        yield frame
        small = [b""]  # the line end of the large frame begins the next piece
    yield b"\n".join((*small, b""))


def _open_for_writing(fd: int) -> tuple[int, Callable[[memoryview], int], bool]:
    """Return a new descriptor for the file of `fd`, a function that writes to the new descriptor, and whether the
    event loop can poll it.

    If the file is a pipe or a terminal, it is opened again, so that only the new descriptor is non-blocking. A
    duplicate would share its mode with the shell and with the server's own stderr, which must stay blocking.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        channel = socket.socket(fileno=os.dup(fd))
        number = channel.detach()
        return number, lambda data: _send(number, data), True
    ours = _reopen(fd, os.O_WRONLY) if not stat.S_ISREG(mode) else os.dup(fd)
    if stat.S_ISFIFO(mode):
        _widen(ours)
    return ours, lambda data: os.write(ours, data), not stat.S_ISREG(mode) and _can_be_polled(ours)


def _open_for_reading(fd: int) -> tuple[int | None, bool]:
    """Return a new descriptor for the file of `fd`, and whether the event loop can poll the new descriptor. The new
    descriptor is None if `fd` is closed.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return None, False
    if stat.S_ISREG(mode):
        return os.dup(fd), False
    if stat.S_ISSOCK(mode):
        ours = os.dup(fd)
        os.set_blocking(ours, False)
        return ours, True
    ours = _reopen(fd, os.O_RDONLY)
    return ours, _can_be_polled(ours)


def _reopen(fd: int, flags: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        ours = os.dup(fd)
        os.set_blocking(ours, False)
        return ours


def _send(number: int, data: memoryview) -> int:
    channel = socket.socket(fileno=number)
    try:
        return channel.send(data, socket.MSG_DONTWAIT)
    finally:
        channel.detach()


def _widen(pipe: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # the size is above the limit of this user, so the pipe keeps its size


def _can_be_polled(fd: int) -> bool:
    """Return whether the event loop can poll `fd`. Files and devices such as /dev/null cannot be polled."""
    if not hasattr(select, "epoll"):
        return True
    with select.epoll() as probe:
        try:
            probe.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True
