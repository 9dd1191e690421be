"""How many prompt tokens are computed when many prompts that share beginnings come at once.

    python -m benchmarks.prefix_reuse [--shape rag] [--budget 512 2048 8192] [--seats 64] [--order lpm]

The scheduler and its cache as they are; the executor is a script that counts the prompt tokens it is given. Beside it,
the same prompts in a cache of whole blocks of 16, simulated with and without look-ahead (`workloads.blocks`), without
any reuse, and at the optimum: every token of the tree of prompts once, and one per prompt that repeats another
(`workloads.optimum`). Then the same over the length of the part that is shared. Needs no model.

Exit status 1 when the scheduler computes another number of tokens than the optimum anywhere.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.orders import DEFAULT, known_orders, order_option
from benchmarks.workloads.blocks import tokens_prefilled
from benchmarks.workloads.draw import Ids, draw, single_prompts
from benchmarks.workloads.optimum import least_prefilled
from benchmarks.workloads.shapes import Rag, SharedPrefix
from trivium.base.clock import SystemClock
from trivium.base.ids import RequestId, TokenId
from trivium.base.intmath import ceil_div
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.schedule.decision import Outcome
from trivium.schedule.request import Request
from trivium.schedule.scheduler import Scheduler
from trivium.schedule.step import Step

BLOCK_LEN = 16
SPEC = KVSpec((KVGroup("full", (0,), 1024),), BLOCK_LEN)
VOCAB = range(3, 49_000)
PREFIX_LENS = (7, 15, 24, 50, 101, 250, 603, 1210)
PREFIX_BUDGET = 2048
SHAPES = {
    "rag": Rag(),
    "shared-prefix": SharedPrefix(groups=8, per_group=16, system_len=603, question_len=24, output_len=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How prompts are scheduled."""

    budget: int
    """Most tokens of a step."""
    seats: int
    """Most answers that run at a time."""
    order: str = DEFAULT
    output_len: int = 8


class CountingExecutor:
    """Runs nothing; counts the prompt tokens that it would have run."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0

    def forward(self, step: Step, prompt_lens: Sequence[int]) -> None:
        """Count a step's tokens that lie inside their prompts."""
        for idx, prompt_len in enumerate(prompt_lens):
            positions = step.positions[int(step.starts[idx]) : int(step.starts[idx + 1])]
            self.num_prompt_tokens += int((positions < prompt_len).sum())


def prefilled_by_scheduler(prompts: Sequence[Ids], setup: Setup) -> int:
    """Run prompts that come all at once through the scheduler; return the prompt tokens that were computed.

    Raises:
        RuntimeError: A prompt is left, or a page is lost.
    """
    pages = sum(ceil_div(len(prompt) + setup.output_len, BLOCK_LEN) for prompt in prompts) + len(prompts)
    scheduler = Scheduler(
        _options(setup, len(prompts)), SPEC, [pages], max(map(len, prompts)) + setup.output_len,
        prefix_cache=True, clock=SystemClock(),
    )  # fmt: skip
    executor = CountingExecutor()
    scheduler.add(*(_request(idx, prompt, setup.output_len) for idx, prompt in enumerate(prompts)))
    while (scheduled := scheduler.next()) is not None:
        executor.forward(scheduled.step, [entry.request.prompt_len for entry in scheduled.entries])
        scheduler.commit(
            scheduled, [Outcome((TokenId(1),)) if entry.draws else Outcome() for entry in scheduled.entries]
        )
    if scheduler.has_work or scheduler.check():
        raise RuntimeError(f"requests are left, or pages are lost: {scheduler.stats()}, {scheduler.check()}")
    return executor.num_prompt_tokens


def _options(setup: Setup, num_prompts: int) -> ScheduleOptions:
    return ScheduleOptions(
        max_num_seqs=setup.seats,
        max_num_batched_tokens=setup.budget,
        max_queue=num_prompts,
        **order_option(setup.order),  # type: ignore[arg-type]  # one of the words that it takes
    )


def _request(idx: int, prompt: Ids, output_len: int) -> Request:
    return Request(
        request_id=RequestId(f"r{idx}"),
        prompt_len=len(prompt),
        params=SamplingParams(max_tokens=output_len, seed=0),
        limit_len=len(prompt) + output_len,
        tokens=[TokenId(token) for token in prompt],
    )


def compare(name: str, prompts: Sequence[Ids], setup: Setup) -> bool:
    """Print one row; return whether the scheduler is at the optimum."""
    sizes = {"block_len": BLOCK_LEN, "budget": setup.budget, "seats": setup.seats}
    least = least_prefilled(prompts)
    ours = prefilled_by_scheduler(prompts, setup)
    row = (
        sum(map(len, prompts)),
        tokens_prefilled(prompts, **sizes, looks_ahead=False),
        tokens_prefilled(prompts, **sizes, looks_ahead=True),
        ours,
        least,
    )
    print(f"{name:28}" + "".join(f"{value:12,}" for value in row) + f"{ours / least:12.4f}", flush=True)
    return ours == least


def shared_beginnings(prefix_len: int, rng: random.Random, *, prompts: int = 100, own_len: int = 120) -> list[Ids]:
    """Draw prompts that share their first `prefix_len` tokens."""
    begin = tuple(rng.choices(VOCAB, k=prefix_len))
    return [begin + tuple(rng.choices(VOCAB, k=own_len)) for _ in range(prompts)]


def main() -> int:
    """Compare and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--budget", type=int, nargs="+", default=[512, 2048, 8192], help="most tokens of a step")
    parser.add_argument("--seats", type=int, default=64, help="most answers at a time")
    parser.add_argument("--order", choices=[DEFAULT, *known_orders()], default=DEFAULT, help="order of the queue")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    heads = ("no reuse", "block 16", "with l.-a.", "trivium", "optimum", "over it")
    print(f"{'prompt tokens computed':28}" + "".join(f"{head:>12}" for head in heads))
    is_best = True
    for name, shape in SHAPES.items():
        if options.shape in {name, "all"}:
            prompts = single_prompts(draw(shape, VOCAB, options.seed, shape.num_requests))
            for budget in options.budget:
                setup = Setup(budget=budget, seats=options.seats, order=options.order)
                is_best &= compare(f"{name}, {budget} a step", prompts, setup)
    print(f"100 prompts, shared part + 120 own tokens, {PREFIX_BUDGET} a step")
    rng = random.Random(options.seed)  # noqa: S311  (prompts, not secrets)
    for prefix_len in PREFIX_LENS:
        setup = Setup(budget=PREFIX_BUDGET, seats=options.seats, order=options.order)
        is_best &= compare(f"{prefix_len} tokens shared", shared_beginnings(prefix_len, rng), setup)
    print("at the optimum everywhere" if is_best else "more than the optimum is computed")
    return 0 if is_best else 1


if __name__ == "__main__":
    sys.exit(main())
