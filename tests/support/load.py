"""Load for soak tests: clients that stream, compare what they get, and leave at random; memory of the servers."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from support.sse import chunks, texts_by_index

STALL_S = 300.0


@dataclass(slots=True)
class Tally:
    """What happened to the requests."""

    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Streams that are always open, `count` at a time, of requests drawn from `requests`."""

    host: str
    port: int
    requests: Sequence[dict[str, Any]]
    """Fields of completion requests with one right answer each."""
    expected: Sequence[dict[int, str]]
    """The right texts, by choice."""
    count: int = 64
    cancel_share: float = 0.4

    async def run(self, seconds: float, seed: int = 0) -> Tally:
        """Keep the streams open for so long, then let those under way end."""
        tally, end_s = Tally(), time.monotonic() + seconds
        await asyncio.gather(*(self._client(random.Random(seed + idx), end_s, tally) for idx in range(self.count)))  # noqa: S311
        return tally

    async def _client(self, drawn: random.Random, end_s: float, tally: Tally) -> None:
        while time.monotonic() < end_s:
            idx = drawn.randrange(len(self.requests))
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(post({**self.requests[idx], "stream": True}))
                if drawn.random() < self.cancel_share:
                    await self._leave(drawn, reader, writer)
                    tally.cancelled += 1
                else:
                    self._judge(idx, await asyncio.wait_for(reader.read(), STALL_S), tally)
            finally:
                writer.close()

    @staticmethod
    async def _leave(drawn: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read some of the answer, or nothing, or not even the request's end; then hang up, politely or not."""
        num_bytes = drawn.choice((0, 0, 1, 200, 1000, 4000))
        if num_bytes:
            await asyncio.wait_for(reader.read(num_bytes), STALL_S)
        elif drawn.random() < 0.5:
            await asyncio.sleep(drawn.random() * 0.2)
        if drawn.random() < 0.5:
            writer.transport.abort()

    def _judge(self, idx: int, answer: bytes, tally: Tally) -> None:
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 503 " in head.split(b"\r\n")[0]:
            tally.refused += 1
            return
        seen = texts_by_index(chunks(unchunked(body).decode()))
        tally.finished += 1
        if seen != self.expected[idx]:
            tally.wrong.append(f"request {idx}: {seen!r:.200}")


def post(fields: dict[str, Any]) -> bytes:
    """Write a completion request whose connection ends with the answer."""
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def unchunked(body: bytes) -> bytes:
    """Join the chunks of a chunked body."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


@dataclass(slots=True)
class MemoryLog:
    """Resident bytes of processes over time."""

    processes: dict[str, psutil.Process]
    samples: dict[str, list[int]] = field(default_factory=dict)

    async def watch(self, every_s: float = 0.5) -> None:
        """Take samples until cancelled."""
        while True:
            for name, process in self.processes.items():
                self.samples.setdefault(name, []).append(process.memory_info().rss)
            await asyncio.sleep(every_s)

    def growth(self, name: str) -> tuple[float, float]:
        """Return the medians of the second and the last quarter in MiB."""
        taken = self.samples[name]
        quarter = len(taken) // 4
        second, last = taken[quarter : 2 * quarter], taken[-quarter:]
        return statistics.median(second) / (1 << 20), statistics.median(last) / (1 << 20)

    def assert_flat(self) -> None:
        """Check that nobody's memory grew from the second to the last quarter by more than 5 % and 20 MiB."""
        for name in self.processes:
            second, last = self.growth(name)
            assert last - second < max(20.0, 0.05 * second), f"{name} grew from {second:.0f} to {last:.0f} MiB"
