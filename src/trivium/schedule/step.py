"""`Step`: the only unit of execution, as flat arrays that every executor understands.

Decode is one token of a request, a prefill chunk is many, verifying k drafted tokens is k + 1; a step may hold all
three. The record is complete: a field that a step does not need is empty.

::

    request            r0 (decode)   r1 (chunk of 3)          r2 (decode)
    token_ids   [T]  = [ 17        | 4     9     2          | 8          ]
    positions   [T]  = [ 40        | 16    17    18         | 7          ]
    starts    [B+1]  =   0           1                        4            5
    kv_lens     [B]  = [ 41        , 19                     , 8          ]
    logit_rows  [R]  = [ 0         ,             3          , 4          ]   (r1's chunk ends its prompt)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int32Array = NDArray[np.int32]
    Float32Array = NDArray[np.float32]


def _empty_pairs() -> Int32Array:
    return np.zeros((0, 3), np.int32)


@dataclass(slots=True, kw_only=True)
class Step:
    """One forward pass over T tokens of B requests; int32 unless said otherwise.

    Valid until the next step is chosen, which may have the same arrays with other values.
    """

    token_ids: Int32Array
    """[T] tokens to run, packed request after request."""
    positions: Int32Array
    """[T] position of each token in its request."""
    starts: Int32Array
    """[B + 1] where each request's tokens begin in `token_ids`."""
    kv_lens: Int32Array
    """[B] KV length of each request after this step."""
    reaches: Int32Array
    """[B] longest length the request may ever have; chooses its rope table (dynamic, longrope), never the batch."""
    page_tables: tuple[Int32Array, ...]
    """Per KV group: [B, pages], position-aligned page ids; -1 where a page is not held: out of the window, or behind
    the request's end, since all rows are as wide as the longest or wider."""
    logit_rows: Int32Array
    """[R] rows of the step whose logits are wanted, ascending."""
    mask_row: Int32Array
    """[R] row of the grammar mask for each wanted row, or -1."""
    embeds: Float32Array | None = None
    """[T, M] rows that replace embeddings where they are not NaN (multimodal), or none."""
    copies: Int32Array = field(default_factory=_empty_pairs)
    """[C, 3] (group, source page, target page), executed before anything else."""
    adapter_slot: Int32Array
    """[B] LoRA slot, or -1."""
    state_slot: Int32Array
    """[B] recurrent state slot, or -1."""

    @property
    def num_tokens(self) -> int:
        """T: tokens in the step."""
        return len(self.token_ids)

    @property
    def num_requests(self) -> int:
        """B: requests in the step."""
        return len(self.kv_lens)
