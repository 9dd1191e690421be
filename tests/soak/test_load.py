"""Ten thousand requests, 128 at a time, of which half end badly: nothing leaks, and every answer is right.

Clients leave, give up, break off, let deadlines pass and send rubbish (`support.load`); the KV pool is too small for
what runs, and the queue for what comes. Once with the options that a server has by itself, and once on servers whose
options are drawn. The numbers are logged; `--log-cli-level INFO` shows them. `SOAK_REQUESTS=1000` makes it shorter,
`SOAK_SEED=7` draws the options that another run had.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.case_checks import assert_nothing_is_left, next_heartbeats, num_pages, smollm2_server
from support.load import Clients, Tally
from support.process_log import ProcessLog
from support.tiny_engine import tiny_model
from support.tiny_server import TinyServer, tiny_server
from trivium.cache.evict import ORDERS as EVICTIONS
from trivium.config.options import ServerOptions
from trivium.config.resolve import options_from
from trivium.schedule.admit import POLICIES
from trivium.schedule.orders import ORDERS
from trivium.server import launch
from trivium.server.lifetime import bind_socket, serve

pytestmark = pytest.mark.soak

OPEN = 128
NUM_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "10000"))
NUM_OF_TEXT = NUM_REQUESTS // 5
NUM_DRAWN_SERVERS = 5
SEED = int(os.environ.get("SOAK_SEED", "") or time.time_ns() % 10**9)
ADMIN = {"authorization": "Bearer soak-admin-key"}
SMALL_QUEUE = ("--max-queue", "64", "--admin-key", "soak-admin-key")
STATES = ("free", "cached", "used")
logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log the numbers, and not every request."""
    for name in ("httpx", "trivium.access"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


def tiny_requests() -> list[dict[str, Any]]:
    """Requests with one right answer each: shared and own prefixes, penalties, stops, seeds, several choices."""
    shared = [(idx * 7) % 250 + 3 for idx in range(120)]
    requests: list[dict[str, Any]] = []
    for idx in range(24):
        own = [(idx * 31 + position * 5) % 250 + 3 for position in range(idx * 5)]
        fields: dict[str, Any] = {"prompt": [*shared[: idx * 5], *own, idx + 3], "max_tokens": 10 + 5 * idx}
        fields |= ({"temperature": 0}, {"seed": idx}, {"seed": idx, "frequency_penalty": 0.7, "top_p": 0.9})[idx % 3]
        fields |= {"n": 3, "max_tokens": 30} if idx % 8 == 7 else {}
        requests.append({"model": "tiny", "ignore_eos": idx % 5 != 0, **fields})
    return requests


def text_requests() -> list[dict[str, Any]]:
    """Requests of real text for SmolLM2."""
    themes = ("rivers", "bread", "the moon", "chess", "a lighthouse", "bees", "Lisbon", "glass")
    prompts = [f"You are a patient teacher. Say in a few words what you know of {theme}:" for theme in themes]
    return [
        {"model": "tiny", "prompt": prompt, "max_tokens": 8 + 3 * idx, **({"temperature": 0}, {"seed": idx})[idx % 2]}
        for idx, prompt in enumerate(prompts)
    ]


def right_answers(server: TinyServer, requests: list[dict[str, Any]]) -> list[dict[int, str]]:
    """Ask for every answer before there is any load."""

    def ask(fields: dict[str, Any]) -> dict[int, str]:
        body = server.client.post("/v1/completions", json=fields).json()
        return {choice["index"]: choice["text"] for choice in body["choices"] if choice["text"]}

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(ask, requests))


