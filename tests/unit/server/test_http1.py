"""What is sent in chunks is what h11 would send, byte for byte; and it is what uvicorn sends."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_engine import say
from support.live_server import LivingEngine, live_server
from trivium.server import http1
from trivium.server.http1 import ChunkingConnection, Shortcut

PIECES = st.lists(st.binary(max_size=40) | st.just(b"x" * 300), max_size=6)
HEADS = st.sampled_from([
    [("content-type", "text/event-stream")],
    [("content-length", "0")],
    [("x-request-id", "transfer-encoding:chunked")],
    [("connection", "close")],
])


def serving(connection: h11.Connection, request: bytes) -> h11.Connection:
    """A connection that has read a request."""
    connection.receive_data(request)
    assert type(connection.next_event()) is h11.Request
    return connection


def sent(connection: h11.Connection, head: list[tuple[str, str]], pieces: list[bytes]) -> list[bytes | str]:
    """All that is sent for one response, or the error that ends it."""
    out: list[bytes | str] = [connection.send(h11.Response(status_code=200, headers=head, reason=b"OK"))]
    try:
        out += [connection.send(h11.Data(data=piece)) for piece in pieces]
        out.append(connection.send(h11.EndOfMessage()))
    except h11.LocalProtocolError as error:
        out.append(str(error))
    return [*out, repr(connection.our_state)]


@given(pieces=PIECES, head=HEADS, version=st.sampled_from(["1.0", "1.1"]), method=st.sampled_from(["GET", "HEAD"]))
def test_the_bytes_are_those_of_h11(
    pieces: list[bytes], head: list[tuple[str, str]], version: str, method: str
) -> None:
    request = f"{method} / HTTP/{version}\r\nHost: t\r\n\r\n".encode()
    ours, theirs = (
        sent(serving(kind(h11.SERVER), request), head, pieces) for kind in (ChunkingConnection, h11.Connection)
    )
    assert ours == theirs


def test_a_piece_of_many_kilobytes_is_one_chunk() -> None:
    connection = serving(ChunkingConnection(h11.SERVER), b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    piece = b"x" * 70_000
    assert sent(connection, [("content-type", "text/event-stream")], [piece])[1] == b"11170\r\n" + piece + b"\r\n"


def test_a_chunk_after_the_end_is_refused_as_ever() -> None:
    connection = serving(ChunkingConnection(h11.SERVER), b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    sent(connection, [("content-type", "text/plain")], [b"a"])
    with pytest.raises(h11.LocalProtocolError):
        connection.send(h11.Data(data=b"late"))


def test_the_next_answer_of_a_connection_may_have_a_known_length() -> None:
    connection = serving(ChunkingConnection(h11.SERVER), b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    sent(connection, [("content-type", "text/plain")], [b"a"])
    assert type(connection.next_event()) is h11.EndOfMessage
    connection.start_next_cycle()
    serving(connection, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    assert sent(connection, [("content-length", "3")], [b"abc"])[1] == b"abc"


async def test_a_live_server_streams_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    plain = http1.chunk

    def chunk(data: bytes) -> bytes:
        written.append(plain(data))
        return written[-1]

    monkeypatch.setattr(http1, "chunk", chunk)
    async with live_server(LivingEngine(say("abc"))) as live:
        reader, writer = await live.connect()
        body = b'{"model":"tiny","prompt":"hi","stream":true,"max_tokens":9}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n")
        writer.write(b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
        writer.close()
    assert answer.endswith(b"".join(written) + b"0\r\n\r\n")
    assert len(written) == 5, "three letters, the finish, the end"


class _Exchange:
    """As much of uvicorn's cycle as a shortcut looks at; it is its own flow and transport."""

    def __init__(self) -> None:
        self.disconnected = self.response_complete = self.write_paused = False
        self.flow = self.transport = self
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def test_a_shortcut_writes_within_a_chunked_body_only() -> None:
    connection = serving(ChunkingConnection(h11.SERVER), b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    exchange = _Exchange()
    shortcut = Shortcut(exchange, connection)  # type: ignore[arg-type]
    assert not shortcut.can_write
    connection.send(h11.Response(status_code=200, headers=[("content-type", "text/plain")], reason=b"OK"))
    assert shortcut.can_write
    shortcut.write(b"news")
    assert exchange.written == [b"4\r\nnews\r\n"]
    for reason in ("disconnected", "response_complete", "write_paused"):
        setattr(exchange, reason, True)
        assert not shortcut.can_write
        setattr(exchange, reason, False)
    connection.send(h11.EndOfMessage())
    assert not shortcut.can_write


def test_a_shortcut_does_not_write_into_a_body_of_known_length() -> None:
    connection = serving(ChunkingConnection(h11.SERVER), b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
    connection.send(h11.Response(status_code=200, headers=[("content-length", "4")], reason=b"OK"))
    assert not Shortcut(_Exchange(), connection).can_write  # type: ignore[arg-type]
