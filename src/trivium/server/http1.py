"""HTTP/1.1 as uvicorn speaks it through h11, with a shorter way for the pieces of a stream.

Every token of a streamed answer is a chunk of its own. h11 checks and dispatches each as an event, which costs as much
as all else that a token does in the server; a chunk within a body needs none of that::

    1a CRLF data: {...} CRLF CRLF CRLF          its length in hexadecimal digits, CRLF, itself, CRLF

Heads, ends of bodies, and bodies that are not chunked (HTTP/1.0, a known length) go through h11 as ever.

Source: RFC 9112, section 7.1.
"""

from __future__ import annotations

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_CHUNKED = b"transfer-encoding: chunked"


class ChunkingConnection(h11.Connection):
    """An h11 connection that writes chunks itself.

    Invariants:
        What is sent is what `h11.Connection` would send, byte for byte.
    """

    _is_chunked = False
    """Whether the body of the last head that was sent is chunked."""
    _is_head_request = False

    def next_event(self) -> Any:
        """Read what came; see `h11.Connection.next_event`."""
        event = super().next_event()
        if type(event) is h11.Request:
            self._is_head_request = event.method == b"HEAD"
        return event

    def send(self, event: Any) -> Any:
        """Turn an event into bytes; see `h11.Connection.send`."""
        if type(event) is h11.Data and self._is_chunked and self.our_state is h11.SEND_BODY:
            data = event.data
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        sent = super().send(event)
        if type(event) is h11.Response:
            # An answer to HEAD may announce chunks, and has none.
            self._is_chunked = not self._is_head_request and _CHUNKED in sent.lower().split(b"\r\n")
        return sent


class Http1Protocol(H11Protocol):
    """uvicorn's HTTP/1.1 over a `ChunkingConnection`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = ChunkingConnection(h11.SERVER)
