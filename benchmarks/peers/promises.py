"""What is promised beside peers, and whether the records keep it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.points import POINTS
from benchmarks.peers.record import OURS, Record
from benchmarks.peers.summary import Cell, best, summarize

LEAST_RATIO = {"multi-turn": 3.0, "rag": 3.0}
"""Suite to how many times the best peer's wall time must be ours, at each of its points that were measured."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One point of a promise."""

    point: str
    peer: Cell | None
    """The best one; `None` where none was measured."""
    ours: Cell | None
    least: float

    @property
    def ratio(self) -> float | None:
        """The best peer's wall time over ours; the work is the same, so it is that of the rates."""
        return None if self.peer is None or self.ours is None else self.ours.median / self.peer.median

    @property
    def is_kept(self) -> bool:
        """Whether it was measured and is kept."""
        return self.ratio is not None and self.ratio >= self.least


def judge(cells: Sequence[Cell]) -> Iterator[Verdict]:
    """Yield a verdict per point of a promise at which anybody was measured."""
    measured = {cell.point for cell in cells}
    for point in POINTS:
        if point.suite in LEAST_RATIO and point.name in measured:
            engines = dict.fromkeys(cell.engine for cell in cells if cell.engine != OURS)
            peers = [found for engine in engines if (found := best(cells, point.name, engine)) is not None]
            peer = max(peers, key=lambda cell: cell.median, default=None)
            yield Verdict(point.name, peer, best(cells, point.name, OURS), LEAST_RATIO[point.suite])


def are_kept(records: Sequence[Record], most_others: float) -> bool:
    """Return whether every promise was measured, at one point at least, and is kept by every model wherever it was."""
    models = dict.fromkeys(record.model for record in records)
    return bool(models) and all(
        _is_whole([record for record in records if record.model == model], most_others) for model in models
    )


def _is_whole(records: Sequence[Record], most_others: float) -> bool:
    verdicts = list(judge(summarize(records, most_others)))
    suites = {point.suite for point in POINTS if point.name in {verdict.point for verdict in verdicts}}
    return suites == set(LEAST_RATIO) and all(verdict.is_kept for verdict in verdicts)
