"""Streams that run while long prompts come: gaps between their tokens, and the long prompts' time to first token.

    python -m benchmarks.mixed [MODEL] --variant 'fixed=' --variant 'adaptive=--tpot-target 0.05 --ttft-target 2'
                               [--streams 16] [--every 3] [--seconds 40] [--rounds 3]

One server per variant and round, in turn, under a lock; a variant is a label and flags of `trivium serve`. `--streams`
answers are always being streamed (a closed loop: a new one begins as the last one ends); every `--every` seconds a
prompt of 1,536 to 3,072 tokens comes, whether or not the one before has been answered. Figures: gaps between the
streams' tokens, time per token, time to the long prompts' first token, and output tokens per second of all together.
Gaps are of the streams that ran while a long prompt did, which is where a budget matters, and of all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.peers.engines.trivium import split_label
from benchmarks.peers.load import body_of
from benchmarks.peers.machine import Meter, locked, process_tree, raise_weight
from benchmarks.served import Served
from trivium.bench.measure import Measured, measure
from trivium.bench.report import spread

_VOCAB = range(100, 40_000)
_TIMEOUT_S = 300.0
_SHORTEST, _LONGEST = 1536, 3072
FIGURES = ("gap", "gap beside", "TPOT", "TTFT long", "TTFT stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What comes."""

    streams: int
    every_s: float
    seconds: float
    """Streams and long prompts begin in this time; those under way then are waited for."""
    stream_len: int = 64
    stream_output_len: int = 128
    long_output_len: int = 16


@dataclass(frozen=True, slots=True)
class Run:
    """What one server made of it."""

    streams: Sequence[Measured]
    longs: Sequence[Measured]
    seconds: float
    others: float
    """Share of the processors that others took."""

    def values_s(self) -> Mapping[str, list[float]]:
        """Return the seconds of every figure."""
        spans = [(one.began_s, one.began_s + (one.ttft_s or 0.0)) for one in self.longs]
        return {
            "gap": [gap_s for one in self.streams for gap_s in one.gaps_s],
            "gap beside": [gap_s for one in self.streams for gap_s in gaps_inside(one, spans)],
            "TPOT": [one.tpot_s for one in self.streams if one.tpot_s is not None],
            "TTFT long": [one.ttft_s for one in self.longs if one.ttft_s is not None],
            "TTFT stream": [one.ttft_s for one in self.streams if one.ttft_s is not None],
        }

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all."""
        return sum(one.completion_tokens for one in (*self.streams, *self.longs)) / self.seconds


def gaps_inside(stream: Measured, spans: Sequence[tuple[float, float]]) -> Iterable[float]:
    """Yield the gaps of a stream that overlap a span of time."""
    came_s = stream.began_s + (stream.ttft_s or 0.0)
    for gap_s in stream.gaps_s:
        if any(begin < came_s + gap_s and came_s < end for begin, end in spans):
            yield gap_s
        came_s += gap_s


async def play(url: str, model: str, load: Load, seed: int) -> tuple[list[Measured], list[Measured], float]:
    """Load a server; return the streams, the long prompts and the seconds until all had ended.

    Raises:
        RuntimeError: A request failed.
    """
    rng = random.Random(seed)  # noqa: S311  (prompts, not secrets)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    streams: list[Measured] = []
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as client:

        async def ask(prompt_len: int, output_len: int) -> Measured:
            body = body_of(model, rng.choices(_VOCAB, k=prompt_len), output_len)
            result = await measure(client, "/v1/completions", body, timeout_s=_TIMEOUT_S)
            if result.error is not None:
                raise RuntimeError(f"a request failed: {result.error}")
            return result

        async def keep_streaming(until_s: float) -> None:
            while time.perf_counter() < until_s:
                streams.append(await ask(load.stream_len, load.stream_output_len))

        async def send_longs(until_s: float) -> list[Measured]:
            sent: list[asyncio.Task[Measured]] = []
            await asyncio.sleep(load.every_s / 2)
            while time.perf_counter() < until_s:
                sent.append(asyncio.create_task(ask(rng.randint(_SHORTEST, _LONGEST), load.long_output_len)))
                await asyncio.sleep(load.every_s)
            return await asyncio.gather(*sent)

        await ask(load.stream_len, 8)
        began_s = time.perf_counter()
        until_s = began_s + load.seconds
        longs, *_ = await asyncio.gather(send_longs(until_s), *(keep_streaming(until_s) for _ in range(load.streams)))
        return streams, longs, time.perf_counter() - began_s


def measured(model: str, flags: Sequence[str], load: Load, seed: int) -> Run:
    """Start a server with these flags, load it, end it."""
    with Served(model, *flags) as served:
        raise_weight(os.getpid())
        meter, before_s = Meter().start(), _own_s()
        streams, longs, seconds = asyncio.run(play(f"http://127.0.0.1:{served.port}", model, load, seed))
        return Run(streams, longs, seconds, meter.stop(_own_s() - before_s).others)


def _own_s() -> float:
    return sum(process.processor_s for process in process_tree(os.getpid()).values())


def table(runs: Mapping[str, Sequence[Run]]) -> Iterable[str]:
    """Yield lines: per variant the medians over its rounds."""
    heads = "".join(f"{f'{name} p50 / p99':>24}" for name in FIGURES)
    yield f"{'milliseconds':16}{heads}{'tok/s':>9}{'longs':>7}{'others':>8}"
    for label, own in runs.items():
        cells = "".join(f"{_median_pair([one.values_s()[name] for one in own]):>24}" for name in FIGURES)
        rate = statistics.median(one.tokens_per_s for one in own)
        num_longs = statistics.median(len(one.longs) for one in own)
        yield f"{label:16}{cells}{rate:9.1f}{num_longs:7.0f}{max(one.others for one in own):8.1%}"


def _median_pair(rounds: Sequence[Sequence[float]]) -> str:
    spreads = [found for values in rounds if (found := spread(values)) is not None]
    if not spreads:
        return "-"
    p50, p99 = (statistics.median(getattr(one, name) for one in spreads) for name in ("p50_ms", "p99_ms"))
    return f"{p50:.1f} / {p99:.1f}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--variant", action="append", default=[], metavar="[LABEL=]FLAGS", help="again for one more")
    parser.add_argument("--streams", type=int, default=16, help="answers that are always being streamed")
    parser.add_argument("--every", type=float, default=3.0, help="seconds from one long prompt to the next")
    parser.add_argument("--seconds", type=float, default=40.0, help="of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--lock", type=Path, default=Path(tempfile.gettempdir()) / "trivium-bench.lock", help="lock file"
    )
    options = parser.parse_args()
    load = Load(streams=options.streams, every_s=options.every, seconds=options.seconds)
    runs: dict[str, list[Run]] = defaultdict(list)
    variants = [split_label(text) for text in options.variant or ["default="]]
    for round_idx in range(options.rounds):
        start = round_idx % len(variants)
        for label, flags in (*variants[start:], *variants[:start]):
            with locked(options.lock):
                runs[label].append(measured(options.model, flags, load, seed=round_idx))
    print("\n".join(table({label: runs[label] for label, _ in variants})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
