"""Philox4x32-10: random numbers that are a pure function of where they are used.

How the numbers of a request are addressed (no state, no hashing, so no two draws share a block)::

    key      = (seed bits 0..31, seed bits 32..63)
    counter  = (position, draw, choice, 0)

`position` is the index in the request of the token being drawn, `draw` counts the numbers that one position needs
(0 for the token itself), `choice` tells the answers of one request apart. Because the map is one to one, equal
(seed, choice, position, draw) give equal numbers in every batch, after preemption and after replay, and different
ones give different blocks.

A uniform is made of the block's first two words a, b: ``((a >> 5) * 2**26 + (b >> 6)) * 2**-53``, in [0, 1).

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and its known-answer vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counters: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Turn counters into random words.

    Args:
        counters: [N, 4] 32-bit words.
        keys: [N, 2] 32-bit words.

    Returns:
        [N, 4] 32-bit words.
    """
    c0, c1, c2, c3 = counters.T
    k0, k1 = keys.T
    for _ in range(_ROUNDS):
        even = c0 * _MULTIPLIERS[0]
        odd = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (odd >> _HALF) ^ c1 ^ k0, odd & _LOW, (even >> _HALF) ^ c3 ^ k1, even & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=1)


def uniforms(
    seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int], *, draw: int = 0
) -> NDArray[np.float64]:
    """Return one number in [0, 1) per draw.

    Args:
        seeds: [N] 0 to 2**64 - 1.
        choices: [N] index of the answer among those of its request.
        positions: [N] index in the request of the token being drawn.
        draw: Which number of that position.
    """
    seed = np.array(seeds, np.uint64)
    counters = np.zeros((len(seed), 4), np.uint64)
    counters[:, 0] = positions
    counters[:, 1] = draw
    counters[:, 2] = choices
    words = philox4x32(counters, np.stack((seed & _LOW, seed >> _HALF), axis=1))
    whole = ((words[:, 0] >> np.uint64(5)) << np.uint64(26)) + (words[:, 1] >> np.uint64(6))
    return whole.astype(np.float64) * 2.0**-53
