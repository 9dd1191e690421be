"""What every case of docs/reliability.md checks: refusals that are E4xx, and real servers to try cases on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psutil

from support.server_process import ServerProcess, smollm2_or_skip
from support.tiny_server import TinyServer

REFUSED = range(HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY + 1)
REFUSAL_S = 2.0
JSON_TYPE = {"content-type": "application/json"}


def raw_body(fields: Mapping[str, str]) -> bytes:
    """Join JSON texts to an object, so that a body may hold what no JSON writer would write."""
    return ("{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}").encode()


def assert_refused(
    server: TinyServer, path: str, body: bytes, *, names: str = "", statuses: Container[int] = REFUSED
) -> dict[str, Any]:
    """Check that a body is refused as E4xx: in time, as plain strict JSON, naming the field; returns the error."""
    began_s = time.monotonic()
    response = server.client.post(path, content=body, headers=JSON_TYPE)
    took_s = time.monotonic() - began_s
    assert response.status_code in statuses, response.text
    assert took_s < REFUSAL_S
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = strict_json(response.text)["error"]
    assert error["message"]
    assert names in error["message"], error
    assert "Traceback" not in response.text
    return error


def assert_fields_refused(
    server: TinyServer, path: str, fields: Mapping[str, str], *, names: str = "", statuses: Container[int] = REFUSED
) -> None:
    """Check E4xx for JSON texts by field, whole and as a stream."""
    for ending in ({}, {"stream": "true"}):
        assert_refused(server, path, raw_body({**fields, **ending}), names=names, statuses=statuses)


def strict_json(text: str) -> Any:
    """Parse JSON that must hold no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no strict JSON")

    return json.loads(text, parse_constant=refuse)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll until a condition of another process holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come true in time"
        threading.Event().wait(0.02)


def num_pages(server: TinyServer, *states: str) -> float:
    """KV pages in these states, as of the engine's last heartbeat."""
    seen = server.metrics()
    return sum(seen[f'trivium_kv_pages{{state="{state}"}}'] for state in states)


def next_heartbeats(server: TinyServer, count: int = 2) -> None:
    """Wait for heartbeats, so that metrics of the engine tell of now; the age of the last one falls when one comes."""
    last_age_s, end_s = 0.0, time.monotonic() + 10.0
    while count:
        age_s = server.metrics()["trivium_engine_heartbeat_age_seconds"]
        count -= age_s < last_age_s
        last_age_s = age_s
        assert time.monotonic() < end_s, "the engine's heart does not beat"


def is_idle(server: TinyServer) -> bool:
    """Whether nothing waits or runs and every KV page is free or can be evicted, as of the last heartbeat."""
    seen = server.metrics()
    is_quiet = seen["trivium_requests_waiting"] == seen["trivium_requests_running"] == 0
    return is_quiet and seen['trivium_kv_pages{state="used"}'] == 0


def assert_nothing_is_left(server: TinyServer, within_s: float = 10.0) -> None:
    """Check that soon nothing waits or runs, no page is held, and no HTTP request is under way."""
    began_s = time.monotonic()
    next_heartbeats(server)
    eventually(lambda: is_idle(server), within_s - (time.monotonic() - began_s))
    eventually(lambda: server.metrics()["trivium_open_requests"] == 1.0)  # the one that asks


def resident_bytes(*processes: psutil.Process) -> int:
    """Memory of these processes."""
    return sum(process.memory_info().rss for process in processes)


@contextlib.contextmanager
def smollm2_server(*flags: str) -> Iterator[TinyServer]:
    """A server of SmolLM2 under the name `tiny`, with the same shorthand; skips where it cannot be fetched."""
    with ServerProcess(smollm2_or_skip(), "--served-model-name", "tiny", *flags) as process:
        assert process.process is not None
        with httpx.Client(base_url=process.url, timeout=600) as client:
            server = TinyServer(process.process, client, canary="")
            server.canary = server.text(prompt="canary", max_tokens=12)
            yield server


def assert_never_serves(model: str | Path, *words: str, flags: tuple[str, ...] = (), within_s: float = 10.0) -> None:
    """Check that a server on this model ends by itself, soon, with one line that has these words."""
    began_s = time.monotonic()
    with ServerProcess(model, "--log-level", "error", *flags, wait=False) as server:
        assert server.wait_end(60.0) == 1
        said = server.log().strip().splitlines()
    assert time.monotonic() - began_s < within_s
    assert len(said) == 1, said
    for word in words:
        assert word in said[0]
