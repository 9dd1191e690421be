"""`Candidates`: the tokens of one row that may still be drawn.

Rank order, everywhere in the sampler: greater edited logit first, then lower id. Edited logits are those before the
temperature, so a temperature never reorders and rounding by it never makes a tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trivium.sampling.softmax import MAX_ESTIMATED, Softmax, estimate, running_total, softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logits = NDArray[np.float32] | NDArray[np.float64]

_WORTH_ESTIMATING = range(4096, MAX_ESTIMATED + 1)
"""Numbers of candidates of which an estimate is cheaper than exact weights, and bounded."""


class Candidates:
    """Token ids in ascending order with their edited logits, and lazily their weights.

    Invariants:
        Every kept logit is finite; at least one token is kept; ids ascend.
    """

    __slots__ = ("_softmax", "greatest", "ids", "logits", "temperature")

    def __init__(self, ids: NDArray[np.int64] | None, logits: Logits, greatest: float) -> None:
        """Hold `logits` [C] of the tokens `ids` (`None`: of all tokens), whose maximum is `greatest`."""
        self.ids = ids
        self.logits = logits
        self.greatest = greatest
        self.temperature = 1.0
        self._softmax: Softmax | None = None

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def softmax(self) -> Softmax:
        """Weights of the candidates and their sum; the reference point stays the row's greatest logit."""
        if self._softmax is None:
            self._softmax = softmax(self.logits, self.greatest, self.temperature)
        return self._softmax

    def weighings(self) -> Iterator[Softmax]:
        """Yield the weights, cheapest first; the last one is exact, and the first may be."""
        if self._softmax is None and len(self) in _WORTH_ESTIMATING:
            yield estimate(self.logits, self.greatest, self.temperature)
        yield self.softmax

    def know(self, known: Softmax) -> None:
        """Take over the softmax of the same logits at the same temperature."""
        self._softmax = known

    def keep(self, places: NDArray[np.int64]) -> None:
        """Drop all but the candidates at `places` [K], which ascend."""
        self.ids = places if self.ids is None else self.ids[places]
        self.logits = self.logits[places]
        if self._softmax is not None:
            weights = self._softmax.weights[places]
            self._softmax = Softmax(self._softmax.scaled[places], weights, float(running_total(weights)[-1]))

    def keep_leading(self, count: int, cut: float) -> None:
        """Keep the first `count` in rank order, the last of which has logit `cut`."""
        self.keep(leading(self.logits, count, cut))

    def id_at(self, place: int) -> int:
        """Return the token id of a place."""
        return place if self.ids is None else int(self.ids[place])


def leading(logits: Logits, count: int, cut: float) -> NDArray[np.int64]:
    """Return the places, ascending, of the first `count` in rank order; the last of them has logit `cut`."""
    chosen = logits > cut
    ties = np.flatnonzero(logits == cut)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def nth_greatest(logits: Logits, count: int) -> float:
    """Return the logit of the `count`-th token in rank order; 1 <= count <= C."""
    place = len(logits) - count
    return float(np.partition(logits, place)[place])
