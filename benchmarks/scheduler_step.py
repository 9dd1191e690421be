"""Time the scheduler alone: milliseconds of `next` plus `commit` per step, without a model.

    python -m benchmarks.scheduler_step [--running 64] [--prompt 1000] [--steps 300] [--orders fcfs lpm] [--limit 1.5]

Four situations: all requests decode; long prompts prefill beside them; the pool is too small and requests are
preempted; a thousand requests wait that do not fit.

Then, for every order that the queue can have, 1, 64 and 256 running requests with 0, 64 and 1,024 waiting ones, while
requests come and go: every step's finished ones are replaced by new arrivals, half of which share a beginning with
others. What keeps the waiting ones from starting is that all seats are taken, or that seats are free and memory is not.
Exit status 1 when a step with 1,024 waiting takes more than `--limit` times as long as one with 64, beyond what a
clock can tell (`ALLOWANCE_MS`), or when a running request costs more than that many times as much among 256 as among
64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import count, product

from benchmarks.orders import DEFAULT, known_orders, order_option
from trivium.base.clock import SystemClock
from trivium.base.ids import RequestId, TokenId
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.schedule.decision import Outcome
from trivium.schedule.request import Request
from trivium.schedule.scheduler import Scheduler

PAGE_LEN = 16
RUNNING = (1, 64, 256)
QUEUED = (0, 64, 1024)
ALLOWANCE_MS = 0.05
"""Added to what a step may take, so that noise of a step of microseconds fails nothing."""
ANSWER_LENS = (20, 60)
CHURN_PROMPT = 64
CHURN_SHARED = 40
REPEATS = 3
PRIORITIES = 4
"""Different ones among the requests, for orders that look at it."""
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
        priority=idx % PRIORITIES,
        tokens=tokens,
    )


def make_scheduler(spec: KVSpec, num_pages: int, running: int, order: str = DEFAULT) -> Scheduler:
    """Make a scheduler with `running` seats."""
    options = ScheduleOptions(
        max_num_seqs=running,
        max_num_batched_tokens=512,
        max_queue=100_000,
        **order_option(order),  # type: ignore[arg-type]  # one of the words that it takes
    )
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


class Churn:
    """A scheduler in which requests come and go, with as many running and waiting as asked for."""

    def __init__(self, order: str, running: int, queued: int, *, short_of: str) -> None:
        """Fill seats and queue.

        Args:
            order: Of the queue.
            running: Requests that run.
            queued: Requests that wait.
            short_of: What more of them would need to run, `seats` or `pages`.
        """
        pages = running * (CHURN_PROMPT + max(ANSWER_LENS)) // PAGE_LEN + 1
        seats, pages = (running, 4 * pages) if short_of == "seats" else (2 * running, pages)
        self._scheduler = make_scheduler(SPEC, pages, seats, order)
        self._numbers = count()
        self._wanted = running + queued
        self._warm_up = running * CHURN_PROMPT // 256 + max(ANSWER_LENS)
        self._refill()
        self._mean_ms(self._warm_up)

    def _refill(self) -> None:
        stats = self._scheduler.stats()
        for _ in range(self._wanted - stats.num_running - stats.num_waiting):
            idx = next(self._numbers)
            shortest, longest = ANSWER_LENS
            answer_len = shortest + idx * 7919 % (longest - shortest)
            shared = CHURN_SHARED if idx % 2 else 0
            self._scheduler.add(make_request(idx, CHURN_PROMPT, answer_len, shared=shared))

    def step_ms(self, num_steps: int) -> float:
        """Return the mean milliseconds of a step, in the best of some repetitions."""
        return min(self._mean_ms(num_steps) for _ in range(REPEATS))

    def _mean_ms(self, num_steps: int) -> float:
        total_ms = 0.0
        for _ in range(num_steps):
            step = run_step(self._scheduler)
            if step is None:
                raise RuntimeError(f"nothing runs: {self._scheduler.stats()}")
            total_ms += sum(step)
            self._refill()
        return total_ms / num_steps


def flatness(orders: Sequence[str], num_steps: int, limit: float) -> bool:
    """Print a table of every order, running and queued; return whether steps stay flat."""
    print(f"\nmean milliseconds of a step while requests come and go, best of {REPEATS} times {num_steps} steps")
    heads = "".join(f"{f'{queued:,} wait':>14}" for queued in QUEUED)
    print(f"{'order':12} {'short of':>9} {'running':>8}{heads}{'ratio':>8}")
    is_flat = True
    for order, short_of in product(orders, ("seats", "pages")):
        per_running = {}
        for running in RUNNING:
            times = [Churn(order, running, queued, short_of=short_of).step_ms(num_steps) for queued in QUEUED]
            is_row_flat = times[-1] <= limit * times[-2] + ALLOWANCE_MS
            per_running[running] = times[-2] / running
            is_flat &= is_row_flat
            print(f"{order:12} {short_of:>9} {running:8}" + "".join(f"{value:14.3f}" for value in times)
                  + f"{times[-1] / times[-2]:8.2f}" + ("" if is_row_flat else f"   more than {limit:g}"),
                  flush=True)  # fmt: skip
        *_, many, most = RUNNING
        growth = per_running[most] / per_running[many]
        if growth > limit:
            is_flat = False
            print(f"{order}: a running request costs {growth:.2f} times as much among {most} as among {many}")
    print("flat" if is_flat else "not flat")
    return is_flat


def situations(running: int, prompt: int, steps: int) -> None:
    """Time the four situations."""
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


def main() -> int:
    """Time everything; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--orders", nargs="*", choices=known_orders(), default=known_orders(), help="default: all")
    parser.add_argument("--limit", type=float, default=1.5, help="how many times as long a full queue may take")
    options = parser.parse_args()
    situations(options.running, options.prompt, options.steps)
    return 0 if flatness(options.orders, options.steps, options.limit) else 1


if __name__ == "__main__":
    sys.exit(main())
