"""The engine is killed at random moments under 200 streams, and no stream shows it.

`--log-cli-level INFO` shows how often it was killed and how long its place was empty. `SOAK_STREAMS=400` changes how
many streams are read in all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from soak.test_load import right_answers, text_requests, tiny_requests
from support.case_checks import assert_nothing_is_left, smollm2_server
from support.load import Clients
from support.tiny_engine import tiny_model
from support.tiny_server import TinyServer, tiny_server

pytestmark = pytest.mark.soak

OPEN = 200
NUM_STREAMS = int(os.environ.get("SOAK_STREAMS", "1000"))
NUM_OF_TEXT = max(OPEN, NUM_STREAMS // 4)
ADMIN = {"authorization": "Bearer soak-admin-key"}
PAUSE_S = 2.0
"""Longest pause from one engine's being ready to its death."""
logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log the numbers, and not every request."""
    for name in ("httpx", "trivium.access"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


@dataclass
class Killer:
    """Kills the engine of a server again and again, each at a random moment of its life."""

    server: TinyServer
    drawn: random.Random
    empty_s: list[float] = field(default_factory=list)
    """Seconds from each death until the next engine took requests."""

    async def work(self) -> None:
        """Kill until cancelled."""
        url = str(self.server.client.base_url).rstrip("/")
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            while True:
                await asyncio.sleep(self.drawn.random() * PAUSE_S)
                self.server.engine.kill()
                died_s = time.monotonic()
                while (await client.get("/health")).status_code == httpx.codes.OK:
                    await asyncio.sleep(0.005)
                while (await client.get("/health")).status_code != httpx.codes.OK:
                    await asyncio.sleep(0.01)
                self.empty_s.append(time.monotonic() - died_s)


async def streams_under_fire(
    server: TinyServer, requests: Sequence[dict[str, Any]], expected: Sequence[dict[int, str]], num_streams: int
) -> None:
    """Read streams, always 200 at a time, while their engines die; every one must be right."""
    url = server.client.base_url
    clients = Clients(
        host=url.host, port=url.port or 0, requests=requests, expected=expected, count=OPEN, shares={"stream": 1}
    )
    killer = Killer(server, random.Random(7))  # noqa: S311
    killing, began_s = asyncio.create_task(killer.work()), time.monotonic()
    tally = await clients.run(num_streams)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    logger.info("%s in %.0f s, %d engines killed", dict(tally.ended), time.monotonic() - began_s, len(killer.empty_s))
    logger.info("no engine for %.2f s on average, %.2f s at most", sum(killer.empty_s) / len(killer.empty_s),
                max(killer.empty_s))  # fmt: skip
    assert tally.wrong == []
    assert tally.ended == {"stream right": num_streams}
    assert len(killer.empty_s) >= 3
    await asyncio.to_thread(assert_nothing_is_left, server)
    assert server.client.get("/v1/cache/check", headers=ADMIN).json() == {"differences": []}
    server.assert_alive()


async def test_tiny_model_under_kills() -> None:
    requests = [fields | {"max_tokens": 250, "n": 1} for fields in tiny_requests()]
    flags = ("--max-model-len", "512", "--admin-key", "soak-admin-key")
    with tiny_server(*flags, model=tiny_model(), kv_cache_memory="4MiB") as server:
        expected = right_answers(server, requests)
        await streams_under_fire(server, requests, expected, NUM_STREAMS)


async def test_smollm2_under_kills() -> None:
    requests = text_requests()
    flags = ("--kv-cache-memory", "64MiB", "--max-model-len", "512", "--admin-key", "soak-admin-key")
    with smollm2_server(*flags) as server:
        expected = right_answers(server, requests)
        await streams_under_fire(server, requests, expected, NUM_OF_TEXT)
