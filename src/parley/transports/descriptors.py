"""Frames over a pair of descriptors, such as stdin and stdout.

Both may be pipes, sockets, terminals or files. Writing never waits: frames of one loop tick are written together,
and bytes that the client has not read yet are buffered. If a client leaves 16 MB unread, its input is not read
until it reads.
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
"""Chunk size for files, which are always readable: small, so that unread answers stop the reading early."""
HIGH_WATER_BYTES: Final = 1024 * 1024
"""The high-water mark: while more bytes are unread, events wait. A client that keeps up leaves less unread, even
if it is not scheduled for some milliseconds. Every connection may need this much memory.
"""
LOW_WATER_BYTES: Final = 256 * 1024
"""The low-water mark: below it, events are sent again. Well below the high-water mark, to avoid oscillation."""
STOP_READING_BYTES: Final = 16 * 1024 * 1024
LOOK_SECONDS: Final = 0.25
"""How often to check whether a client has left while its input is not read."""
LARGE_BYTES: Final = 1024 * 1024
"""Frames of this size are written separately: joining them with others would copy them."""
PIPE_BYTES: Final = 1024 * 1024
"""Buffer size to request for pipes: fewer and larger writes and wake-ups."""


class DescriptorOutbox:
    """The outbox. A failed write means that the client has left, and closes the outbox silently."""

    def __init__(
        self, fd: int, *, on_closed: Callable[[], None] = lambda: None, most_unread: int = sys.maxsize
    ) -> None:
        """Create the outbox. A client that leaves more than `most_unread` bytes unread is disconnected."""
        self.writable = True
        self.closed = False
        self.on_room: Callable[[], None] | None = None
        """Called when the number of unread bytes has decreased."""
        self.unread = 0
        self._on_closed, self._most_unread = on_closed, most_unread
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._chunks: deque[memoryview] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._open: _OpenFrame | None = None
        """A frame that is written in parts."""
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
        self._frames.append(frame)  # while a frame is open, they wait for its end
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
        """Begin a frame that is written in parts. Frames that are sent meanwhile wait for its end."""
        assert self._open is None
        if not self.closed:
            self._write_frames()
            self.writable = False
        self._open = _OpenFrame(self)
        return self._open

    def write_part(self, part: bytes) -> None:
        """Write a part of the open frame."""
        if not self.closed:
            self._chunks.append(memoryview(part))
            self.unread += len(part)
            self._write_chunks()

    def end_frame(self) -> None:
        """End the open frame."""
        self._open = None
        self.write_part(b"\n")
        if not self._flushing and not self.closed:
            self._loop.call_soon(self._flush)
            self._flushing = True

    @property
    def is_behind(self) -> bool:
        """True if more bytes of the open frame than the low-water mark are unread."""
        return sum(map(len, self._chunks)) > LOW_WATER_BYTES

    async def flush(self) -> None:
        """Wait until everything that was sent has been read, or the outbox is closed."""
        while not self.closed and (self._frames or self._chunks or self._open):
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Send nothing more and discard unread bytes."""
        if self.closed:
            return
        self.closed, self.writable, self.unread = True, True, 0
        self._frames.clear()
        self._chunks.clear()
        self._waiting.clear()
        self._drained.set()
        if self._open is not None:
            self._open.wake()
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
            # Many conversations may have sent in one tick, which does not make the client slow.
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
                if self.unread < LARGE_BYTES or max(map(len, self._frames)) < LARGE_BYTES:  # nearly always
                    joined = [b"\n".join((*self._frames, b""))]
                else:
                    joined = [*_joined(self._frames)]
            except MemoryError:
                joined = [piece for frame in self._frames for piece in (frame, b"\n")]
            self._chunks.extend(map(memoryview, joined))
            self._frames.clear()
        self._write_chunks()

    def _write_chunks(self) -> None:
        """Write as much as possible. Does not wake waiters: the caller of `send` must not be re-entered."""
        chunks = self._chunks
        while chunks:
            try:
                written = self._write(chunks[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # the client has left, or the file is on a full disk
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
        if self.on_room is not None:
            self.on_room()
        if self.unread <= LOW_WATER_BYTES and self._open is None:
            self.writable = True
        for _ in range(len(self._waiting)):  # a waiter that waits again is called in the next round
            if not self.writable:
                return
            self._waiting.popleft()()


class _OpenFrame:
    """One frame that is written in parts."""

    def __init__(self, outbox: DescriptorOutbox) -> None:
        self._outbox = outbox
        self._room = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._outbox.closed

    def write(self, part: bytes) -> None:
        self._outbox.write_part(part)

    async def room(self) -> None:
        await asyncio.sleep(0)  # others may have something to do
        while not self._outbox.closed and self._outbox.is_behind:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._outbox.end_frame()

    def wake(self) -> None:
        self._room.set()


class DescriptorTransport:
    """The transport of one client, over two descriptors."""

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
        """Create the transport. A client that leaves `stop_reading_at` bytes unread is not read from; at
        `most_unread` it is disconnected.

        `why_too_large` is called with the number of bytes of a message that were read, and returns why the message
        cannot be accepted, or None. `received` are bytes that were read from `stdin` before; they come first.
        """
        self._received = received
        self._stop_reading_at = stop_reading_at
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._framer = LineFramer(why_too_large=why_too_large)
        self._take: Callable[[bytes | Overlong], None] = lambda frame: None
        self._untaken: deque[bytes | Overlong] = deque()
        """Frames that were read and could not be handled for lack of memory."""
        self._reading = False
        self._hung_up = False
        self._changed = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._stdin: int | None
        self._stdin, self._pollable = _open_for_reading(stdin)
        try:
            self.outbox = DescriptorOutbox(stdout, on_closed=self.stop_reading, most_unread=most_unread)
        except OSError:
            self._let_go()
            raise
        self.outbox.on_room = self._regulate

    async def read(self, take: Callable[[bytes | Overlong], None]) -> None:
        """Pass every frame to `take`; return when the client has closed its side or does not read any more."""
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
        """Read no further frames; a running `read` returns."""
        self._ended.set()
        self._regulate()

    def close(self) -> None:
        """Stop reading and writing, and close both descriptors."""
        self.outbox.close()
        self.stop_reading()
        self._let_go()

    def _let_go(self) -> None:
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _regulate(self) -> None:
        self._changed.set()
        has_room = self.outbox.unread < self._stop_reading_at or self._hung_up
        wanted = self._pollable and not self._ended.is_set() and has_room and not self._untaken
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
        """Poll for the end of the input while nothing is read."""
        if self._reading or self._stdin is None or self._ended.is_set():
            return
        poll = select.poll()
        poll.register(self._stdin, getattr(select, "POLLRDHUP", 0))
        if poll.poll(0):
            self._hung_up = True  # little is left to read
            self._regulate()
        else:
            self._watch = self._loop.call_later(LOOK_SECONDS, self._watch_for_the_end)

    def _readable(self) -> None:
        assert self._stdin is not None
        try:
            data = os.read(self._stdin, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        except MemoryError:  # free the line that is being read, and continue later
            self._framer.skip(OUT_OF_MEMORY)
            self._rest()
            return
        self._feed(data)
        if self._untaken:
            self._rest()
        else:
            self._regulate()

    def _rest(self) -> None:
        """Pause reading until there is memory for the frames that were read."""
        assert self._stdin is not None
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stdin)
        self._watch = self._loop.call_later(LOOK_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._stdin is None:
            return
        if self._hand_over():
            self._regulate()
        else:
            self._rest()

    async def _read_file(self, fd: int) -> None:
        while not self._ended.is_set():
            if self.outbox.unread >= self._stop_reading_at:
                self._changed.clear()
                await self._changed.wait()  # until there is room or reading was stopped
                continue
            try:
                self._feed(os.read(fd, FILE_READ_BYTES))
            except OSError:
                self._feed(b"")
            await asyncio.sleep(0)  # a file is always readable: let the handlers run

    def _feed(self, data: bytes) -> None:
        try:
            frames = self._framer.feed(data) if data else self._framer.end()
        except MemoryError:  # the line cannot be assembled: free its parts
            self._framer.skip(OUT_OF_MEMORY)
            frames = self._framer.feed(data) if data else self._framer.end()
        self._untaken.extend(frames)
        del frames  # frees a frame that is too large before it is answered
        self._hand_over()
        if not data:
            self._ended.set()

    def _hand_over(self) -> bool:
        """Handle the frames in order. Return False if there was no memory for the next one, which is then
        reduced to its outline and answered later.
        """
        while self._untaken:
            try:
                self._take(self._untaken[0])
            except MemoryError:
                self._untaken[0] = outline_of(self._untaken[0], OUT_OF_MEMORY)
                return False
            self._untaken.popleft()
        return True


def _joined(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Yield frames with their line ends, in as few pieces as possible without copying large ones."""
    small: list[bytes] = []
    for frame in frames:
        if len(frame) < LARGE_BYTES:
            small.append(frame)
            continue
        if small:
            yield b"\n".join((*small, b""))
        yield frame
        small = [b""]  # its line end begins the next piece
    yield b"\n".join((*small, b""))


def _open_for_writing(fd: int) -> tuple[int, Callable[[memoryview], int], bool]:
    """Return a descriptor of our own, a function that writes to it, and whether the loop can poll it.

    A pipe or a terminal is opened again, so that it becomes non-blocking for this process only, and not for a shell
    or for our own stderr.
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
    """Return a descriptor of our own, or None if it is closed, and whether the loop can poll it."""
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
            pass  # above the limit of this user; the pipe works as it is


def _can_be_polled(fd: int) -> bool:
    """Return whether the loop can poll `fd`: it cannot poll files and devices such as /dev/null."""
    if not hasattr(select, "epoll"):
        return True
    with select.epoll() as probe:
        try:
            probe.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True
