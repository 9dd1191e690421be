"""What a running server tells of its requests: timelines over HTTP, with a tiny model, a real engine and real waits."""

from __future__ import annotations

import gzip
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.tiny_engine import deep_model
from support.tiny_server import TinyServer, tiny_server
from trivium.engine.step_trace import FLUSH_S

ADMIN = {"authorization": "Bearer admin-key-0123456789"}
SLACK_S = 1e-6


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    """A server that runs one answer at a time, in steps of at most 16 tokens, of a model that takes its time."""
    flags = ("--max-num-seqs", "1", "--max-num-batched-tokens", "16", "--admin-key", "root=admin-key-0123456789")
    with tiny_server(*flags, model=deep_model(), kv_cache_memory="32MiB") as running:
        yield running


def timeline(server: TinyServer, answer_id: str) -> dict[str, Any]:
    """Return what the server says of a request that has ended, once the engine has said it too."""
    for _ in range(200):
        shown: dict[str, Any] = server.client.get(f"/v1/requests/{answer_id}").json()
        if shown["answers"] and all(answer["state"] == "finished" for answer in shown["answers"]):
            return shown
        time.sleep(0.01)
    raise AssertionError(f"never finished: {shown}")


def test_a_request_runs_in_chunks_and_finds_its_prefix_the_second_time(server: TinyServer) -> None:
    prompt = "tell me about timelines " * 4
    num_tokens = len(server.ids(prompt))
    first, second = (server.complete(prompt=prompt, max_tokens=4, ignore_eos=True).json() for _ in range(2))
    shown = timeline(server, first["id"])
    (answer,) = shown["answers"]
    assert (shown["prompt_tokens"], shown["completion_tokens"], answer["finish_reason"]) == (num_tokens, 4, "length")
    assert [(one["start"], one["num_tokens"]) for one in answer["chunks"]] == [
        (start, min(16, num_tokens - start)) for start in range(0, num_tokens, 16)
    ]
    moments = [answer["queued_s"], *(one["at_s"] for one in answer["starts"]), answer["first_token_s"]]
    assert moments == sorted(moments)
    assert answer["first_token_s"] <= answer["finished_s"] <= shown["seconds"] + SLACK_S
    assert answer["first_token_s"] <= shown["first_token_s"] + SLACK_S, "the engine has a token before the server"
    (again,) = timeline(server, second["id"])["answers"]
    (start,) = again["starts"]
    assert start["cached"] == {"device": num_tokens - 1}
    assert [one["num_tokens"] for one in again["chunks"]] == [1]


def test_a_request_that_waits_says_for_what_and_is_listed(server: TinyServer) -> None:
    bodies: list[Any] = []

    def run(stop: int) -> None:
        bodies.append(server.complete(prompt="wait", max_tokens=400, ignore_eos=True, seed=stop).json())

    threads = [threading.Thread(target=run, args=(idx,)) for idx in range(3)]
    for thread in threads:
        thread.start()
    rows: list[dict[str, Any]] = []
    for _ in range(500):
        rows = server.client.get("/v1/requests", headers=ADMIN).json()["data"]
        if [row["running"] for row in rows] == [1, 0, 0] and all(row["waits_for"] == {"seat": 1} for row in rows[1:]):
            break
        time.sleep(0.002)
    else:
        raise AssertionError(rows)
    open_one = server.client.get(f"/v1/requests/{rows[2]['id']}", headers=ADMIN).json()
    for thread in threads:
        thread.join()
    assert open_one["state"] == "open"
    assert open_one["answers"][0]["waits_for"] == "seat"
    assert open_one["answers"][0]["waited"]["seat"] >= 0
    assert server.client.get("/v1/requests", headers=ADMIN).json()["data"] == []
    answers = [timeline(server, body["id"])["answers"][0] for body in bodies]
    for answer in answers:
        assert sum(answer["waited"].values()) == pytest.approx(answer["queue_seconds"])
    assert sum(answer["waited"].get("seat", 0.0) > 0 for answer in answers) >= 2


def test_choices_and_prompts_have_a_timeline_each(server: TinyServer) -> None:
    body = server.complete(prompt=["one two three", "four"], n=2, max_tokens=2, temperature=1).json()
    answers = timeline(server, body["id"])["answers"]
    assert [(answer["prompt"], answer["choice"]) for answer in answers] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert answers[1]["starts"][0]["cached"] == {"device": answers[0]["prompt_tokens"] - 1}


