"""Faults of other servers in operation, tried on the tiny model (cases E04, I, J of docs/reliability.md)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.case_checks import assert_never_serves, eventually
from support.sse import chunks, texts_by_index
from support.tiny_engine import deep_model, tiny_model
from support.tiny_server import TinyServer, tiny_server


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server("--api-key", "tests=SENTINEL-KEY", key="SENTINEL-KEY") as server:
        yield server


@pytest.fixture
def server(running: TinyServer) -> Iterator[TinyServer]:
    yield running
    running.assert_alive()


def is_idle(server: TinyServer, num_pages: float) -> bool:
    seen = server.metrics()
    held = seen['trivium_kv_pages{state="free"}'] + seen['trivium_kv_pages{state="cached"}']
    return seen["trivium_requests_waiting"] == seen["trivium_requests_running"] == 0 and held == num_pages


async def close_early(server: TinyServer, body: dict[str, Any], num_bytes: int) -> None:
    reader, writer = await asyncio.open_connection(server.client.base_url.host, server.client.base_url.port)
    payload = json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True, **body}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer SENTINEL-KEY\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    if num_bytes:
        await asyncio.wait_for(reader.read(num_bytes), 10)
    writer.close()


async def test_e04_closed_connections_leave_nothing_behind(server: TinyServer) -> None:
    eventually(lambda: 'trivium_kv_pages{state="free"}' in server.metrics())
    eventually(lambda: server.metrics()['trivium_kv_pages{state="free"}'] > 0)
    seen = server.metrics()
    num_pages = sum(seen[f'trivium_kv_pages{{state="{state}"}}'] for state in ("free", "cached", "used"))
    drawn = random.Random(3)  # noqa: S311
    for _ in range(10):
        bodies = [
            {
                "prompt": [drawn.randrange(3, 250) for _ in range(drawn.choice((3, 40, 300)))],
                "max_tokens": drawn.choice((1, 40, 200)),
                "n": drawn.choice((1, 1, 4)),
                "stream": drawn.random() < 0.6,
            }
            for _ in range(8)
        ]
        await asyncio.gather(*(close_early(server, body, drawn.choice((0, 1, 700))) for body in bodies))
    await asyncio.to_thread(eventually, lambda: is_idle(server, num_pages), 10.0)


@pytest.mark.parametrize(
    "fields",
    [{"n": 1000000}, {"best_of": 1000000}, {"n": 512}, {"logprobs": 49152}, {"logprobs": -1}, {"prompt_logprobs": -1},
     {"prompt_logprobs": 21}, {"prompt": ["x"] * 100_000}, {"stop": ["x"] * 100_000}],
)  # fmt: skip
def test_i01_i02_huge_counts_are_refused_at_once(server: TinyServer, fields: dict[str, Any]) -> None:
    began_s = time.monotonic()
    assert server.complete(**fields).status_code == 400
    assert time.monotonic() - began_s < 1


def test_i01_the_largest_count_finishes(server: TinyServer) -> None:
    body = server.complete(n=128, max_tokens=2, ignore_eos=True).json()
    assert len(body["choices"]) == 128
    assert body["usage"]["completion_tokens"] == 256


def test_i05_secrets_and_prompts_are_nowhere(server: TinyServer) -> None:
    answers = [server.complete(prompt="SENTINEL-PROMPT", max_tokens=1), server.complete(prompt="SENTINEL-PROMPT", n=0)]
    answers += [server.client.get(path) for path in ("/metrics", "/v1/models", "/version", "/health", "/nope")]
    assert not any("SENTINEL" in answer.text for answer in answers)
    assert server.log
    assert not any("SENTINEL" in line for line in server.log)


def test_j01_a_frozen_engine_shows_and_its_requests_go_on_in_another() -> None:
    deep = {"model": deep_model(), "kv_cache_memory": "64MiB"}
    with tiny_server("--heartbeat-timeout-s", "1.5", **deep) as server, ThreadPoolExecutor(2) as pool:
        engine = server.engine
        # Many answers each, of a deep model, so that they last longer than it takes to see that they run.
        fields: dict[str, Any] = {"prompt": [70] * 8, "max_tokens": 100, "ignore_eos": True, "n": 32}
        undisturbed = server.complete(**fields).json()["choices"]
        asked = [pool.submit(server.complete, **fields, stream=is_stream) for is_stream in (False, True)]
        eventually(lambda: server.metrics().get("trivium_requests_running", 0) > 32)
        engine.send_signal(signal.SIGSTOP)
        eventually(lambda: server.client.get("/health").status_code == 503, 5)
        whole, stream = (future.result(timeout=60) for future in asked)
        assert whole.json()["choices"] == undisturbed
        assert texts_by_index(chunks(stream.text)) == {idx: choice["text"] for idx, choice in enumerate(undisturbed)}
        eventually(lambda: server.client.get("/health").status_code == 200, 20)
        server.assert_alive()


def test_an_engine_whose_server_was_killed_ends_and_leaves_no_folder() -> None:
    with tiny_server() as server:
        engine = server.engine
        folder = Path(engine.cmdline()[-3])
        assert {path.name for path in folder.iterdir()} == {"inbox.sock", "outbox.sock", "journal"}
        server.process.kill()
        server.wait()
        eventually(lambda: not engine.is_running() and not folder.exists())


def test_a_context_beyond_the_models_own_is_never_served() -> None:
    assert_never_serves(tiny_model(), "513", "512", "--max-model-len", flags=("--max-model-len", "513"))
