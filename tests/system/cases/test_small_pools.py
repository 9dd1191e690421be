"""A KV pool that is too small for what is asked of it (cases D04 E01 E03 E04 over HTTP)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.case_checks import REFUSED, assert_nothing_is_left, next_heartbeats, num_pages
from support.sse import chunks, texts_by_index
from support.tiny_server import TinyServer, tiny_server

POOL_TOKENS = 256
"""64 KiB of KV: 16 pages of 16 tokens."""
TOO_LARGE = 413


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server("--max-model-len", "512", "--check-accounting", kv_cache_memory="64KiB") as server:
        yield server


@pytest.fixture(scope="module")
def reference() -> Iterator[TinyServer]:
    with tiny_server("--no-prefix-cache") as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_lost(server: TinyServer) -> Iterator[None]:
    yield
    assert_nothing_is_left(server)
    assert num_pages(server, "free", "cached") == POOL_TOKENS // 16
    assert server.metrics()["trivium_accounting_differences_total"] == 0


def ids(seed: int, length: int) -> list[int]:
    return [(seed * 37 + idx * (seed % 11 + 1)) % 250 + 3 for idx in range(length)]


def test_d04_a_prefix_in_use_survives_a_storm_of_evictions(server: TinyServer, reference: TinyServer) -> None:
    prompt = ids(1, 60)
    held: dict[str, Any] = {"prompt": prompt, "max_tokens": 100, "ignore_eos": True}
    with ThreadPoolExecutor(5) as pool:
        stream = pool.submit(server.text, **held, stream=True)
        storm = [[*prompt[: idx % 60], *ids(100 + idx, 30)] for idx in range(200)]
        for response in pool.map(lambda other: server.complete(prompt=other, max_tokens=1), storm):
            assert response.status_code == 200
        assert stream.result() == reference.text(**held)


def test_e01_what_can_never_fit_is_refused_and_blocks_nobody(server: TinyServer, reference: TinyServer) -> None:
    short: dict[str, Any] = {"prompt": ids(2, 20), "max_tokens": 8, "ignore_eos": True}
    grows: dict[str, Any] = {"prompt": ids(3, 100), "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(4) as pool:
        began_s = time.monotonic()
        never = pool.submit(server.complete, prompt=ids(4, POOL_TOKENS + 40), max_tokens=8)
        growing = pool.submit(server.complete, **grows)
        many = pool.submit(server.complete, prompt=ids(5, 20), n=8, max_tokens=60, temperature=1, ignore_eos=True)
        behind = pool.submit(server.text, **short)
        refused = never.result()
        assert time.monotonic() - began_s < 2
        assert refused.status_code in {TOO_LARGE, *REFUSED}
        assert str(POOL_TOKENS) in refused.json()["error"]["message"]
        assert behind.result() == reference.text(**short)
        assert time.monotonic() - began_s < 5
        body = growing.result().json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert 100 < body["usage"]["completion_tokens"] < 400
        assert reference.text(**grows).startswith(body["choices"][0]["text"][:100])
        assert [choice["finish_reason"] for choice in many.result().json()["choices"]] == ["length"] * 8


def test_e03_preempted_streams_lose_and_repeat_nothing(server: TinyServer, reference: TinyServer) -> None:
    before = server.metrics()["trivium_preemptions_total"]
    asked: list[dict[str, Any]] = []
    for idx in range(16):
        fields: dict[str, Any] = {"prompt": ids(10 + idx, 10 + idx), "max_tokens": 60, "ignore_eos": True}
        fields |= {"frequency_penalty": 0.7, "stop": ["zq", "\u0007"]} if idx % 2 else {}
        asked.append(fields)
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda fields: server.complete(**fields, **streaming), asked))
    for fields, answer in zip(asked, answers, strict=True):
        expected = reference.complete(**fields).json()
        seen = chunks(answer.text)
        assert texts_by_index(seen)[0] == expected["choices"][0]["text"]
        usage = seen[-1]["usage"]
        assert usage["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert usage["completion_tokens"] == expected["usage"]["completion_tokens"]
    next_heartbeats(server)
    assert server.metrics()["trivium_preemptions_total"] > before


MOMENTS: list[tuple[int, dict[str, Any]]] = [
    (0, {"prompt": ids(1, 200), "max_tokens": 40}),  # queued, or in prefill
    (0, {"prompt": ids(2, 5), "max_tokens": 1}),  # ends inside prefill
    (1, {"prompt": ids(3, 150), "max_tokens": 100}),  # the first byte: accepted
    (700, {"prompt": ids(4, 5), "max_tokens": 200}),  # in decode
    (900, {"prompt": ids(5, 5), "max_tokens": 4}),  # about the last token
    (600, {"prompt": ids(6, 20), "max_tokens": 60, "n": 4}),
    (0, {"prompt": ids(7, 90), "max_tokens": 60, "n": 4}),
    (300, {"prompt": [ids(8, 9), ids(9, 40)], "max_tokens": 60, "n": 2}),
]
"""How many bytes of the answer to read before closing, and what to ask for."""


async def leave(server: TinyServer, num_bytes: int, fields: dict[str, Any]) -> None:
    url = server.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True, **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    await writer.drain()
    if num_bytes:
        await asyncio.wait_for(reader.read(num_bytes), 20)
    writer.close()


@pytest.mark.slow
async def test_e04_two_hundred_clients_that_leave_leave_nothing(server: TinyServer) -> None:
    for round_ in range(25):
        streamed = [(num_bytes, {**fields, "stream": round_ % 2 == 0}) for num_bytes, fields in MOMENTS]
        await asyncio.gather(*(leave(server, num_bytes, fields) for num_bytes, fields in streamed))
        await asyncio.to_thread(assert_nothing_is_left, server, 2.0)
        assert num_pages(server, "free", "cached") == POOL_TOKENS // 16
