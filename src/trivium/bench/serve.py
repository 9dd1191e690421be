"""Load a server and report throughput and latency: at one concurrency, at a sweep of them, or at a rate of arrivals."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from trivium.base.errors import TriviumError
from trivium.bench.measure import Measured, measure
from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.bench.report import Figures, summarize
from trivium.bench.workload import BenchRequest, make_workload

DEFAULT_CONCURRENCY = 16
_KEY_HINT = {401: "; give a key with --bench-api-key", 403: "; give another key with --bench-api-key"}
Advance = Callable[[int, int], None]
"""Told (done, total) after every request or conversation."""


class ServerFailedError(TriviumError):
    """The server that should be measured cannot be reached, or does not speak OpenAI's API."""

    code = "server_failed"


def run(
    workload: WorkloadOptions, load: ServeOptions, report: ReportOptions, advance: Advance = lambda done, total: None
) -> list[Figures]:
    """Measure each concurrency of the sweep, or the one load that was asked for.

    Args:
        workload: Which prompts.
        load: Which server, how much at a time.
        report: Price for the cost figures.
        advance: Told how far it is.

    Raises:
        ConfigError: The workload cannot be made.
        ServerFailedError: The server lists no model.
    """
    return asyncio.run(_run(workload, load, report, advance))


async def _run(workload: WorkloadOptions, load: ServeOptions, report: ReportOptions, advance: Advance) -> list[Figures]:
    headers = {"Authorization": f"Bearer {load.bench_api_key}"} if load.bench_api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    base = load.url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=load.timeout_s, limits=limits) as client:
        model = load.served_model or await _first_model(client)
        levels = _levels(load)
        figures = []
        for idx, concurrency in enumerate(levels):
            session = _Session(client, model, workload, load, concurrency)
            # Every level has prompts of its own, so that it does not find those of the one before in the cache.
            requests = make_workload(replace(workload, workload_seed=workload.workload_seed + 1000 * idx))
            warm_up = make_workload(replace(workload, workload_seed=workload.workload_seed + 1000 * idx + 500))
            await session.warm(warm_up[: load.warm_up])
            so_far = partial(_advance_level, advance, idx * len(requests), len(levels) * len(requests))
            seconds = await session.measure(requests, so_far)
            figures.append(
                summarize(
                    session.results,
                    seconds,
                    concurrency=concurrency or session.most_open,
                    rate=load.rate,
                    price_per_hour=report.price,
                )
            )
        return figures


def _advance_level(advance: Advance, offset: int, total: int, done: int) -> None:
    advance(offset + done, total)


def _levels(load: ServeOptions) -> tuple[int | None, ...]:
    """Concurrencies to measure; one without a limit for arrivals at a rate."""
    if load.rate is not None:
        return (None,)
    return load.sweep or (load.concurrency or DEFAULT_CONCURRENCY,)


async def _first_model(client: httpx.AsyncClient) -> str:
    address = f"{str(client.base_url).rstrip('/')}/v1/models"
    try:
        response = await client.get("/v1/models")
        if response.status_code != httpx.codes.OK:
            raise ServerFailedError(
                f"{address} answers HTTP {response.status_code}{_KEY_HINT.get(response.status_code, '')}"
            )
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
        raise ServerFailedError(f"{address} does not list a model: {error!r}") from error


class _Session:
    """One load on one server."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        workload: WorkloadOptions,
        load: ServeOptions,
        concurrency: int | None,
    ) -> None:
        self.results: list[Measured] = []
        self.most_open = 0
        self._client = client
        self._model = model
        self._workload = workload
        self._load = load
        self._concurrency = concurrency
        self._num_open = 0

    async def warm(self, requests: list[BenchRequest]) -> None:
        """Send requests that are not counted."""
        for request in requests:
            await self._converse(request)

    async def measure(self, requests: list[BenchRequest], advance: Callable[[int], None]) -> float:
        """Send all requests, keep their results, and return the seconds it took."""
        gate = asyncio.Semaphore(self._concurrency or len(requests))
        num_done = 0

        async def one(request: BenchRequest) -> None:
            nonlocal num_done
            async with gate:
                self._num_open += 1
                self.most_open = max(self.most_open, self._num_open)
                self.results.extend(await self._converse(request))
                self._num_open -= 1
            num_done += 1
            advance(num_done)

        rng = random.Random(self._workload.workload_seed)  # noqa: S311  (arrival times, not secrets)
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(one(request))
                if self._load.rate is not None:
                    await asyncio.sleep(rng.expovariate(self._load.rate))
        return time.perf_counter() - began_s

    async def _converse(self, request: BenchRequest) -> list[Measured]:
        """Send a request, or the turns of a conversation until one fails."""
        if not request.is_chat:
            return [await self._send("/v1/completions", {"prompt": request.prompts[0]})]
        if request.messages:
            return [await self._send("/v1/chat/completions", {"messages": list(request.messages)})]
        history: list[dict[str, str]] = []
        results: list[Measured] = []
        for prompt in request.prompts:
            history.append({"role": "user", "content": prompt})
            results.append(await self._send("/v1/chat/completions", {"messages": list(history)}))
            if results[-1].error is not None:
                break
            history.append({"role": "assistant", "content": results[-1].text})
        return results

    async def _send(self, path: str, own: dict[str, Any]) -> Measured:
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
        return await measure(self._client, path, body, timeout_s=self._load.timeout_s)
