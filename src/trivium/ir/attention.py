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


@dataclass(frozen=True, slots=True)
class KVRead:
    """Keys and values of some requests that run equally many tokens."""

    rows: Any
    """Which rows of the step these are: a slice, or row numbers, request after request."""
    positions: NDArray[np.int32]
    """[requests, tokens] position of each row, in host memory."""
    first: NDArray[np.int32]
    """[requests] position of the first key, in host memory."""
    keys: Any
    """[G, requests, K, D]; anything finite where hidden."""
    values: Any
    """[G, requests, K, D]; anything finite where hidden."""


def attend(library: ArrayLibrary, q: Any, read: KVRead, *, window: int | None, softcap: float | None) -> Any:
    """Compute softmax(q . K) . V for the rows of one read.

    Args:
        library: Arrays and products.
        q: [requests * tokens, H, D], already scaled.
        read: What the rows see.
        window: Number of positions a row sees, itself included; `None` is all before it.
        softcap: Scores are squashed into (-softcap, softcap) when given.

    Returns:
        [requests * tokens, H, D].
    """
    xp = library.xp
    num_requests, num_tokens = read.positions.shape
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
        hidden = _hidden(read, start, start + piece.shape[2], num_keys, window)
        rows = xp.reshape(piece, (batch, piece.shape[2] * num_shared, width))
        scores = library.matmul_nt(rows, keys)
        if softcap is not None:
            scores *= 1.0 / softcap
            scores = xp.tanh(scores)
            scores *= softcap
        shares, total = _softmax(library, xp.reshape(scores, (*piece.shape[:4], num_keys)), hidden)
        out = library.matmul_nn(xp.reshape(shares, scores.shape), values)
        out /= xp.reshape(total, (batch, -1, 1))
        outs.append(xp.reshape(out, piece.shape))
    out = outs[0] if len(outs) == 1 else xp.concat(outs, axis=2)
    return xp.reshape(xp.permute_dims(out, (1, 2, 0, 3, 4)), q.shape)


def _hidden(read: KVRead, start: int, end: int, num_keys: int, window: int | None) -> NDArray[np.bool_]:
    """[requests, tokens, 1, K]: which keys each row must not see."""
    key_positions = (read.first[:, None] + np.arange(num_keys, dtype=np.int32))[:, None, :]
    positions = read.positions[:, start:end, None]
    hidden = key_positions > positions
    if window is not None:
        hidden |= key_positions <= positions - window
    return hidden[:, :, None, :]


def _softmax(library: ArrayLibrary, scores: Any, hidden: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Turn scores [..., K] into unnormalised shares and their sums [..., 1]; may overwrite `scores`."""
    xp = library.xp
    scores = xp.where(library.asarray(hidden), -math.inf, scores)
    scores -= xp.max(scores, axis=-1, keepdims=True)
    shares = xp.exp(scores)
    # A running sum, not a reduction: reductions add pairwise, in an order that depends on the number of keys.
    return shares, xp.cumulative_sum(shares, axis=-1)[..., -1:]
