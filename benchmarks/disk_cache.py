"""Time to the first token of a long prompt: computed, from KV memory, and from the disk cache after a restart.

    python benchmarks/disk_cache.py [MODEL] [PROMPT_LEN] [ROUNDS]

Each round draws a prompt of its own and uses a directory of its own: an engine computes it, answers it once more from
KV memory, and ends; the next engine reads it from the disk, once with the files dropped from the system's page cache.
Prints medians, and what each engine measured of its tiers: bytes per second written and read, verification included.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trivium.assembly import build_engine
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.config.sizes import format_bytes
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

PARAMS = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def main() -> None:
    """Measure and print."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    prompt_len = int(sys.argv[2]) if len(sys.argv) > 2 else 2048  # noqa: PLR2004
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3  # noqa: PLR2004
    times: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            kv = Path(folder) / str(number)
            measure(model, [random.Random(number).randrange(100, 10_000) for _ in range(prompt_len)], kv, times, rates)  # noqa: S311
            size = sum(path.stat().st_size for path in kv.glob("*.kv"))
    print(f"{model}, a prompt of {prompt_len} tokens, {format_bytes(size)} on disk; medians of {rounds}")
    for name, seconds in times.items():
        print(f"{name:<32} {1e3 * statistics.median(seconds):8.1f} ms to the first token")
    for name, per_s in rates.items():
        print(f"{name:<32} {statistics.median(per_s) / 1e6:8.0f} MB/s")


def measure(
    model: str, prompt: list[int], kv: Path, times: dict[str, list[float]], rates: dict[str, list[float]]
) -> None:
    """Run one round."""
    loop = engine(model, kv)
    first_token_s(loop, [7] * len(prompt))  # touches every page of KV memory and of the arena
    times.setdefault("computed", []).append(first_token_s(loop, prompt))
    times.setdefault("from KV memory", []).append(first_token_s(loop, prompt))
    rates.setdefault("written", []).append(close(loop)[1])
    for name, is_cold in (("from disk", True), ("from the system's page cache", False)):
        if is_cold:
            drop(kv)
        loop = engine(model, kv)
        first_token_s(loop, [8] * 300)
        times.setdefault(name, []).append(first_token_s(loop, prompt))
        rates.setdefault(f"read {name}", []).append(close(loop)[0])


def engine(model: str, kv: Path) -> EngineLoop:
    """Build an engine with a disk cache."""
    return build_engine(options_from({"model": model, "kv_cache_memory": "512MiB", "disk_cache": f"{kv}:4"}))


def close(loop: EngineLoop) -> tuple[float, float]:
    """End an engine; returns the bytes per second that it measured, read and written."""
    loop.close()
    rates: Any = loop.stats()["tier_rates"]
    return rates.get("read", 0.0), rates.get("written", 0.0)


def drop(kv: Path) -> None:
    """Have the files of a directory on the disk, and not in memory."""
    os.sync()
    for path in kv.glob("*.kv"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def first_token_s(loop: EngineLoop, prompt: list[int]) -> float:
    """Run one request; returns the seconds until its first token."""
    began_s = time.perf_counter()
    loop.submit(Submit(request_id="one", prompt_ids=prompt, params=PARAMS))
    at_s = None
    while loop.has_work:
        for news in loop.step():
            if news.token_ids and at_s is None:
                at_s = time.perf_counter() - began_s
    return at_s or 0.0


if __name__ == "__main__":
    main()
