"""From a checked `Step` to what a graph runs on: flat arrays, and which pages each request reads.

Requests that run equally few tokens over similarly many keys are read together: one product for all of them instead
of one each. Grouping is free to choose, since no row's bits depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.intmath import ceil_div
from trivium.ir.attention import KVRead, Sight
from trivium.runtime.check import token_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.runtime.arrays import Library
    from trivium.runtime.kv_store import KVStore
    from trivium.schedule.step import Step

ALIGNED_KEYS = 64
"""Reads begin at multiples of this many positions, so that kernels that sum in segments cut them alike."""
KEYS_AT_ONCE = 4096
"""Keys that requests read together may have in all (a few MiB at a time)."""
TOKENS_TOGETHER = 16
"""Requests with more tokens than this in a step are read alone."""
LENGTH_RATIO = 1.25
"""Requests read together pad their keys to the longest; this bounds the waste."""


def graph_inputs(step: Step, library: Library) -> dict[str, Any]:
    """Return every input a graph may have, by name; positions and reach stay in host memory."""
    return {
        "token_ids": library.asarray(step.token_ids),
        "positions": step.positions,
        "reach": np.repeat(step.reaches, np.diff(step.starts)),
        "logit_rows": library.asarray(step.logit_rows),
        "embeds": None if step.embeds is None else library.asarray(step.embeds),
    }


@dataclass(frozen=True, slots=True)
class _PlannedRead:
    """What one `KVRead` needs, the same for all layers with one page table and window."""

    rows: Any
    sight: Sight
    page_ids: Any
    """[requests * pages], or a slice where they follow each other."""


class StepMemory:
    """The KV store as one step sees it; reads and slots are planned once and serve all layers."""

    def __init__(self, step: Step, store: KVStore, library: Library) -> None:
        self._step = step
        self._store = store
        self._library = library
        self._slots: dict[int, Any] = {}
        self._planned: dict[tuple[int, int | None], list[_PlannedRead]] = {}

    def write(self, layer: int, k: Any, v: Any) -> None:
        """Store [T, G, D] keys and values of the step's tokens."""
        group_idx = self._store.group_of(layer)
        if group_idx not in self._slots:
            slots = token_slots(self._step, group_idx, self._store.spec.page_len)
            self._slots[group_idx] = self._library.asarray(slots)
        self._store.write(layer, self._slots[group_idx], k, v)

    def reads(self, layer: int, window: int | None) -> Iterator[KVRead]:
        """Yield what each token of the step sees, every token in exactly one read."""
        key = (self._store.group_of(layer), window)
        if key not in self._planned:
            self._planned[key] = self._plan(*key)
        xp = self._library.xp
        for read in self._planned[key]:
            keys, values = self._store.gather(layer, read.page_ids)
            shape = (keys.shape[0], len(read.sight.first), -1, keys.shape[-1])
            yield KVRead(read.rows, read.sight, xp.reshape(keys, shape), xp.reshape(values, shape))

    def _plan(self, group_idx: int, window: int | None) -> list[_PlannedRead]:
        step, page_len = self._step, self._store.spec.page_len
        counts = np.diff(step.starts)
        first = np.zeros_like(step.kv_lens)
        if window is not None:
            # position   0 ..... first ..... p - window .......... p (first row)  ..... kv_len
            #            | not read  | hidden      | seen                               |
            unit = math.lcm(ALIGNED_KEYS, page_len)
            first = np.maximum(step.positions[step.starts[:-1]] - window + 1, 0) // unit * unit
        num_keys = step.kv_lens - first
        order = np.lexsort((num_keys, counts))
        planned: list[_PlannedRead] = []
        together: list[int] = []
        for request in order.tolist():
            if together and not _fits(together[0], request, len(together), counts, num_keys):
                planned.append(self._planned_read(group_idx, window, together, first))
                together = []
            together.append(request)
        planned.append(self._planned_read(group_idx, window, together, first))
        return planned

    def _planned_read(
        self, group_idx: int, window: int | None, requests: list[int], first: NDArray[np.int32]
    ) -> _PlannedRead:
        step, page_len = self._step, self._store.spec.page_len
        chosen = np.array(requests)
        first_keys, starts = first[chosen], step.starts[chosen]
        # table row    0 ..... first page ....................... first page + num_pages
        # read         |  no   | page, or 0 where not held or past the request's end |
        longest = int((step.kv_lens[chosen] - first_keys).max())
        num_pages = ceil_div(longest, page_len)
        columns = first_keys[:, None] // page_len + np.arange(num_pages)
        table = step.page_tables[group_idx][chosen]
        is_held = columns * page_len < step.kv_lens[chosen, None]
        pages = np.take_along_axis(table, np.minimum(columns, table.shape[1] - 1), axis=1)
        page_ids = np.maximum(np.where(is_held, pages, 0), 0)
        num_tokens = int(step.starts[requests[0] + 1] - step.starts[requests[0]])
        row_numbers = starts[:, None] + np.arange(num_tokens, dtype=np.int32)
        positions = step.positions[row_numbers]
        rows: Any = slice(int(starts[0]), int(starts[0]) + num_tokens)
        if len(requests) > 1:
            rows = self._library.asarray(row_numbers.reshape(-1))
        sight = Sight(positions, first_keys, window)
        return _PlannedRead(rows, sight, self._page_ids(page_ids.reshape(-1)))

    def _page_ids(self, page_ids: NDArray[np.int32]) -> Any:
        if (np.diff(page_ids) == 1).all():
            return slice(int(page_ids[0]), int(page_ids[-1]) + 1)
        return self._library.asarray(page_ids)


def _fits(
    shortest: int, request: int, num_together: int, counts: NDArray[np.int32], num_keys: NDArray[np.int32]
) -> bool:
    """Whether `request`, which has the most keys so far, may be read with those before it."""
    if counts[shortest] != counts[request] or counts[request] > TOKENS_TOGETHER:
        return False
    is_similar = num_keys[request] <= LENGTH_RATIO * num_keys[shortest] + ALIGNED_KEYS
    return bool(is_similar and (num_together + 1) * num_keys[request] <= KEYS_AT_ONCE)