async def load(
    server: TinyServer, requests: list[dict[str, Any]], expected: list[dict[int, str]], num_requests: int
) -> Tally:
    """Load a server and check what must hold afterwards."""
    url = server.client.base_url
    clients = Clients(host=url.host, port=url.port or 0, requests=requests, expected=expected, count=OPEN)
    await asyncio.to_thread(next_heartbeats, server)
    total, before = num_pages(server, *STATES), server.metrics()
    log = ProcessLog({"server": psutil.Process(server.process.pid), "engine": server.engine})
    watching, began_s = asyncio.create_task(log.watch()), time.monotonic()
    tally = await clients.run(num_requests)
    watching.cancel()
    took_s = time.monotonic() - began_s
    await asyncio.to_thread(assert_nothing_is_left, server)
    seen = server.metrics()
    tell(tally, log, before, seen, took_s)
    assert tally.wrong == []
    assert sum(tally.ended.values()) == num_requests
    assert num_pages(server, "free", "cached") == num_pages(server, *STATES) == total
    assert server.client.get("/v1/cache/check", headers=ADMIN).json() == {"differences": []}
    assert seen["trivium_accounting_differences_total"] == seen["trivium_step_errors_total"] == 0
    log.assert_flat()
    await asyncio.to_thread(log.assert_nothing_is_kept)
    server.assert_alive()
    return tally


def tell(tally: Tally, log: ProcessLog, before: Mapping[str, float], seen: Mapping[str, float], took_s: float) -> None:
    """Log the numbers of a load."""
    logger.info("%s in %.0f s", dict(sorted(tally.ended.items())), took_s)
    names = ("trivium_generation_tokens_total", "trivium_preemptions_total")
    num_tokens, num_preempted = (seen[name] - before[name] for name in names)
    logger.info("%.0f tok/s, %.0f preempted", num_tokens / took_s, num_preempted)
    for name, held in log.before.items():
        second, last = log.growth(name)
        logger.info("%s: %.1f MiB in the second quarter, %.1f MiB in the last; %s", name, second, last, held)


async def test_tiny_model_over_http() -> None:
    requests = tiny_requests()
    with tiny_server(kv_cache_memory="2MiB") as server:
        expected = right_answers(server, requests)
    # A fraction of the memory that so many requests want, so that some are preempted.
    flags = ("--check-accounting", "--max-model-len", "512", *SMALL_QUEUE)
    with tiny_server(*flags, kv_cache_memory="512KiB") as server:
        tally = await load(server, requests, expected, NUM_REQUESTS)
        assert server.metrics()["trivium_preemptions_total"] > 0
    assert tally.count("right") > NUM_REQUESTS // 5
    assert tally.count("left") > NUM_REQUESTS // 5
    assert tally.count("refused") > NUM_REQUESTS // 20


