"""Channels between two processes: Unix sockets that carry messages one way, each as its length and its bytes.

::

    | length: 4 bytes, little-endian | payload | length | payload | ...

The client listens, and the engine connects to it: to read, or to write. No thread stands between an end and its socket:
what has been sent lies in the other end's buffer when `send` returns, however busy the processors are. (A thread that
had to pass messages on would have to displace a computing one first, which took up to 40 ms.)
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import deque
from pathlib import Path
from struct import Struct

_LENGTH = Struct("<I")
_CHUNK = 1 << 16
_BACKLOG = 8
_REST_S = 1.0
"""Seconds that reading the rest may take."""
_IDLE_TURNS = 3
"""Turns of an event loop in which a connection that waits is accepted, read to its end, and dropped."""


def frame(payload: bytes) -> bytes:
    """Write a message as it travels."""
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._arrived = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what has arrived; return the messages that it completes."""
        arrived, start = self._arrived, 0
        arrived += data
        payloads = []
        while len(arrived) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(arrived, start)
            end = start + _LENGTH.size + length
            if end > len(arrived):
                break
            payloads.append(bytes(arrived[start + _LENGTH.size : end]))
            start = end
        del arrived[:start]
        return payloads


# -- the engine's ends -------------------------------------------------------------------------------------------------


class Reader:
    """Reads what the client sends; used from one thread."""

    def __init__(self, path: Path) -> None:
        """Connect.

        Raises:
            OSError: Nobody listens.
        """
        self._socket = _connected(path)
        self._socket.settimeout(0)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._frames = Frames()
        self.is_closed = False
        """Whether the client is gone; nothing comes any more."""

    def take(self, wait_ms: int) -> list[bytes]:
        """Return what has arrived, waiting at most so long for the first of it."""
        if wait_ms and not self._poll.poll(wait_ms):
            return []
        payloads: list[bytes] = []
        while not self.is_closed:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self.is_closed = not data
            payloads += self._frames.feed(data)
            if len(data) < _CHUNK:
                break
        return payloads

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Writer:
    """Sends to the client; used from one thread."""

    def __init__(self, path: Path) -> None:
        """Connect.

        Raises:
            OSError: Nobody listens.
        """
        self._socket = _connected(path)

    def send(self, payload: bytes) -> None:
        """Send a message; waits while the client has many unread.

        Raises:
            OSError: The client is gone.
        """
        self._socket.sendall(frame(payload))

    def close(self) -> None:
        """Close the socket; what was sent still arrives."""
        self._socket.close()


def _connected(path: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(str(path))
    except OSError:
        end.close()
        raise
    return end


# -- the client's ends, in an event loop -------------------------------------------------------------------------------


class _Listener:
    """Accepts connections in the running event loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listening(path)
        self._ends: list[socket.socket] = []
        self.is_left = asyncio.Event()
        """Set when all that had connected are gone again."""
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            end, _ = self._listener.accept()
            end.settimeout(0)
            self._ends.append(end)
            self.is_left.clear()
            self._begin(end)

    def _begin(self, end: socket.socket) -> None:
        raise NotImplementedError

    def _drop(self, end: socket.socket) -> None:
        self._loop.remove_reader(end)
        self._loop.remove_writer(end)
        self._ends.remove(end)
        end.close()
        if not self._ends:
            self.is_left.set()

    def close(self) -> None:
        """Close all sockets."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for end in tuple(self._ends):
            self._drop(end)


class Inlet(_Listener):
    """Receives from all that connect; one task waits."""

    def __init__(self, path: Path) -> None:
        """Listen."""
        super().__init__(path)
        self._arrived: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        """Wait for the next message."""
        while not self._arrived:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._arrived.popleft()

    async def rest(self) -> list[bytes]:
        """Return what has not been received, when nobody can send any more; a message cut off is dropped."""
        num_idle = 0
        with contextlib.suppress(TimeoutError):  # somebody else, a child of the sender's, may hold an end
            async with asyncio.timeout(_REST_S):
                while num_idle < _IDLE_TURNS:
                    num_idle = 0 if self._ends else num_idle + 1
                    await asyncio.sleep(0)
        payloads = list(self._arrived)
        self._arrived.clear()
        return payloads

    def _begin(self, end: socket.socket) -> None:
        self._loop.add_reader(end, self._read, end, Frames())

    def _read(self, end: socket.socket, frames: Frames) -> None:
        try:
            data = end.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(end)
            return
        self._arrived.extend(frames.feed(data))
        if self._arrived and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outlet(_Listener):
    """Sends to the one that connects."""

    def __init__(self, path: Path) -> None:
        """Listen."""
        self._unsent = bytearray()
        super().__init__(path)

    def send(self, payload: bytes) -> None:
        """Send a message, as soon as somebody has connected and takes it; never blocks."""
        self._unsent += frame(payload)
        if self._ends:
            self._flush(self._ends[0])

    def _begin(self, end: socket.socket) -> None:
        self._flush(end)

    def _flush(self, end: socket.socket) -> None:
        try:
            del self._unsent[: end.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the engine is gone; its end is noticed elsewhere
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(end, self._flush, end)
        else:
            self._loop.remove_writer(end)


def listening(path: Path) -> socket.socket:
    """Return a socket that listens at a path and does not block."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    listener.settimeout(0)
    return listener
