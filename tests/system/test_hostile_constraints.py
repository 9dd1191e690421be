"""Twenty constraints that cost as much as they can, all at once, beside a stream that nobody may disturb.

Behaviour only; `benchmarks/hostile.py` measures by how much the stream's gaps grow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from support.hostile_constraints import FIELDS
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model

CANARY = {"prompt": "a", "seed": 3, "max_tokens": 300, "ignore_eos": True}


def complete(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"model": "tiny", **fields}, timeout=100)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def hostile(url: str, wanted: Mapping[str, Any]) -> httpx.Response:
    return complete(url, prompt="b", seed=1, max_tokens=20, structured_outputs=dict(wanted))


def test_hostile_constraints_end_and_disturb_nobody() -> None:
    assert len(FIELDS) == 20
    with (
        ServerProcess(
            tiny_model(), "--served-model-name", "tiny", "--kv-cache-memory", "4MiB", "--threads", "1"
        ) as server,
        ThreadPoolExecutor(len(FIELDS) + 1) as pool,
    ):
        alone = text_of(complete(server.url, **CANARY))
        answers = {name: pool.submit(hostile, server.url, wanted) for name, wanted in FIELDS.items()}
        beside = pool.submit(complete, server.url, **CANARY)
        assert text_of(beside.result()) == alone
        for name, promise in answers.items():
            answer = promise.result()
            if answer.status_code == 200:
                assert answer.json()["choices"][0]["finish_reason"] in {"stop", "length"}, name
            else:
                assert 400 <= answer.status_code < 500, (name, answer.text)
                assert answer.json()["error"]["message"], name
        assert text_of(complete(server.url, **CANARY)) == alone
        metrics = httpx.get(f"{server.url}/metrics").text
        assert re.search(r"^trivium_engine_restarts(_total)? 0(\.0)?$", metrics, re.MULTILINE)
