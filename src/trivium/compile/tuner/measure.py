"""How tactics are timed: side by side, round after round, in the engine's own threads.

A machine has moods (clock rates, neighbours, two states of its memory), so that two timings taken one after the other
compare the moods. Here every round times every tactic once, each round in another order, and tactics are compared round
by round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.compile.tuner.space import Case


_CLEARLY = 0.97
"""Of the other's time."""
_MOST = 0.8
"""Of the rounds."""


class PreparedCase(Protocol):
    """A case with operands and weights in memory."""

    @property
    def tactics(self) -> Sequence[str]:
        """Kernels that can run it, the rule's own choice (`auto`) first."""
        ...

    def result(self, tactic: str) -> NDArray[np.generic]:
        """Run it and return what it gives."""
        ...

    def seconds(self, tactic: str) -> float:
        """Run it in the engine's threads, on weights that are not in cache, and return how long one run took."""
        ...


class Bench(Protocol):
    """Where cases are run."""

    def prepare(self, case: Case) -> PreparedCase:
        """Take memory for a case; it goes when the result is dropped."""
        ...


def equal_tactics(prepared: PreparedCase) -> tuple[list[str], list[str]]:
    """Run every tactic once and compare the results, bit for bit, with what the first one gives.

    Returns:
        Tactics with the same bits, the first one included; and the others, which must not be used.
    """
    first, *others = prepared.tactics
    expected = _bits(prepared.result(first))
    equal = [name for name in others if np.array_equal(_bits(prepared.result(name)), expected)]
    return [first, *equal], [name for name in others if name not in equal]


def time_tactics(prepared: PreparedCase, tactics: Sequence[str], rounds: int) -> Mapping[str, Sequence[float]]:
    """Time tactics in interleaved rounds, after one that warms up.

    Args:
        prepared: The case.
        tactics: Those to be timed.
        rounds: Timings of each.

    Returns:
        Seconds of one run in each round, by tactic.
    """
    times: dict[str, list[float]] = {name: [] for name in tactics}
    for number in range(-1, rounds):
        shift = number % len(tactics)
        for name in (*tactics[shift:], *tactics[:shift]):
            seconds = prepared.seconds(name)
            if number >= 0:
                times[name].append(seconds)
    return times


def is_clearly_faster(seconds: Sequence[float], than: Sequence[float]) -> bool:
    """Whether a tactic beat another in most rounds, and by more than a machine's moods."""
    ratios = [one / other for one, other in zip(seconds, than, strict=True)]
    wins = sum(ratio < 1.0 for ratio in ratios)
    return statistics.median(ratios) <= _CLEARLY and wins >= _MOST * len(ratios)


def _bits(result: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(result).view(np.uint8).copy()
