"""Load a server of OpenAI's API: prompts as token ids, a fixed number of requests open at a time; figures as JSON.

    python -m benchmarks.peers.load --url URL --words FILE --concurrency 16 --num-requests 48

Every request opens a connection of its own: some servers close idle ones, and a request that meets a dead one would be
a failure of this client's. Answers that are shorter than asked for, or prompts that the server counts otherwise, make
the run fail, since the figures would compare different work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers.prompts import draw
from trivium.bench.measure import Measured, measure
from trivium.bench.report import summarize

_TIMEOUT_S = 600.0
_WARM_UP_LEN = 8


def main() -> None:
    """Measure and print one JSON object."""
    options = parser().parse_args()
    results, seconds = asyncio.run(_run(options))
    print(json.dumps(figures(results, seconds, options)))


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--url", required=True, help="base URL, without /v1")
    made.add_argument("--words", required=True, type=Path, help="JSON list of token ids to draw prompts from")
    made.add_argument("--concurrency", type=int, default=16, help="requests open at the same time")
    made.add_argument("--num-requests", type=int, default=48, help="requests in all")
    made.add_argument("--prompt-len", type=int, default=128, help="tokens of each prompt")
    made.add_argument("--output-len", type=int, default=128, help="tokens of each answer; ignore_eos is asked for")
    made.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of the prompts; the time by default")
    return made


def figures(results: list[Measured], seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """Reduce results to what a record holds."""
    errors = list(faults(results, Lengths(options.prompt_len, options.output_len)))
    if errors:
        return {"error": f"{len(errors)} of {len(results)} requests: {errors[0]}"}
    summary = asdict(summarize(results, seconds, concurrency=options.concurrency, price_per_hour=None))
    spreads = {
        f"{name}_{key}": value for name in ("tpot", "itl", "e2e") for key, value in (summary[name] or {}).items()
    }
    spreads |= {f"ttft_{key}": value for key, value in (summary["ttft_cold"] or {}).items()}
    kept = {name: value for name, value in spreads.items() if not name.endswith("count")}
    is_prefill = options.output_len <= 1
    rate = options.prompt_len * len(results) / seconds if is_prefill else summary["output_tokens_per_s"]
    return {"tokens_per_s": rate, "figures": {"seconds": seconds, **kept}}


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a comparable answer has."""

    prompt_len: int
    output_len: int
    may_be_cached: bool = False
    """Whether caches are meant to help."""


def faults(results: Sequence[Measured], lengths: Lengths) -> Iterator[str]:
    """Yield what is wrong with each request that is not comparable."""
    for result in results:
        if result.error is not None:
            yield result.error
        elif result.completion_tokens != lengths.output_len:
            yield f"{result.completion_tokens} tokens were generated, not {lengths.output_len}"
        elif result.prompt_tokens not in {0, lengths.prompt_len}:  # 0: the server does not count them
            yield f"the server counted {result.prompt_tokens} prompt tokens, not {lengths.prompt_len}"
        elif result.is_cached and not lengths.may_be_cached:
            yield f"{result.cached_tokens} of {lengths.prompt_len} prompt tokens came from a cache"


async def _run(options: argparse.Namespace) -> tuple[list[Measured], float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    base = options.url.rstrip("/")
    async with httpx.AsyncClient(base_url=base, timeout=_TIMEOUT_S, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        # Fills pools and compiles what the load needs: as many at once as will be, but short.
        warm_up = draw(options.words, options.seed + 1, min(options.concurrency, 4), options.prompt_len)
        await _answer_all(client, model, warm_up, options.concurrency, min(_WARM_UP_LEN, options.output_len))
        prompts = draw(options.words, options.seed, options.num_requests, options.prompt_len)
        began_s = time.perf_counter()
        results = await _answer_all(client, model, prompts, options.concurrency, options.output_len)
        return results, time.perf_counter() - began_s


async def _answer_all(
    client: httpx.AsyncClient, model: str, prompts: list[list[int]], concurrency: int, output_len: int
) -> list[Measured]:
    gate = asyncio.Semaphore(concurrency)

    async def answer(prompt: list[int]) -> Measured:
        async with gate:
            return await measure(client, "/v1/completions", body_of(model, prompt, output_len), timeout_s=_TIMEOUT_S)

    return await asyncio.gather(*map(answer, prompts))


def body_of(model: str, prompt: list[int], output_len: int) -> dict[str, Any]:
    """Return a request for a streamed answer of exactly that length."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


if __name__ == "__main__":
    main()
