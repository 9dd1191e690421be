"""Softmax weights in an arithmetic that every implementation can repeat to the last bit.

Library exponentials differ in their last bit between processors, so the sampler has its own, made of IEEE double
operations only, each rounded (no fused multiply-add). `weights_of` computes, for x <= 0::

    x < -708                 -> 0
    n = rint(x * 1.4426950408889634)                                 ties to even
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10    first product is exact
    p = ((((c12 * r) + c11) * r + c10) * r ... + c1) * r + c0        ck = 1 / k!, rounded to double
    weight = p * 2**n

Relative error: below 5e-16. A total is the plain left-to-right sum of the weights, ids ascending.

`estimate` is the same from the library's exponential and any order of summing, some ten times faster. It carries how
far its sums may be from the exact ones; who decides by an estimate checks that the answer cannot depend on that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWEST = -708.0
"""Arguments below this have weight 0; keeps 2**n a normal number."""

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(12, -1, -1))
MAX_ESTIMATED = 1 << 21
"""Most terms for which an estimate's slack is a bound."""

_SLACK = 1e-9
"""Bounds |estimated sum - exact sum| / total: 2**21 terms round to 2**-32 relative at worst, on either side."""
_TILE = 16384
"""Elements per pass over the polynomial, so that its operands stay in the second-level cache."""


@dataclass(slots=True, frozen=True)
class Softmax:
    """A distribution, not normalised: the weight of each token relative to the most likely one."""

    scaled: NDArray[np.float64]
    """[C] (logit - greatest logit) / temperature, at most 0."""
    weights: NDArray[np.float64]
    """[C] exponentials of `scaled`."""
    total: float
    """Sum of the weights; ids ascending, left to right, when exact."""
    slack: float = 0.0
    """How far a sum of weights may be from the exact sum, as a share of the total; 0 when exact."""

    def weigh(self, scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        """Exponentiate more values the way `weights` were made."""
        return np.exp(scaled) if self.slack else weights_of(scaled)


def softmax(logits: NDArray[np.float32] | NDArray[np.float64], greatest: float, temperature: float = 1.0) -> Softmax:
    """Weigh tokens by their logits.

    Args:
        logits: [C] in ascending order of ids; -inf has weight 0.
        greatest: Subtracted from each logit; at least the greatest of them, and finite.
        temperature: Divides the differences; greater than 0.
    """
    scaled = scale(logits, greatest, temperature)
    weights = weights_of(scaled)
    return Softmax(scaled, weights, float(running_total(weights)[-1]))


def estimate(logits: NDArray[np.float32] | NDArray[np.float64], greatest: float, temperature: float = 1.0) -> Softmax:
    """Weigh tokens fast, and not exactly; takes what `softmax` takes."""
    scaled = scale(logits, greatest, temperature)
    weights = np.exp(scaled)
    return Softmax(scaled, weights, float(weights.sum()), _SLACK)


def scale(
    logits: NDArray[np.float32] | NDArray[np.float64], greatest: float, temperature: float
) -> NDArray[np.float64]:
    """Return (logit - greatest) / temperature in float64."""
    scaled = logits.astype(np.float64)
    scaled -= greatest
    if temperature != 1.0:
        scaled /= temperature
    return scaled


def running_total(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the [C] sums of the first 1, 2, ... weights, each rounded before the next is added."""
    return np.add.accumulate(weights)


def weights_of(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponentiate as the module's text defines.

    Args:
        scaled: [C] at most 0; -inf allowed, NaN not.
    """
    weights = np.empty_like(scaled)
    size = min(_TILE, len(scaled))
    scratch = np.empty((3, size))
    powers = np.empty(size, np.int64)
    for start in range(0, len(scaled), _TILE):
        tile = scaled[start : start + _TILE]
        width = len(tile)
        _exponentiate(tile, weights[start : start + width], scratch[:, :width], powers[:width])
    return weights


def _exponentiate(
    x: NDArray[np.float64], out: NDArray[np.float64], scratch: NDArray[np.float64], powers: NDArray[np.int64]
) -> None:
    rest, whole, product = scratch
    np.maximum(x, LOWEST, out=rest)
    np.multiply(rest, _LOG2_E, out=whole)
    np.rint(whole, out=whole)
    np.multiply(whole, _LN2_HIGH, out=product)
    np.subtract(rest, product, out=rest)
    np.multiply(whole, _LN2_LOW, out=product)
    np.subtract(rest, product, out=rest)

    np.multiply(rest, _COEFFICIENTS[0], out=out)
    for coefficient in _COEFFICIENTS[1:-1]:
        np.add(out, coefficient, out=out)
        np.multiply(out, rest, out=out)
    np.add(out, _COEFFICIENTS[-1], out=out)

    # 2**whole, by writing the exponent field of a double: 52 fraction bits below, bias 1023.
    np.add(whole, 1023.0, out=whole)
    np.copyto(powers, whole, casting="unsafe")
    np.left_shift(powers, 52, out=powers)
    np.multiply(out, powers.view(np.float64), out=out)
    np.copyto(out, 0.0, where=np.less(x, LOWEST))
