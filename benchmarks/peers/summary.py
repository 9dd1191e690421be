"""From records to cells: medians per engine, variant and point; the best variant; who is faster where."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.record import OURS, Record

_BITS = re.compile(r"(?:^|[^a-z0-9])(?:i?q|int|uint|bf|f|fp)(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one engine did with one variant at one point, over the rounds."""

    point: str
    engine: str
    variant: str
    values: tuple[float, ...]
    """Tokens per second of the runs that count, in order."""
    num_discarded: int
    """Runs that were disturbed or failed."""
    figures: Mapping[str, float]
    """Medians of the other figures."""
    stream_gb_per_s: float | None
    """Median read rate of memory before the runs that count."""

    @property
    def median(self) -> float:
        """Median tokens per second."""
        return statistics.median(self.values)

    def rate(self, figure: str | None = None) -> float:
        """Median tokens per second, or the median of another figure; 0 where that was not measured."""
        return self.median if figure is None else self.figures.get(figure, 0.0)

    @property
    def bits(self) -> int | None:
        """Bits of a weight that the variant's name tells: 4 for Q4_1, 8 for int8, 16 for BF16."""
        found = _BITS.search(self.variant)
        return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class Lag:
    """A point at which a peer was faster than we are."""

    point: str
    peer: Cell
    ours: Cell

    @property
    def ratio(self) -> float:
        """Our rate over the peer's, below 1."""
        return self.ours.median / self.peer.median


def summarize(records: Iterable[Record], most_others: float) -> list[Cell]:
    """Group records into cells, in the order in which they first come; cells without a run that counts are left out."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.point, record.engine, record.variant].append(record)
    cells = []
    for (point, engine, variant), group in groups.items():
        good = [record for record in group if record.is_usable(most_others)]
        if good:
            cells.append(
                Cell(
                    point=point,
                    engine=engine,
                    variant=variant,
                    values=tuple(record.tokens_per_s for record in good if record.tokens_per_s is not None),
                    num_discarded=len(group) - len(good),
                    figures=_medians([record.figures for record in good]),
                    stream_gb_per_s=_median([record.stream_gb_per_s for record in good]),
                )
            )
    return cells


def best(
    cells: Iterable[Cell], point: str, engine: str, *, bits: int | None = None, figure: str | None = None
) -> Cell | None:
    """Return an engine's fastest variant at a point.

    Args:
        cells: To choose from.
        point: Name of the point.
        engine: Name of the engine.
        bits: Variants of this precision only.
        figure: What to compare instead of tokens per second; cells without it do not count.
    """
    own = [cell for cell in cells if (cell.point, cell.engine) == (point, engine) and bits in {None, cell.bits}]
    return max((cell for cell in own if cell.rate(figure)), key=lambda cell: cell.rate(figure), default=None)


def lags(cells: Sequence[Cell]) -> list[Lag]:
    """List where a peer's best is faster than our best, worst first."""
    found = []
    for point, engine in dict.fromkeys((cell.point, cell.engine) for cell in cells if cell.engine != OURS):
        ours, peer = best(cells, point, OURS), best(cells, point, engine)
        if ours is not None and peer is not None and peer.median > ours.median:
            found.append(Lag(point, peer, ours))
    return sorted(found, key=lambda lag: lag.ratio)


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: statistics.median(one[name] for one in figures if name in one) for name in names}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
