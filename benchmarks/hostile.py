"""By how much the gaps of a stream grow while twenty hostile constraints are asked for at once.

    python -m benchmarks.hostile [--model smollm2] [--tokens 200] [--rounds 3]

One server; a stream alone, then the same stream while every constraint of `tests/support/hostile_constraints.py` is
asked for, each by a request of 30 tokens of its own. Beside it, the same with as many requests without a constraint:
what company costs anyhow. Gaps are between the chunks of the stream, in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.hostile_constraints import FIELDS
from support.server_process import ServerProcess

_BEGIN = 10
"""Chunks of the stream before the others ask."""


def main() -> None:
    """Print gaps alone, in company, and in hostile company."""
    arguments = _parse()
    companies: Mapping[str, Sequence[Mapping[str, Any]]] = {
        "alone": [],
        "20 without a constraint": [{}] * len(FIELDS),
        "20 hostile": [{"structured_outputs": dict(wanted)} for wanted in FIELDS.values()],
    }
    with ServerProcess(arguments.model, "--served-model-name", "m") as server:
        _gaps(server.url, arguments.tokens, [{}])
        for name, company in companies.items():
            rounds = [_gaps(server.url, arguments.tokens, company) for _ in range(arguments.rounds)]
            gaps = sorted(gap for each in rounds for gap in each)
            cut = gaps[int(0.99 * len(gaps))]
            print(f"{name:24} p50 {statistics.median(gaps):7.1f}  p99 {cut:7.1f}  max {gaps[-1]:7.1f} ms", flush=True)


def _gaps(url: str, num_tokens: int, company: Sequence[Mapping[str, Any]]) -> list[float]:
    gaps: list[float] = []
    with ThreadPoolExecutor(len(company) + 1) as pool:
        asked = {
            "model": "m",
            "prompt": "Once upon a time",
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=100) as stream:
            before_s = None
            for idx, _ in enumerate(line for line in stream.iter_lines() if line.startswith("data: {")):
                now_s = time.perf_counter()
                if before_s is not None:
                    gaps.append((now_s - before_s) * 1e3)
                before_s = now_s
                if idx == _BEGIN:
                    for number, fields in enumerate(company):
                        body = {
                            "model": "m",
                            "prompt": f"Number {number}",
                            "max_tokens": 30,
                            "temperature": 1,
                            **fields,
                        }
                        pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=100)
    return gaps[_BEGIN + 1 :]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A stream beside hostile constraints.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200, help="length of the stream")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
