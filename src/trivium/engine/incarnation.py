"""One engine process and the sockets to it; a new process is a new `Incarnation` with a folder of its own.

Knows how to start, speak to and end a process; when that is due is decided in `client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Sequence

from trivium.engine.channel import Inlet, Outlet
from trivium.engine.journal import LastWork, read_journal
from trivium.engine.messages import ToEngine
from trivium.engine.wire import Sockets, encode

_EXIT_S = 1.0
"""Seconds that a process which has closed its sockets gets to end by itself."""


class Incarnation:
    """A running engine process, its inbox and its outbox."""

    def __init__(self, command: Sequence[str], payload: bytes, epoch: int) -> None:
        """Start the process.

        Args:
            command: Program and arguments; socket folder, epoch and our process id are appended.
            payload: Written to its standard input.
            epoch: Number of this incarnation; every message of the process carries it.
        """
        self.epoch = epoch
        self.began_s = time.monotonic()
        self._sockets = Sockets()
        self._inlet, self._outlet = Inlet(self._sockets.outbox), Outlet(self._sockets.inbox)
        arguments = [str(self._sockets.folder), str(epoch), str(os.getpid())]
        self._process = subprocess.Popen(  # noqa: S603  (our own module, our own arguments)
            [*command, *arguments], stdin=subprocess.PIPE, start_new_session=True
        )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(payload)
                self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; `None` while the process lives."""
        return self._process.poll()

    async def receive(self) -> bytes:
        """Wait for the next message of the process."""
        return await self._inlet.receive()

    def send(self, message: ToEngine) -> None:
        """Send a message; never blocks."""
        self._outlet.send(encode(message))

    @property
    def is_left(self) -> asyncio.Event:
        """Set when the process has closed its sockets, as its end does."""
        return self._inlet.is_left

    async def end(self) -> list[bytes]:
        """Kill the process if it lives, wait until its memory is free, and return what it had said last."""
        if self._inlet.is_left.is_set():  # on its way out by itself: let it say its own exit code
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, _EXIT_S)
        if self.exit_code is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        return await self._inlet.rest()

    def last_work(self) -> LastWork:
        """Return what the process was at work on when it ended."""
        return read_journal(self._sockets.folder)

    def close(self) -> None:
        """Kill the process if it lives, and remove the sockets."""
        if self.exit_code is None:
            self._process.kill()
            self._process.wait()
        self._inlet.close()
        self._outlet.close()
        self._sockets.close()
