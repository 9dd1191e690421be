"""The server over real sockets: closed connections, keep-alive, slow and large bodies (cases E04, A02 at the wire)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from support.fake_engine import say
from support.live_server import LiveServer, LivingEngine, live_server
from support.sse import chunks, texts_by_index

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server() as server:
        yield server


def request_bytes(path: str, **fields: Any) -> bytes:
    body = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 400, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def until(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("hold_after", [0, 1, 5])
@pytest.mark.parametrize("fields", [{}, {"n": 4}, {"prompt": ["a", "b", "c"], "n": 2}])
async def test_a_closed_connection_ends_the_request(
    live: LiveServer, is_stream: bool, hold_after: int, fields: dict[str, Any]
) -> None:
    engine = live.engine
    engine.hold_after = hold_after
    for _ in range(3):
        engine.held.clear()
        _, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=is_stream, **fields))
        await until(engine.held)
        assert engine.open_ids
        writer.close()
        await until(engine.idle)
    assert engine.open_ids == set()
    assert len(engine.aborted) == len(engine.submitted)
    await asyncio.wait_for(live.app.state.service.jobs.wait_empty(5), 6)
    engine.release.set()
    async with httpx.AsyncClient(base_url=live.url) as client:
        response = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
        assert response.json()["choices"][0]["text"] == "abcdefghijklmnop"


async def test_a_connection_closed_after_the_answer_aborts_nothing(live: LiveServer) -> None:
    for is_stream in (False, True):
        reader, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=is_stream, max_tokens=1))
        await asyncio.wait_for(reader.readuntil(b"]" if is_stream else b"}}"), 5)
        await until(live.engine.idle)
        writer.close()
    assert live.engine.aborted == []


async def test_silence_is_filled_with_comments_until_the_answer_comes() -> None:
    engine = LivingEngine()
    engine.hold_after = 0
    async with live_server(engine, keep_alive_s=0.02) as live:
        reader, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=True, max_tokens=3))
        for _ in range(3):
            await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        engine.release.set()
        rest = (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)).decode()
        writer.close()
    assert rest.count("data: [DONE]") == 1
    assert '"text":"a"' in rest


async def test_a_queued_stream_that_is_refused_late_says_so_in_an_event() -> None:
    engine = LivingEngine()
    engine.hold_after = 0
    async with live_server(engine, keep_alive_s=0.02) as live:
        reader, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=True))
        await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        engine.die()
        rest = (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)).decode()
        writer.close()
    assert rest.count('data: {"error"') == 1
    assert '"code":"engine_dead"' in rest
    assert "[DONE]" not in rest


async def test_the_stream_is_whole_when_it_is_read_byte_by_byte() -> None:
    text = "🐱 日本語 é 👩‍👩‍👧"
    async with live_server(LivingEngine(say(text))) as live:
        reader, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=True))
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()
    lines = [line for line in received.split(b"\r\n") if line.startswith(b"data: ")]
    assert all(line.decode() for line in lines)
    seen = chunks("".join(line.decode() for line in lines))
    assert texts_by_index(seen) == {0: text}


async def test_a_body_that_grows_too_long_is_refused_while_it_arrives() -> None:
    async with live_server(max_body_bytes=10_000) as live:
        reader, writer = await live.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(11):
            writer.write(b"3e8\r\n" + b" " * 1000 + b"\r\n")
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 5)  # the body never ended; the server closed the connection
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer


async def test_a_declared_length_that_is_too_long_is_refused_unread() -> None:
    async with live_server(max_body_bytes=10_000) as live:
        reader, writer = await live.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(live: LiveServer) -> None:
    for cut in (1, 60, 150, 200):
        _, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", prompt="x" * 200)[:cut])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    async with httpx.AsyncClient(base_url=live.url) as client:
        assert (await client.get("/health")).status_code == 200
    assert live.engine.submitted == []


async def test_one_connection_serves_many_requests_in_turn(live: LiveServer) -> None:
    reader, writer = await live.connect()
    for _ in range(5):
        writer.write(request_bytes("/v1/completions", max_tokens=2))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["choices"][0]["text"] == "ab"
    writer.close()


async def test_two_hundred_requests_that_leave_at_random_leave_nothing(live: LiveServer) -> None:
    async def leave(idx: int) -> None:
        reader, writer = await live.connect()
        writer.write(request_bytes("/v1/completions", stream=idx % 2 == 0, n=1 + idx % 4, max_tokens=1 + idx * 7 % 60))
        if idx % 3:
            await asyncio.wait_for(reader.read(1 + idx * 37 % 900), 5)
        writer.close()

    for start in range(0, 200, 20):
        await asyncio.gather(*(leave(idx) for idx in range(start, start + 20)))
    assert await live.app.state.service.jobs.wait_empty(5)
    assert live.engine.open_ids == set()
    async with httpx.AsyncClient(base_url=live.url) as client:
        assert "trivium_open_requests 1.0" in (await client.get("/metrics")).text