def test_an_answer_whose_client_left_ends_as_aborted(server: TinyServer) -> None:
    asked = {"model": "tiny", "prompt": "leave", "max_tokens": 480, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=asked) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        answer_id = json.loads(next(lines).removeprefix("data: "))["id"]
    shown = timeline(server, answer_id)
    assert shown["answers"][0]["finish_reason"] == "abort"
    assert (shown["state"], shown["error"]) == ("finished", "client_gone")


def test_a_killed_engine_leaves_a_trace_of_its_steps_and_the_next_one_begins_its_own(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    with tiny_server("--trace-steps", str(path)) as server:
        server.complete(max_tokens=8, ignore_eos=True)
        time.sleep(2 * FLUSH_S)
        first = server.engine
        server.complete(max_tokens=8, ignore_eos=True)
        first.kill()
        first.wait(10)
        for _ in range(500):
            if path.with_name("steps.json.1").exists() and server.client.get("/health").status_code == 200:
                break
            time.sleep(0.02)
        server.complete(max_tokens=2, ignore_eos=True)
    older = json.loads(path.with_name("steps.json.1").read_text() + "]")
    assert {event["name"] for event in older} >= {"step", "choose", "forward", "sample", "read", "commit", "send"}
    assert sum(event["name"] == "step" for event in older) >= 16
    assert {event["pid"] for event in older} == {first.pid}
    newer = json.loads(path.read_text().rstrip().removesuffix("]") + "]")  # perhaps it had time to end it
    assert sum(event["name"] == "step" for event in newer) == 2


def test_metrics_of_a_running_server_have_all_that_the_dashboard_shows(server: TinyServer) -> None:
    dashboard = (Path(__file__).resolve().parents[2] / "docs" / "grafana" / "trivium.json").read_text()
    server.complete(n=0)
    body = server.complete(prompt="metrics", max_tokens=3, ignore_eos=True).json()
    timeline(server, body["id"])
    seen = {name.partition("{")[0] for name in server.metrics()}
    seen |= set(re.findall(r"^# TYPE (\w+)", server.client.get("/metrics").text, re.MULTILINE))  # tiers: there are none
    assert set(re.findall(r"trivium_\w+", dashboard)) <= seen
    metrics = server.metrics()
    assert metrics["trivium_answer_seconds_count"] == metrics["trivium_queue_seconds_count"] >= 1
    assert metrics["trivium_step_tokens_sum"] >= metrics["trivium_step_tokens_count"] >= 3
    waiting = sum(value for name, value in metrics.items() if name.startswith("trivium_requests_waiting_by_reason"))
    assert waiting == metrics["trivium_requests_waiting"] == 0
    assert sum(value for name, value in metrics.items() if name.startswith("trivium_wait_seconds_total")) > 0


class Collector(BaseHTTPRequestHandler):
    """Takes spans over OTLP/HTTP."""

    spans: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        payload = self.rfile.read(int(self.headers["content-length"]))
        payload = gzip.decompress(payload) if self.headers.get("content-encoding") == "gzip" else payload
        for resource in ExportTraceServiceRequest.FromString(payload).resource_spans:
            self.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_spans_reach_a_collector_by_the_time_the_server_has_ended() -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
        with tiny_server("--otlp-endpoint", endpoint, "--log-format", "json") as server:
            headers = {"traceparent": f"00-{trace}-{parent}-01"}
            body = {"model": "tiny", "prompt": "trace me", "max_tokens": 5, "ignore_eos": True}
            answer = server.client.post("/v1/completions", json=body, headers=headers).json()
            server.tell(signal.SIGTERM)
            assert server.wait() == 0
            log = list(server.log)
        collector.shutdown()
    ours = {span.name: span for span in Collector.spans if span.trace_id.hex() == trace}
    assert set(ours) == {"text_completion tiny", "queue", "prefill", "decode"}
    root = ours["text_completion tiny"]
    shown = {one.key: one.value for one in root.attributes}
    assert root.parent_span_id.hex() == parent
    assert shown["gen_ai.response.id"].string_value == answer["id"]
    assert shown["gen_ai.usage.output_tokens"].int_value == 5
    for name in ("queue", "prefill", "decode"):
        part = ours[name]
        assert part.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000
    lines = [json.loads(line) for line in log if line.startswith("{")]
    (access,) = [line for line in lines if line.get("answer_id") == answer["id"]]
    assert (access["trace_id"], access["finish"], access["completion_tokens"]) == (trace, "length", 5)
    assert 0 <= access["queue_ms"] <= access["ttft_ms"] <= access["ms"]
