"""How long is timed and what is kept: the heaviest products first, until the budget is used up.

A tactic is chosen only if its bits are those of the rule's own choice, and if it is clearly faster; what is not timed
runs by rule. So tuning can cost time, but neither an answer nor speed.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trivium.compile.tuner.cache import Timing, TuningCache
from trivium.compile.tuner.measure import Bench, equal_tactics, is_clearly_faster, time_tactics
from trivium.compile.tuner.space import Case, find_work, with_tactics
from trivium.plan.program import Plan

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds since some moment."""

TuneLevel = Literal["off", "quick", "full"]
BUDGETS: Mapping[TuneLevel, float] = {"off": 0.0, "quick": 12.0, "full": 50.0}
"""Seconds of timing."""

_ROUNDS: Mapping[TuneLevel, int] = {"off": 0, "quick": 5, "full": 15}
OnCase = Callable[[Case, int, int], None]
"""Told of each case before it is timed, of how many were, and of how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What tuning a plan came to."""

    plan: Plan
    num_cases: int
    num_timed: int
    """Now; others were known, or are left."""
    num_known: int
    num_left: int
    """For which there was no time: they run by rule."""
    rejected: tuple[str, ...]
    """Cases and tactics whose bits were not those of the rule's choice."""
    seconds: float


def tune(
    plan: Plan,
    cache: TuningCache,
    bench: Bench,
    level: TuneLevel,
    *,
    clock: Clock = time.perf_counter,
    on_case: OnCase | None = None,
) -> Tuning:
    """Choose the tactics of a plan: known ones from the cache, others by timing them.

    Args:
        plan: A checked plan for this machine.
        cache: This machine's timings; what is timed is added to it.
        bench: Where cases are run.
        level: How long may be timed; `off` takes what is known.
        clock: Where time comes from.
        on_case: Told how it goes.
    """
    began = clock()
    work = find_work(plan)
    known = cache.best({str(each.case): each.case for each in work})
    fresh: dict[Case, Timing] = {}
    rejected: list[str] = []
    wanted = [each.case for each in work if each.case not in known]
    for number, case in enumerate(wanted):
        if clock() - began >= BUDGETS[level]:
            break
        if on_case is not None:
            on_case(case, number, len(wanted))
        fresh[case] = _time(case, bench, _ROUNDS[level], rejected)
    if fresh:
        cache.keep(fresh)
    best = known | {case: timing.best for case, timing in fresh.items()}
    return Tuning(
        plan=with_tactics(plan, best),
        num_cases=len(work),
        num_timed=len(fresh),
        num_known=len(known),
        num_left=len(wanted) - len(fresh),
        rejected=tuple(rejected),
        seconds=clock() - began,
    )


def _time(case: Case, bench: Bench, rounds: int, rejected: list[str]) -> Timing:
    prepared = bench.prepare(case)
    equal, others = equal_tactics(prepared)
    for name in others:
        rejected.append(f"{name} of {case}")
        logger.error("the kernel '%s' gives other bits than '%s' for %s; it is not used", name, equal[0], case)
    if len(equal) == 1:
        return Timing(best=equal[0], seconds={})
    times = time_tactics(prepared, equal, rounds)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    clear = [name for name in equal[1:] if is_clearly_faster(times[name], times[equal[0]])]
    return Timing(best=min(clear, key=lambda name: seconds[name], default=equal[0]), seconds=seconds)
