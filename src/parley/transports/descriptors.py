"""Frames over a pair of descriptors: what a client that started us reads and writes.

Both may be pipes, sockets, terminals or files. Writing never waits: frames of one loop tick
leave in one `write`, and what the client does not read yet stays here. A client that leaves
16 MB unread is not read from until it reads.
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
"""A file is always readable: small bites, so that answers are counted before the next is taken."""
HIGH_WATER_BYTES: Final = 1024 * 1024
"""From here on events wait. More than a client that keeps up ever leaves unread, even when it
does not run for some milliseconds, and little enough for every connection to have it."""
LOW_WATER_BYTES: Final = 256 * 1024
"""From here on they go again; well under the high mark, so that the two do not alternate."""
STOP_READING_BYTES: Final = 16 * 1024 * 1024
LOOK_SECONDS: Final = 0.25
"""How often a client that is not read from is looked at: it may have left."""
LARGE_BYTES: Final = 1024 * 1024
"""A frame of this size is written by itself: joining it with others would copy it."""
PIPE_BYTES: Final = 1024 * 1024
"""What we ask the kernel to hold of a pipe: fewer and larger writes and wake-ups."""


class DescriptorOutbox:
    """The way out. Failing to write means that nobody reads any more: it closes, silently."""

    def __init__(
        self, fd: int, *, on_closed: Callable[[], None] = lambda: None, most_unread: int = sys.maxsize
    ) -> None:
        """Who leaves more than `most_unread` bytes unread is taken for gone."""
        self.writable = True
        self.closed = False
        self.on_room: Callable[[], None] | None = None
        """Called whenever unread bytes became fewer."""
        self.unread = 0
        self._on_closed, self._most_unread = on_closed, most_unread
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._chunks: deque[memoryview] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
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
        self._frames.append(frame)
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

    async def flush(self) -> None:
        """Return when everything that was sent has been read, or nobody reads any more."""
        while not self.closed and (self._frames or self._chunks):
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Send nothing more; what was not read yet is dropped."""
        if self.closed:
            return
        self.closed, self.writable, self.unread = True, True, 0
        self._frames.clear()
        self._chunks.clear()
        self._waiting.clear()
        self._drained.set()
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
            # Much came in one tick, from many conversations perhaps: that alone leaves nobody behind.
            self._write_frames()
            self.writable = self.unread < HIGH_WATER_BYTES
        if self.unread > self._most_unread:
            self.close()

    def _can_write(self) -> None:
        self._write_chunks()
        self._make_room()

    def _write_frames(self) -> None:
        if self._frames:
            try:
                joined = [*_joined(self._frames)]
            except MemoryError:
                joined = [piece for frame in self._frames for piece in (frame, b"\n")]
            self._chunks.extend(map(memoryview, joined))
            self._frames.clear()
        self._write_chunks()

    def _write_chunks(self) -> None:
        """Write as much as is taken. Wakes nobody: whoever sends is in the middle of something."""
        chunks = self._chunks
        while chunks:
            try:
                written = self._write(chunks[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # gone, or a file on a full disk: nobody will read this
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
        if not self._chunks and not self._frames:
            self._drained.set()
        if self.on_room is not None:
            self.on_room()
        if self.unread <= LOW_WATER_BYTES:
            self.writable = True
        for _ in range(len(self._waiting)):  # whoever asks again waits for the next round
            if not self.writable:
                return
            self._waiting.popleft()()


class DescriptorTransport:
    """One client on two descriptors."""

    def __init__(
        self,
        *,
        stdin: int = 0,
        stdout: int = 1,
        stop_reading_at: int = STOP_READING_BYTES,
        most_unread: int = sys.maxsize,
        why_too_large: Callable[[int], str | None] = lambda size: None,
    ) -> None:
        """Who leaves `stop_reading_at` bytes unread is not read from, and who leaves `most_unread` is gone.

        `why_too_large` says why a message of which so many bytes have come cannot be taken.
        """
        self._stop_reading_at = stop_reading_at
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._framer = LineFramer(why_too_large=why_too_large)
        self._take: Callable[[bytes | Overlong], None] = lambda frame: None
        self._untaken: deque[bytes | Overlong] = deque()
        """Frames that were read and not handed over, because there was no memory for that."""
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
        """Hand every frame to `take` until the client has closed its side, or reads no more."""
        self._take = take
        if self._stdin is None:
            return
        if self._pollable:
            self._regulate()
            await self._ended.wait()
        else:
            await self._read_file(self._stdin)

    def stop_reading(self) -> None:
        """Take no further frame; a `read` that waits returns."""
        self._ended.set()
        self._regulate()

    def close(self) -> None:
        """Read and write no more, and keep neither descriptor."""
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
        """While nothing is read, the end of what the client says must be noticed all the same."""
        if self._reading or self._stdin is None or self._ended.is_set():
            return
        poll = select.poll()
        poll.register(self._stdin, getattr(select, "POLLRDHUP", 0))
        if poll.poll(0):
            self._hung_up = True  # what is left to read is little
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
        except MemoryError:  # not even for this: free the line that is being read, and go on a little later
            self._framer.skip(OUT_OF_MEMORY)
            self._rest()
            return
        self._feed(data)
        if self._untaken:
            self._rest()
        else:
            self._regulate()

    def _rest(self) -> None:
        """Read nothing for a moment, until there is memory for what was read."""
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
                await self._changed.wait()  # there is room, or no need for any more
                continue
            try:
                self._feed(os.read(fd, FILE_READ_BYTES))
            except OSError:
                self._feed(b"")
            await asyncio.sleep(0)  # a file is always readable: let the handlers run between

    def _feed(self, data: bytes) -> None:
        try:
            frames = self._framer.feed(data) if data else self._framer.end()
        except MemoryError:  # the line cannot be put together: free what there is of it
            self._framer.skip(OUT_OF_MEMORY)
            frames = self._framer.feed(data) if data else self._framer.end()
        self._untaken.extend(frames)
        del frames  # one that is too large is freed before it is answered
        self._hand_over()
        if not data:
            self._ended.set()

    def _hand_over(self) -> bool:
        """Hand the frames over in order. False: there was no memory for the first of them, which is then reduced to
        its outline, to be answered later."""
        while self._untaken:
            try:
                self._take(self._untaken[0])
            except MemoryError:
                self._untaken[0] = outline_of(self._untaken[0], OUT_OF_MEMORY)
                return False
            self._untaken.popleft()
        return True


def _joined(frames: Sequence[bytes]) -> Iterator[bytes]:
    """Frames with their line ends, in as few pieces as can be had without copying a large one."""
    small: list[bytes] = []
    for frame in frames:
        if len(frame) < LARGE_BYTES:
            small.append(frame)
            continue
        if small:
            yield b"\n".join((*small, b""))
        yield frame
        small = [b""]  # its line end comes first in the next piece
    yield b"\n".join((*small, b""))


def _open_for_writing(fd: int) -> tuple[int, Callable[[memoryview], int], bool]:
    """A descriptor of our own, how to write to it, and whether the loop can wait for it.

    A pipe or a terminal is opened anew, so that making ours non-blocking does not change that of
    whoever shares it: a shell, or our own stderr.
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
    """A descriptor of our own, if there is anything to read, and whether the loop can wait for it."""
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
            pass  # over what this user may have; the pipe works as it is


def _can_be_polled(fd: int) -> bool:
    """Whether the loop can wait for `fd`: not for a file, nor for devices such as /dev/null."""
    if not hasattr(select, "epoll"):
        return True
    with select.epoll() as probe:
        try:
            probe.register(fd, select.EPOLLIN)
        except PermissionError:
            return False
    return True
