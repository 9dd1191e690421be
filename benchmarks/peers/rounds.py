"""Interleaving: in every round every engine is measured at every point, so that a drift of the machine meets all.

::

    round 0   point 1: A/Q4_0  A/Q8_0  ours  B    point 2: ...
    round 1   point 1: A/Q8_0  ours  B  A/Q4_0    point 2: ...      (begins one further along)

A format of a peer that fell well behind the peer's best at a point is not measured there again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.engines.engine import Engine
from benchmarks.peers.models import BenchModel
from benchmarks.peers.points import Point
from benchmarks.peers.record import OURS, Record
from benchmarks.peers.summary import summarize
from benchmarks.peers.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run shall measure."""

    model: BenchModel
    engines: Sequence[Engine]
    points: Sequence[Point]
    num_rounds: int
    formats: Sequence[str] = ()
    """Variants of peers to measure; all when empty."""
    lag: float = 1.3
    """How many times slower than its engine's best a variant may be to be measured again."""
    most_others: float = 0.15
    """Share of the processors that others may take in a turn that counts."""
    retries: int = 1
    """How often a turn that others disturbed is taken again at once."""

    def variants(self, engine: Engine, point: Point) -> list[str]:
        """Return the variants of an engine that the run measures at a point."""
        every = engine.variants(self.model, point)
        return [one for one in every if engine.name == OURS or not self.formats or one in self.formats]


def run(plan: Plan, take: Callable[[Turn], Record]) -> Iterator[Record]:
    """Take all turns in order and yield their records, disturbed ones included."""
    records: list[Record] = []
    for round_idx in range(plan.num_rounds):
        for point in plan.points:
            turns = [
                Turn(engine, variant, point, round_idx)
                for engine in plan.engines
                for variant in worth_measuring(records, engine, plan.variants(engine, point), point, plan)
            ]
            for turn in rotated(turns, round_idx):
                for record in _with_retries(turn, plan, take):
                    records.append(record)
                    yield record


def worth_measuring(
    records: Sequence[Record], engine: Engine, variants: Sequence[str], point: Point, plan: Plan
) -> list[str]:
    """Leave out a peer's variants that are far behind its best at this point, or that failed there twice."""
    if engine.name == OURS:
        return list(variants)
    own = [record for record in records if (record.engine, record.point) == (engine.name, point.name)]
    medians = {cell.variant: cell.median for cell in summarize(own, plan.most_others)}
    failures = Counter(record.variant for record in own if record.error is not None)
    best = max(medians.values(), default=0.0)
    return [one for one in variants if medians.get(one, best) * plan.lag >= best and not _fails(one, failures, medians)]


def _fails(variant: str, failures: Counter[str], medians: Mapping[str, float]) -> bool:
    return variant not in medians and failures[variant] > 1


def rotated(turns: Sequence[Turn], by: int) -> list[Turn]:
    """Begin `by` turns further along."""
    start = by % len(turns) if turns else 0
    return [*turns[start:], *turns[:start]]


def _with_retries(turn: Turn, plan: Plan, take: Callable[[Turn], Record]) -> Iterator[Record]:
    for _ in range(1 + plan.retries):
        record = take(turn)
        yield record
        if record.error is not None or record.is_usable(plan.most_others):
            return
