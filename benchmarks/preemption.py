"""What answers that had to make room cost: computed anew, swapped to the disk cache and back, or whichever is quicker.

    python benchmarks/preemption.py [MODEL] [ROUNDS]

Twenty-four answers of 400 tokens to prompts of 300 share KV memory for 6,000 tokens, so that some have to make room,
again and again. The modes take turns, round by round; each engine begins with an empty directory. Prints medians:
seconds for all, preemptions by kind, and tokens that ran beside the least possible.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from typing import Any

from trivium.assembly import build_engine
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Submit

NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN, KV_TOKENS = 24, 300, 400, 6000
MODES = {
    "no disk cache": None,
    "recompute": "recompute",
    "swap": "swap",
    "auto": "auto",
}


def main() -> None:
    """Measure and print."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3  # noqa: PLR2004
    found: dict[str, list[tuple[float, float, float, float]]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in sorted(MODES, key=lambda mode, number=number: random.Random(f"{mode}{number}").random()):  # type: ignore[misc]  # noqa: S311
            found[mode].append(run(model, MODES[mode], number))
    print(f"{NUM_REQUESTS} answers of {OUTPUT_LEN} to prompts of {PROMPT_LEN}, KV memory for {KV_TOKENS} tokens")
    for mode, results in found.items():
        seconds, recomputed, swapped, extra = (statistics.median(column) for column in zip(*results, strict=True))
        print(
            f"{mode:<16} {seconds:6.1f} s   preempted {recomputed:3.0f} to recompute, {swapped:3.0f} to swap   "
            f"{extra:6.0f} tokens more than needed"
        )


def run(model: str, mode: str | None, number: int) -> tuple[float, float, float, float]:
    """Run all requests once; returns seconds, preemptions of both kinds, and tokens that ran twice."""
    chance = random.Random(number)  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "model": model,
            "kv_cache_memory": str(KV_TOKENS * 23040),
            "admission": "max-utilization",
        }
        if mode is not None:
            options |= {"disk_cache": f"{folder}/kv:8", "preemption": mode}
        loop = build_engine(options_from(options))
        params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN, ignore_eos=True)
        for request in range(NUM_REQUESTS):
            prompt = [chance.randrange(100, 10_000) for _ in range(PROMPT_LEN)]
            loop.submit(Submit(request_id=f"r{request}", prompt_ids=prompt, params=params))
        began_s = time.perf_counter()
        while loop.has_work:
            loop.step()
        seconds = time.perf_counter() - began_s
        stats: Any = loop.stats()
        loop.close()
    kinds = stats["preemptions_by_kind_total"]
    least = NUM_REQUESTS * (PROMPT_LEN + OUTPUT_LEN - 1)
    return seconds, kinds["recompute"], kinds["swap"], stats["step_tokens_total"] - least


if __name__ == "__main__":
    main()
