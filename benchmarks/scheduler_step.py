"""Time the scheduler alone: milliseconds of `next` plus `commit` per step, without a model.

    python benchmarks/scheduler_step.py [--running 64] [--prompt 1000] [--steps 300]

Four situations: all requests decode; long prompts prefill beside them; the pool is too small and requests are
preempted; a thousand requests wait that do not fit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from trivium.base.clock import SystemClock
from trivium.base.ids import RequestId, TokenId
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.schedule.decision import Outcome
from trivium.schedule.request import Request
from trivium.schedule.scheduler import Scheduler

PAGE_LEN = 16
SPEC = KVSpec((KVGroup("full", (0,), 1024),), PAGE_LEN)
MIXED = KVSpec((KVGroup("full", (0,), 1024), KVGroup("window", (1,), 1024, 512)), PAGE_LEN)


def make_request(idx: int, prompt_len: int, max_tokens: int, shared: int = 0) -> Request:
    """Make a request whose first `shared` tokens all requests have in common."""
    tokens = [TokenId(1 + (k if k < shared else (idx * 7919 + k * 104729) % 49000)) for k in range(prompt_len)]
    return Request(
        request_id=RequestId(f"r{idx}"),
        prompt_len=prompt_len,
        params=SamplingParams(max_tokens=max_tokens, seed=0),
        limit_len=prompt_len + max_tokens,
        tokens=tokens,
    )


def make_scheduler(spec: KVSpec, num_pages: int, running: int) -> Scheduler:
    """Make a scheduler with `running` seats."""
    options = ScheduleOptions(max_num_seqs=running, max_num_batched_tokens=512, max_queue=100_000)
    pages = [num_pages] * len(spec.groups)
    return Scheduler(options, spec, pages, 100_000, prefix_cache=True, clock=SystemClock())


def run_step(scheduler: Scheduler) -> tuple[float, float] | None:
    """Run one step; return the milliseconds of `next` and of `commit`."""
    began = time.perf_counter()
    scheduled = scheduler.next()
    chosen = time.perf_counter()
    if scheduled is None:
        return None
    outcomes = [Outcome((TokenId(5),)) if entry.draws else Outcome() for entry in scheduled.entries]
    resumed = time.perf_counter()
    scheduler.commit(scheduled, outcomes)
    return (chosen - began) * 1e3, (time.perf_counter() - resumed) * 1e3


def report(name: str, times: Sequence[tuple[float, float]], scheduler: Scheduler) -> None:
    """Print median and worst of the sums."""
    sums = sorted(first + second for first, second in times)
    stats = scheduler.stats()
    print(
        f"{name:28s} next {statistics.median(t[0] for t in times):6.3f}  commit "
        f"{statistics.median(t[1] for t in times):6.3f}  both p50 {statistics.median(sums):6.3f}  "
        f"p99 {sums[int(len(sums) * 0.99)]:6.3f}  max {sums[-1]:6.3f} ms   "
        f"(running {stats.num_running}, waiting {stats.num_waiting}, preemptions {stats.num_preemptions})"
    )


def measure(scheduler: Scheduler, num_steps: int) -> list[tuple[float, float]]:
    """Run up to `num_steps` steps."""
    times = []
    for _ in range(num_steps):
        step = run_step(scheduler)
        if step is None:
            break
        times.append(step)
    return times


def main() -> None:
    """Run all situations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    running, prompt, steps = options.running, options.prompt, options.steps

    for name, spec in (("decode", SPEC), ("decode, full + window", MIXED)):
        scheduler = make_scheduler(spec, running * (prompt + steps) // PAGE_LEN + 200, running)
        for idx in range(running):
            scheduler.add(make_request(idx, prompt, 10 * steps))
        prefill = measure(scheduler, running * prompt // (512 - running) + 2)
        report("prefill beside " + name, prefill, scheduler)
        report(name, measure(scheduler, steps), scheduler)

    scheduler = make_scheduler(SPEC, running * prompt // PAGE_LEN // 4, running)
    for idx in range(4 * running):
        scheduler.add(make_request(idx, prompt // 2, 200, shared=prompt // 4))
    report("pool too small", measure(scheduler, 4 * steps), scheduler)

    scheduler = make_scheduler(SPEC, 40 * prompt // PAGE_LEN, running)
    for idx in range(1000):
        scheduler.add(make_request(idx, prompt, steps))
    measure(scheduler, 200)
    report("a thousand wait", measure(scheduler, steps), scheduler)


if __name__ == "__main__":
    main()
