"""How tactics are timed: side by side, round after round, in the engine's own threads.

A machine has moods (clock rates, neighbours, two states of its memory), so that two timings taken one after the other
compare the moods. Here every round times every tactic once, each round in another order, and medians are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.compile.tuner.space import Case

Clock = Callable[[], float]
"""Seconds since some moment."""

_LEAST_S = 100e-6
"""A timing runs its tactic until this much time has passed, since a clock's own cost is not nothing."""


class PreparedCase(Protocol):
    """A case with operands and weights in memory."""

    @property
    def tactics(self) -> Sequence[str]:
        """Kernels that can run it, the rule's own choice (`auto`) first."""
        ...

    def run(self, tactic: str) -> NDArray[np.generic]:
        """Run it once in the engine's threads, on weights that are not in cache.

        Returns:
            The result, valid until the next run.
        """
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
    expected = _bits(prepared.run(first))
    equal = [name for name in others if np.array_equal(_bits(prepared.run(name)), expected)]
    return [first, *equal], [name for name in others if name not in equal]


def time_tactics(
    prepared: PreparedCase, tactics: Sequence[str], rounds: int, *, clock: Clock = time.perf_counter
) -> Mapping[str, float]:
    """Time tactics in interleaved rounds.

    Args:
        prepared: The case.
        tactics: Those to be timed.
        rounds: Timings of each.
        clock: Where time comes from.

    Returns:
        Median seconds of one run, by tactic.
    """
    repeats = _repeats(prepared, tactics, clock)
    times: dict[str, list[float]] = {name: [] for name in tactics}
    for number in range(rounds):
        shift = number % len(tactics)
        for name in (*tactics[shift:], *tactics[:shift]):
            began = clock()
            for _ in range(repeats):
                prepared.run(name)
            times[name].append((clock() - began) / repeats)
    return {name: statistics.median(found) for name, found in times.items()}


def _repeats(prepared: PreparedCase, tactics: Sequence[str], clock: Clock) -> int:
    """Return how often a tactic runs in one timing; warms everything up on the way."""
    slowest = 0.0
    for name in tactics:
        began = clock()
        prepared.run(name)
        slowest = max(slowest, clock() - began)
    return max(1, min(100, round(_LEAST_S / slowest))) if slowest > 0 else 1


def _bits(result: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(result).view(np.uint8).copy()
