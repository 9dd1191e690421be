"""The adaptive budget: step costs are learned, and prefills get what keeps the targets."""

from __future__ import annotations

import random

import pytest

from support.scheduling import Bench, full_spec, make_request
from trivium.schedule.budget import FEWEST, Front, StepCost, TokenBudget


def taught(base_s: float, decode_s: float, token_s: float, noise: float = 0.0) -> StepCost:
    rng = random.Random(3)  # noqa: S311
    cost = StepCost()
    for _ in range(300):
        decodes, tokens = rng.randint(0, 64), rng.choice([0, 0, 16, 200, 512])
        seconds = base_s + decode_s * decodes + token_s * tokens
        cost.learn(decodes, tokens, seconds * (1 + noise * rng.uniform(-1, 1)))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_costs_of_steps_are_learned(noise: float) -> None:
    cost = taught(0.003, 0.0002, 0.0004, noise)
    assert cost.seconds(32, 256) == pytest.approx(0.003 + 32 * 0.0002 + 256 * 0.0004, rel=0.1)
    assert cost.per_token_s == pytest.approx(0.0004, rel=0.1)


def test_costs_that_change_are_learned_anew() -> None:
    cost = taught(0.003, 0.0002, 0.0004)
    rng = random.Random(4)  # noqa: S311
    for _ in range(300):
        tokens = rng.choice([0, 64, 512])
        cost.learn(16, tokens, 0.01 + 0.0008 * tokens)
    assert cost.per_token_s == pytest.approx(0.0008, rel=0.05)


def test_prefills_get_what_keeps_the_pace_of_the_streams() -> None:
    budget = TokenBudget(512, tpot_target_s=0.05, ttft_target_s=None)
    budget.cost = taught(0.003, 0.0002, 0.0004)
    tokens = budget.for_prefills(16, None)
    assert budget.cost.seconds(16, tokens) == pytest.approx(0.05, rel=0.08)
    assert budget.for_prefills(0, None) == 512, "nobody waits for his next token"
    assert budget.for_prefills(5000, None) == FEWEST, "prompts go on whatever the target"
    assert TokenBudget(512, tpot_target_s=None, ttft_target_s=None).for_prefills(16, None) == 512


def test_a_first_token_that_would_be_late_gets_more() -> None:
    budget = TokenBudget(512, tpot_target_s=0.02, ttft_target_s=1.0)
    budget.cost = taught(0.003, 0.0002, 0.0004)
    alone = budget.for_prefills(16, None)
    assert budget.for_prefills(16, Front(400, 0.0)) == alone
    hurried = budget.for_prefills(16, Front(1500, 0.1))
    assert alone < hurried < 512
    assert budget.for_prefills(16, Front(1500, 2.0)) == 512, "it is late already"


def test_a_scheduler_with_a_target_cuts_chunks_and_without_one_does_not() -> None:
    def largest_chunk(**options: float) -> int:
        bench = Bench(full_spec(16), 400, max_num_batched_tokens=256, **options)
        bench.scheduler.add(make_request("stream", [1, 2], max_tokens=200))
        for _ in range(30):
            scheduled = bench.step()
            assert scheduled is not None
            bench.scheduler.learn(scheduled, 0.004 + 0.0005 * scheduled.step.num_tokens)
        bench.scheduler.add(make_request("long", range(2000), max_tokens=1))
        sizes = []
        for _ in range(40):
            scheduled = bench.next()
            assert scheduled is not None
            sizes.append(scheduled.step.num_tokens)
            seconds = 0.004 + 0.0005 * scheduled.step.num_tokens
            bench.commit_drawn(scheduled, [1] * len(scheduled.step.logit_rows))
            bench.scheduler.learn(scheduled, seconds)
        return max(sizes[5:])

    assert largest_chunk() == 256
    assert largest_chunk(tpot_target=0.03) <= 64
