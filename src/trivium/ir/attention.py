"""Attention of some tokens over the keys and values they see, in an order of sums that no batch can change.

Bits of a row depend only on the row, its keys in ascending position, and nothing else:

* scores: each is one sum over D;
* the maximum does not depend on an order;
* the normaliser is a running sum over keys in ascending position, and so is each output element. A hidden key adds an
  exact zero (exp(-inf)), so keys past the row's position, keys of a longer neighbour's padding, and keys before the
  window change nothing, whether they are there or not.

::

    keys of a read   |first ............ first + K)      K is padded to whole pages
    row at p sees        (p - window .... p]             the rest is hidden
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.ir.meaning import ArrayLibrary

SCORES_AT_ONCE = 1 << 19
"""Scores held at a time (2 MiB): stays in cache, and bounds memory for long prompts."""


class Sight:
    """Which keys each row of a read sees; the same for all layers that share a page table and a window."""

    def __init__(self, positions: NDArray[np.int32], first: NDArray[np.int32], window: int | None) -> None:
        """Note who looks from where.

        Args:
            positions: [requests, tokens] position of each row.
            first: [requests] position of the first key.
            window: Number of positions a row sees, itself included; `None` is all before it.
        """
        self.positions = positions
        self.first = first
        self._window = window
        self._veils: dict[tuple[int, int, int], Any] = {}

    def veil(self, library: ArrayLibrary, start: int, end: int, num_keys: int) -> Any:
        """[requests, tokens start to end, 1, K]: 0 where a row sees a key, minus infinity where not."""
        key = (start, end, num_keys)
        if key not in self._veils:
            key_positions = (self.first[:, None] + np.arange(num_keys, dtype=np.int32))[:, None, :]
            positions = self.positions[:, start:end, None]
            hidden = key_positions > positions
            if self._window is not None:
                hidden |= key_positions <= positions - self._window
            veil = np.where(hidden, np.float32(-math.inf), np.float32(0.0))
            self._veils[key] = library.asarray(veil[:, :, None, :])
        return self._veils[key]


@dataclass(frozen=True, slots=True)
class KVRead:
    """Keys and values of some requests that run equally many tokens."""

    rows: Any
    """Which rows of the step these are: a slice, or row numbers, request after request."""
    sight: Sight
    keys: Any
    """[G, requests, K, D]; anything finite where hidden."""
    values: Any
    """[G, requests, K, D]; anything finite where hidden."""


def attend(library: ArrayLibrary, q: Any, read: KVRead, *, softcap: float | None) -> Any:
    """Compute softmax(q . K) . V for the rows of one read.

    Args:
        library: Arrays and products.
        q: [requests * tokens, H, D], already scaled.
        read: What the rows see.
        softcap: Scores are squashed into (-softcap, softcap) when given.

    Returns:
        [requests * tokens, H, D].
    """
    xp = library.xp
    num_requests, num_tokens = read.sight.positions.shape
    num_kv_heads, _, num_keys, width = read.keys.shape
    num_shared = q.shape[1] // num_kv_heads
    batch = num_kv_heads * num_requests
    keys = xp.reshape(read.keys, (batch, num_keys, width))
    values = xp.reshape(read.values, (batch, num_keys, width))
    # [requests, tokens, G, shared, D] -> [G, requests, tokens, shared, D]: one product per KV head and request.
    grouped = xp.permute_dims(
        xp.reshape(q, (num_requests, num_tokens, num_kv_heads, num_shared, width)), (2, 0, 1, 3, 4)
    )
    outs = []
    tokens_at_once = max(1, SCORES_AT_ONCE // (batch * num_shared * num_keys))
    for start in range(0, num_tokens, tokens_at_once):
        piece = grouped[:, :, start : start + tokens_at_once]
        veil = read.sight.veil(library, start, start + piece.shape[2], num_keys)
        rows = xp.reshape(piece, (batch, piece.shape[2] * num_shared, width))
        scores = library.matmul_nt(rows, keys)
        if softcap is not None:
            scores *= 1.0 / softcap
            scores = xp.tanh(scores)
            scores *= softcap
        shares, total = _softmax(library, xp.reshape(scores, (*piece.shape[:4], num_keys)), veil)
        out = library.matmul_nn(xp.reshape(shares, scores.shape), values)
        out /= xp.reshape(total, (batch, -1, 1))
        outs.append(xp.reshape(out, piece.shape))
    out = outs[0] if len(outs) == 1 else xp.concat(outs, axis=2)
    return xp.reshape(xp.permute_dims(out, (1, 2, 0, 3, 4)), q.shape)


def _softmax(library: ArrayLibrary, scores: Any, veil: Any) -> tuple[Any, Any]:
    """Turn scores [..., K] into unnormalised shares and their sums [..., 1]; overwrites `scores`."""
    xp = library.xp
    scores += veil
    scores -= xp.max(scores, axis=-1, keepdims=True)
    shares = xp.exp(scores)
    # A running sum, not a reduction: reductions add pairwise, in an order that depends on the number of keys.
    return shares, xp.cumulative_sum(shares, axis=-1)[..., -1:]
