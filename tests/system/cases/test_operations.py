"""Starting, ending and failing of a real server (cases J01 J02 J03 J04)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

from support.case_checks import eventually, is_idle, next_heartbeats
from support.server_process import ServerProcess, free_port
from support.sse import chunks, events, texts_by_index
from support.tiny_engine import tiny_model
from support.tiny_server import tiny_server

EXECUTOR = "reference"
"""Answers of the tiny model must last long enough to be stopped midway."""
UNAVAILABLE = 503
ENDLESS: dict[str, Any] = {"max_tokens": 480, "ignore_eos": True}


def test_j01_a_killed_engine_is_red_and_its_requests_go_on_in_another() -> None:
    with tiny_server() as server, ThreadPoolExecutor(3) as pool:
        undisturbed = server.complete(**ENDLESS, n=4).json()
        asked = [pool.submit(server.complete, **ENDLESS, n=4, stream=is_stream) for is_stream in (False, True)]
        eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
        server.engine.kill()
        eventually(lambda: server.client.get("/health").status_code == UNAVAILABLE, 2)
        late = pool.submit(server.complete, **ENDLESS, n=4)
        whole, stream = (future.result(timeout=60) for future in asked)
        for answer in (whole, late.result(timeout=60)):
            assert answer.json()["choices"] == undisturbed["choices"]
        texts = {choice["index"]: choice["text"] for choice in undisturbed["choices"]}
        assert texts_by_index(chunks(stream.text)) == texts
        eventually(lambda: server.client.get("/health").is_success, 20)
        server.assert_alive()


def status_of(client: httpx.Client, path: str, body: dict[str, Any] | None = None) -> int | None:
    """Status of a request; `None` where nobody listens yet."""
    try:
        return (client.get(path) if body is None else client.post(path, json=body)).status_code
    except httpx.TransportError:
        return None


def test_j02_nothing_is_green_before_the_first_answer_can_be_given() -> None:
    one_token = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    seen: list[tuple[int | None, int | None, int | None]] = []
    with (
        ServerProcess(tiny_model(), "--served-model-name", "tiny", "--kv-cache-memory", "1MiB", wait=False) as process,
        httpx.Client(base_url=process.url, timeout=10) as client,
    ):
        end_s = time.monotonic() + 60
        while not seen or seen[-1][0] != httpx.codes.OK:
            assert time.monotonic() < end_s
            health = status_of(client, "/health")
            answer = status_of(client, "/v1/completions", one_token)
            models = status_of(client, "/v1/models")
            seen.append((health, answer, models))
            threading.Event().wait(0.05)
        assert seen[-1] == (200, 200, 200)
        for round_ in seen[:-1]:
            assert round_[0] in {None, UNAVAILABLE}
            assert set(round_[1:]) <= {None, UNAVAILABLE, 200}  # it may have become ready in between
        assert UNAVAILABLE in {health for health, _, _ in seen}
        for _ in range(5):
            assert status_of(client, "/v1/completions", one_token) == httpx.codes.OK


def test_j03_running_streams_finish_after_sigterm_and_queued_and_new_requests_are_refused() -> None:
    with tiny_server("--max-num-seqs", "8", kv_cache_memory="4MiB") as server, ThreadPoolExecutor(24) as pool:
        fields: dict[str, Any] = {**ENDLESS, "max_tokens": 320, "stream": True}
        asked = [pool.submit(server.complete, prompt=f"stream {idx}", **fields) for idx in range(24)]

        def are_all_accepted() -> bool:
            # With eight at a time, three rounds: some still run and wait however late the counters are read.
            seen = server.metrics()
            num_canaries = 1
            num_done = seen.get('trivium_answers_finished_total{reason="length"}', 0) - num_canaries
            return seen["trivium_requests_running"] + seen["trivium_requests_waiting"] + num_done == len(asked)

        eventually(are_all_accepted)
        server.tell(signal.SIGTERM)
        eventually(lambda: server.client.get("/health").status_code == UNAVAILABLE, 2)
        late = server.complete(prompt="late")
        assert (late.status_code, late.json()["error"]["code"]) == (UNAVAILABLE, "shutting_down")
        assert server.client.get("/live").status_code == httpx.codes.OK
        responses = [future.result(timeout=60) for future in asked]
        finished = [response for response in responses if response.status_code == httpx.codes.OK]
        handed_back = [response for response in responses if response.status_code == UNAVAILABLE]
        assert len(finished) + len(handed_back) == len(asked)
        assert len(finished) >= 8
        assert len(handed_back) >= 1
        for response in finished:
            assert chunks(response.text)[-1]["choices"][0]["finish_reason"] == "length"
        for response in handed_back:
            assert response.json()["error"]["code"] == "shutting_down"
            assert int(response.headers["retry-after"]) > 0
        assert server.wait() == 0


def test_j03_streams_that_outlast_the_drain_end_with_one_error_and_the_engine_is_gone() -> None:
    with tiny_server("--drain-timeout-s", "0.2", kv_cache_memory="4MiB") as server, ThreadPoolExecutor(4) as pool:
        engine = server.engine
        asked = [pool.submit(server.complete, **ENDLESS, n=16, prompt=f"{idx}", stream=True) for idx in range(4)]
        eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
        server.tell(signal.SIGTERM)
        for future in asked:
            seen = events(future.result(timeout=20).text)
            assert [payload for payload in seen if "error" in payload] == [seen[-1]]
            assert seen[-1]["error"]["code"] == "shutting_down"
        assert server.wait() == 0
        eventually(lambda: not psutil.pid_exists(engine.pid))


def test_j03_an_engine_that_dies_during_the_drain_is_replaced_and_its_requests_finish() -> None:
    with tiny_server(kv_cache_memory="4MiB") as server, ThreadPoolExecutor(1) as pool:
        fields: dict[str, Any] = {**ENDLESS, "n": 32}
        undisturbed = server.complete(**fields).json()["choices"]
        asked = pool.submit(server.complete, **fields)
        eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
        server.tell(signal.SIGTERM)
        server.engine.kill()
        assert asked.result(timeout=60).json()["choices"] == undisturbed
        assert server.wait() == 0


def test_j03_a_second_signal_ends_at_once() -> None:
    with tiny_server("--drain-timeout-s", "600", kv_cache_memory="4MiB") as server, ThreadPoolExecutor(1) as pool:
        engine = server.engine
        asked = pool.submit(server.complete, **ENDLESS, n=64, stream=True)
        eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
        server.tell(signal.SIGTERM)
        eventually(lambda: server.client.get("/health").status_code == UNAVAILABLE)
        began_s = time.monotonic()
        server.tell(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began_s < 3
        assert asked.exception(timeout=10) is not None or "[DONE]" not in asked.result().text
        eventually(lambda: not psutil.pid_exists(engine.pid))


def test_j04_a_port_that_is_taken_is_named_within_two_seconds_and_before_loading() -> None:
    with tiny_server() as first:
        port = str(first.client.base_url.port)
        command = [sys.executable, "-m", "trivium", "serve", "--port", port]
        took_s: list[float] = []
        for model in (str(tiny_model()), "/does/not/exist"):
            began_s = time.monotonic()
            second = subprocess.run(  # noqa: S603  (our own program)
                [*command[:4], model, *command[4:]], capture_output=True, text=True, timeout=30, check=False
            )
            took_s.append(time.monotonic() - began_s)
            assert second.returncode == 1
            assert port in second.stderr
            assert len(second.stderr.splitlines()) == 1
        assert min(took_s) < 2
        first.assert_alive()
        next_heartbeats(first)
        assert is_idle(first)
    assert free_port()
