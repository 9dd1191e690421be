"""Server-sent events: one answer as a stream of `data:` lines.

Headers are sent with the first event, or with the first keep-alive comment when nothing has happened for a while; until
then an error can still be a plain JSON answer with its own status.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Send

from trivium.server.http1 import Shortcut

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Writes events, and comments while there are none.

    Invariants:
        `is_open` is true exactly when the status has been sent.
    """

    def __init__(self, send: Send, *, keep_alive_s: float, shortcut: Shortcut | None = None) -> None:
        self._send = send
        self._shortcut = shortcut
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._commenting: asyncio.Task[None] | None = None
        self.is_open = False

    async def __aenter__(self) -> Self:
        self._commenting = asyncio.create_task(self._comment())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._commenting is not None:
            self._commenting.cancel()

    async def write(self, events: bytes) -> None:
        """Send one or more whole events."""
        if not self.is_open:
            await self._open()
        self._last_s = self._loop.time()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    @property
    def can_write_now(self) -> bool:
        """Whether `write_now` may be called: the status has been sent and the connection takes more."""
        return self.is_open and self._shortcut is not None and self._shortcut.can_write

    def write_now(self, events: bytes) -> None:
        """Send one or more whole events without waiting."""
        if self._shortcut is not None:
            self._last_s = self._loop.time()
            self._shortcut.write(events)

    async def close(self, events: bytes) -> None:
        """Send the last events and end the answer."""
        if self._commenting is not None:
            self._commenting.cancel()
        if not self.is_open:
            await self._open()
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def _open(self) -> None:
        self.is_open = True
        await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})

    async def _comment(self) -> None:
        while True:
            silent_s = self._loop.time() - self._last_s
            if silent_s >= self._keep_alive_s:
                await self.write(KEEP_ALIVE)
                silent_s = 0.0
            await asyncio.sleep(self._keep_alive_s - silent_s)


def event(payload: bytes) -> bytes:
    """Wrap one JSON payload as an event."""
    return b"data: " + payload + b"\n\n"
