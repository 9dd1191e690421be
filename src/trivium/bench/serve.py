"""Load a server and report throughput and latency, at one concurrency or a sweep of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from trivium.base.errors import ConfigError
from trivium.bench.measure import Measured, measure
from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.bench.report import Figures, summarize
from trivium.bench.workload import BenchRequest, make_workload


def run(
    workload: WorkloadOptions,
    load: ServeOptions,
    report: ReportOptions,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Figures]:
    """Measure each concurrency.

    Args:
        workload: Which prompts.
        load: Which server, how much at a time.
        report: Price for the cost figures.
        advance: Told (done, total) after every request.

    Raises:
        ConfigError: The server cannot be reached or the workload cannot be made.
    """
    return asyncio.run(_run(workload, load, report, advance))


async def _run(
    workload: WorkloadOptions, load: ServeOptions, report: ReportOptions, advance: Callable[[int, int], None]
) -> list[Figures]:
    headers = {"Authorization": f"Bearer {load.bench_api_key}"} if load.bench_api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    base = load.url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=load.timeout_s, limits=limits) as client:
        model = load.served_model or await _first_model(client)
        session = _Session(client, model, workload, load)
        figures = []
        levels = load.sweep or (load.concurrency,)
        total = len(levels) * workload.num_requests
        for idx, concurrency in enumerate(levels):
            offset = idx * workload.num_requests
            results, seconds = await session.run(concurrency, partial(_report, advance, offset, total))
            figures.append(summarize(results, seconds, concurrency=concurrency, price_per_hour=report.price))
        return figures


def _report(advance: Callable[[int, int], None], offset: int, total: int, done: int) -> None:
    advance(offset + done, total)


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        response = await client.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"{client.base_url} does not list a model at /v1/models: {error}") from error


class _Session:
    """One server under load; every level of a sweep gets fresh prompts, so that it starts with a cold cache."""

    def __init__(self, client: httpx.AsyncClient, model: str, workload: WorkloadOptions, load: ServeOptions) -> None:
        self._client = client
        self._model = model
        self._workload = workload
        self._load = load
        self._num_levels = 0

    async def run(self, concurrency: int, advance: Callable[[int], None]) -> tuple[list[Measured], float]:
        seed = self._workload.workload_seed + 1000 * self._num_levels
        self._num_levels += 1
        requests = make_workload(replace(self._workload, workload_seed=seed))
        for request in make_workload(replace(self._workload, workload_seed=seed + 500))[: self._load.warm_up]:
            await self._converse(request)
        gate = asyncio.Semaphore(concurrency)
        done: list[Measured] = []

        async def one(request: BenchRequest) -> None:
            async with gate:
                done.extend(await self._converse(request))
            advance(min(len(done), len(requests)))

        began_s = time.perf_counter()
        await self._start_all(requests, one, seed)
        return done, time.perf_counter() - began_s

    async def _start_all(self, requests: list[BenchRequest], one: Callable[[BenchRequest], Any], seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  (arrival times, not secrets)
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(one(request))
                if self._load.rate:
                    await asyncio.sleep(rng.expovariate(self._load.rate))

    async def _converse(self, request: BenchRequest) -> list[Measured]:
        if not request.is_chat:
            return [await measure(self._client, "/v1/completions", self._body({"prompt": request.prompts[0]}))]
        if request.messages:
            body = self._body({"messages": list(request.messages)})
            return [await measure(self._client, "/v1/chat/completions", body)]
        history: list[dict[str, str]] = []
        results = []
        for prompt in request.prompts:
            history.append({"role": "user", "content": prompt})
            results.append(await measure(self._client, "/v1/chat/completions", self._body({"messages": list(history)})))
            history.append({"role": "assistant", "content": results[-1].text})
        return results

    def _body(self, own: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": self._model,
            "max_tokens": self._workload.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **own,
        }
        if self._load.ignore_eos:
            body["ignore_eos"] = True
        return body
