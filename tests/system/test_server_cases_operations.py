"""Faults of other servers in operation, tried on the tiny model (cases E04, I, J of docs/reliability.md)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.sse import events
from support.tiny_server import TinyServer, tiny_server


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server("--api-key", "tests=SENTINEL-KEY", key="SENTINEL-KEY") as server:
        yield server


@pytest.fixture
def server(running: TinyServer) -> Iterator[TinyServer]:
    yield running
    running.assert_alive()


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll until a condition of another process holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        threading.Event().wait(0.02)


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


def test_i03_nothing_is_fetched_for_a_client(server: TinyServer) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        local = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        for url in (local, "http://169.254.169.254/latest", "file:///etc/passwd"):
            part = {"type": "image_url", "image_url": {"url": url}}
            messages = [{"role": "user", "content": [part]}]
            assert server.post("/v1/chat/completions", messages=messages).status_code == 400
        with pytest.raises(TimeoutError):
            listener.accept()


def test_i04_only_the_open_list_answers_without_a_key(server: TinyServer) -> None:
    document = server.client.get("/openapi.json").json()
    with httpx.Client(base_url=server.client.base_url) as stranger:
        for path in [*document["paths"], "//v1/models", "/V1/models", "/v1/models/", "/nope"]:
            for method in ("GET", "POST"):
                is_open = path in {"/health", "/live"}
                assert (stranger.request(method, path).status_code == 401) != is_open
        for key in (b"SENTINEL-KE", b"SENTINEL-KEYS", b"\xff\xfe", "schlüssel".encode()):
            wrong = stranger.get("/v1/models", headers={"authorization": b"Bearer " + key})
            assert wrong.status_code == 401


def test_i05_secrets_and_prompts_are_nowhere(server: TinyServer) -> None:
    answers = [server.complete(prompt="SENTINEL-PROMPT", max_tokens=1), server.complete(prompt="SENTINEL-PROMPT", n=0)]
    answers += [server.client.get(path) for path in ("/metrics", "/v1/models", "/version", "/health", "/nope")]
    assert not any("SENTINEL" in answer.text for answer in answers)
    assert server.log
    assert not any("SENTINEL" in line for line in server.log)


def test_j01_a_frozen_engine_shows_and_its_requests_end_with_an_error() -> None:
    with tiny_server("--heartbeat-timeout-s", "1.5") as server, ThreadPoolExecutor(2) as pool:
        engine = server.engine
        fields: dict[str, Any] = {"prompt": [70] * 8, "max_tokens": 500, "ignore_eos": True, "n": 8}
        asked = [pool.submit(server.complete, **fields, stream=is_stream) for is_stream in (False, True)]
        eventually(lambda: server.metrics().get("trivium_requests_running", 0) > 0)
        engine.send_signal(signal.SIGSTOP)
        eventually(lambda: server.client.get("/health").status_code == 503, 5)
        whole, stream = (future.result(timeout=15) for future in asked)
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_dead")
        assert events(stream.text)[-1]["error"]["code"] == "engine_dead"
        eventually(lambda: server.client.get("/health").status_code == 200, 20)
        server.assert_alive()


def test_j03_running_requests_finish_after_sigterm_and_the_exit_code_is_zero() -> None:
    with tiny_server("--max-num-seqs", "8") as server, ThreadPoolExecutor(12) as pool:
        fields: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": True}
        asked = [pool.submit(server.complete, prompt=f"stream {idx}", **fields) for idx in range(12)]
        eventually(lambda: server.metrics().get("trivium_requests_running", 0) > 0)
        server.tell(signal.SIGTERM)
        for future in asked:
            response = future.result(timeout=20)
            is_late = response.status_code == 503
            assert is_late or events(response.text)[-1] == "[DONE]"
        assert sum(future.result().status_code == 200 for future in asked) >= 8
        assert server.wait() == 0


def test_j03_a_second_signal_ends_at_once() -> None:
    with tiny_server("--drain-timeout-s", "600") as server, ThreadPoolExecutor(1) as pool:
        engine = server.engine
        asked = pool.submit(server.complete, prompt="x", n=32, max_tokens=480, ignore_eos=True, stream=True)
        eventually(lambda: server.metrics().get("trivium_requests_running", 0) > 0)
        server.tell(signal.SIGTERM)
        eventually(lambda: server.client.get("/health").status_code == 503)
        began_s = time.monotonic()
        server.tell(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began_s < 3
        assert asked.exception(timeout=5) is not None or "[DONE]" not in asked.result().text
        eventually(lambda: not engine.is_running())