async def test_drawn_options_over_http(tmp_path: Path) -> None:
    """The same on several servers; each has policies, sizes and tiers of its own."""
    requests = tiny_requests()
    with tiny_server(kv_cache_memory="2MiB") as server:
        expected = right_answers(server, requests)
    ended: Counter[str] = Counter()
    for number in range(NUM_DRAWN_SERVERS):
        flags = drawn_flags(random.Random(f"{SEED}-{number}"), tmp_path / f"kv{number}")  # noqa: S311
        logger.info("seed %d, server %d: %s", SEED, number, " ".join(flags))
        is_by_priority = flags[flags.index("--order") + 1] == "priority"
        asked = [
            {**fields, "user": "ab"[idx % 2], **({"priority": idx % 3 - 1} if is_by_priority else {})}
            for idx, fields in enumerate(requests)
        ]
        common = ("--check-accounting", "--max-model-len", "512", *SMALL_QUEUE)
        with tiny_server(*common, *flags, kv_cache_memory="512KiB") as server:
            tally = await load(server, asked, expected, NUM_REQUESTS // NUM_DRAWN_SERVERS)
            ended.update(tally.ended)
    logger.info("all of them: %s", dict(sorted(ended.items())))
    assert Tally(ended).count("right") > NUM_REQUESTS // 8
    assert ended["deadline late"] > 0


def drawn_flags(chance: random.Random, folder: Path) -> list[str]:
    """Draw a server's options; what contradicts itself is not drawn."""
    order, admission = chance.choice(sorted(ORDERS)), chance.choice(["max-utilization", *POLICIES])
    flags = ["--order", order, "--admission", admission, "--eviction", chance.choice(sorted(EVICTIONS))]
    flags += ["--aging-s", chance.choice(["0", "0.5", "30"]), "--max-num-seqs", chance.choice(["8", "32", "64"])]
    flags += ["--max-num-batched-tokens", chance.choice(["48", "128", "512"])]
    has_disk = chance.random() < 0.7
    if has_disk:
        flags += ["--disk-cache", f"{folder}:{chance.choice(['2MiB', '64MiB'])}"]
        flags += ["--preemption", chance.choice(["recompute", "swap", "swap", "auto"])]
    may_preempt = order == "priority" and admission == "max-utilization"
    switches = {
        "--fair-share": 0.5,
        "--no-look-ahead": 0.3,
        "--kv-events": 0.5,
        "--preempt-for-priority": 0.7 if may_preempt else 0.0,
    }
    flags += [name for name, share in switches.items() if chance.random() < share]
    if "--fair-share" in flags:
        flags += ["--tenant-weight", "a=3"]
    timed = {"--tpot-target": "0.02", "--max-queue-wait": "2"}
    return flags + [part for name, value in timed.items() if chance.random() < 0.3 for part in (name, value)]


async def test_smollm2_over_http() -> None:
    requests = text_requests()
    with smollm2_server("--kv-cache-memory", "32MiB", "--max-model-len", "512", *SMALL_QUEUE) as server:
        expected = right_answers(server, requests)
        tally = await load(server, requests, expected, NUM_OF_TEXT)
    assert tally.count("right") > NUM_OF_TEXT // 5
    assert tally.count("left") > NUM_OF_TEXT // 5


async def test_no_task_of_the_server_is_left_over() -> None:
    """The server in this process, so that its tasks can be counted; the engine in one of its own."""
    options = options_from({"model": str(tiny_model()), "kv_cache_memory": "1MiB", "threads": 1})
    own, requests, found = ServerOptions(port=0, served_model_name=("tiny",)), tiny_requests(), []
    with bind_socket(own) as listener:
        port = listener.getsockname()[1]

        def find() -> Any:
            found.append(launch._find(listener, options, own))
            return found[0]

        serving = asyncio.create_task(serve(find, listener, own))
        expected = await first_answers(port, requests)
        await asyncio.sleep(1)
        before = names_of_tasks()
        clients = Clients(host="127.0.0.1", port=port, requests=requests, expected=expected, count=OPEN)
        tally = await clients.run(NUM_REQUESTS // 2)
        await settled(before)
        logger.info("%s; %d tasks before and after", dict(sorted(tally.ended.items())), len(before))
        assert tally.wrong == []
        assert tally.count("right") > NUM_REQUESTS // 8
        engine = found[0].engine
        assert await engine.call("check") == {"differences": []}
        stats = await engine.call("stats")
        assert stats["num_running"] == stats["num_waiting"] == stats["kv_pages_used"] == 0
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def first_answers(port: int, requests: list[dict[str, Any]]) -> list[dict[int, str]]:
    """Wait until the server is ready, and ask for every answer before there is any load."""
    expected = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while not (await client.get("/health")).is_success:
            await asyncio.sleep(0.05)
        for fields in requests:
            body = (await client.post("/v1/completions", json=fields)).json()
            expected.append({choice["index"]: choice["text"] for choice in body["choices"] if choice["text"]})
    return expected


async def settled(expected: list[str]) -> None:
    """Wait until the same tasks run as before; fails with those left over when that takes too long."""
    end_s = time.monotonic() + 20
    while names_of_tasks() != expected:
        assert time.monotonic() < end_s, names_of_tasks()
        await asyncio.sleep(0.05)


def names_of_tasks() -> list[str]:
    """What the tasks of this event loop run, sorted; two lists differ when a task was left over."""
    return sorted(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
