"""A bench whose tactics take the time that a test says, by a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trivium.base.clock import FakeClock
from trivium.compile.tuner.space import Case

Cost = Callable[[Case, str], float]
"""Seconds of one run."""


@dataclass
class FakeBench:
    """Hands out cases that count their runs."""

    clock: FakeClock
    cost: Cost
    tactics: Sequence[str] = ("auto", "direct", "unpacked")
    wrong: Callable[[Case, str], bool] = lambda _case, _tactic: False
    """Whether a tactic gives other bits."""
    runs: list[tuple[Case, str]] = field(default_factory=list)

    def prepare(self, case: Case) -> FakePrepared:
        """Count nothing yet."""
        return FakePrepared(self, case)


@dataclass
class FakePrepared:
    """One case."""

    bench: FakeBench
    case: Case

    @property
    def tactics(self) -> Sequence[str]:
        """What the bench was given."""
        return self.bench.tactics

    def seconds(self, tactic: str) -> float:
        """Let the time pass that one run takes."""
        self.bench.runs.append((self.case, tactic))
        seconds = self.bench.cost(self.case, tactic)
        self.bench.clock.advance(seconds)
        return seconds

    def result(self, tactic: str) -> NDArray[np.float32]:
        """Give numbers that depend on the case alone, unless the tactic is a wrong one."""
        result = np.arange(16, dtype=np.float32) + self.case.num_rows
        if self.bench.wrong(self.case, tactic):
            result[3] = np.nextafter(result[3], np.float32(np.inf))
        return result
