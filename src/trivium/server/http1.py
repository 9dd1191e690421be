"""HTTP/1.1 as uvicorn speaks it through h11, with a shorter way for the pieces of a stream.

Every token of a streamed answer is a chunk of its own. h11 checks and dispatches each as an event, which costs as much
as all else that a token does in the server; a chunk within a body needs none of that::

    1a CRLF data: {...} CRLF CRLF CRLF          its length in hexadecimal digits, CRLF, itself, CRLF

Heads, ends of bodies, and bodies that are not chunked (HTTP/1.0, a known length) go through h11 as ever.

A `Shortcut` writes a chunk without the layers of the application and of uvicorn: none of them has a say in the middle
of a body. An application finds the one of its exchange in the scope.

Source: RFC 9112, section 7.1.
"""

from __future__ import annotations

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

SHORTCUT = "trivium.shortcut"
"""Key of an exchange's `Shortcut` in its scope; absent where another server runs the application."""
_CHUNKED = b"transfer-encoding: chunked"


def chunk(data: bytes) -> bytes:
    """Write data, at least a byte, as a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ChunkingConnection(h11.Connection):
    """An h11 connection that writes chunks itself.

    Invariants:
        What is sent is what `h11.Connection` would send, byte for byte.
    """

    _is_chunked = False
    """Whether the body of the last head that was sent is chunked."""
    _is_head_request = False

    @property
    def is_within_chunks(self) -> bool:
        """Whether a body is being sent, in chunks."""
        return self._is_chunked and self.our_state is h11.SEND_BODY

    def next_event(self) -> Any:
        """Read what came; see `h11.Connection.next_event`."""
        event = super().next_event()
        if type(event) is h11.Request:
            self._is_head_request = event.method == b"HEAD"
        return event

    def send(self, event: Any) -> Any:
        """Turn an event into bytes; see `h11.Connection.send`."""
        if type(event) is h11.Data and self.is_within_chunks:
            return chunk(event.data) if event.data else b""
        sent = super().send(event)
        if type(event) is h11.Response:
            # An answer to HEAD may announce chunks, and has none.
            self._is_chunked = not self._is_head_request and _CHUNKED in sent.lower().split(b"\r\n")
        return sent


class Shortcut:
    """Writes chunks of one exchange's answer."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, cycle: RequestResponseCycle, connection: ChunkingConnection) -> None:
        self._cycle = cycle
        self._connection = connection

    @property
    def can_write(self) -> bool:
        """Whether the answer is within a chunked body and its connection takes more."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete or cycle.flow.write_paused:
            return False
        return self._connection.is_within_chunks

    def write(self, data: bytes) -> None:
        """Write a chunk of at least a byte, while `can_write`."""
        self._cycle.transport.write(chunk(data))


class Http1Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 over a `ChunkingConnection`, with a `Shortcut` in the scope of every exchange."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = self._chunks = ChunkingConnection(h11.SERVER)
        self._application = self.app
        self.app = self._offer_shortcut

    async def _offer_shortcut(self, scope: Any, receive: Any, send: Any) -> None:
        # One exchange at a time: h11 gives the next request out when this one has been answered.
        scope[SHORTCUT] = Shortcut(self.cycle, self._chunks)
        await self._application(scope, receive, send)
