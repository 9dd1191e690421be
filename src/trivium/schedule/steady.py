"""The steady state: the same requests decode, one token each, step after step.

Such a step is the one before it with the next token of each request, so it is moved on in place: nobody is chosen, no
record is made and no array is allocated::

    step k       token_ids [ 17   8   4 ]    positions [ 40   7  23 ]    kv_lens [ 41   8  24 ]
    step k + 1   token_ids [ 93  12   5 ]    positions [ 41   8  24 ]    kv_lens [ 42   9  25 ]    all else is the same

What that saves is less instructions than memory: an executor that reads its weights in every step leaves nothing else
in the processor's caches, so Python waits for everything that it touches. Hence also the memory views: NumPy's ways of
filling an array touch some hundred cache lines more.

While a device runs step k, step k + 1 is prepared in arrays of its own: all of it is known then but the tokens. When
they come and end nobody, it is launched before they are even recorded::

    device   ════ k ════╡ tokens ╞════════════════ k + 1 ════════════════
    loop      prepare k + 1      │ commit k, move on to k + 1, read k, prepare k + 2
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from trivium.base.ids import TokenId
    from trivium.cache.kv_cache import Holding, KVCache
    from trivium.schedule.decision import ScheduledStep
    from trivium.schedule.running import RunningSet
    from trivium.schedule.step import Int32Array, Step


def is_steady(scheduled: ScheduledStep, running: RunningSet) -> bool:
    """Return whether a step runs one token of every running request, and each draws its next token from it."""
    return (
        len(scheduled.entries) == len(running.requests)
        and len(scheduled.step.copies) == 0 == len(scheduled.imports)  # both are done once
        and all(entry.num_tokens == 1 == entry.num_rows and entry.draws for entry in scheduled.entries)
    )


class SteadyBatch:
    """A step that is moved on as long as the same requests run."""

    def __init__(self, scheduled: ScheduledStep, running: RunningSet, cache: KVCache) -> None:
        """Take over a steady step (see `is_steady`): its entries and arrays are changed from now on."""
        ensure(is_steady(scheduled, running), "a step that is not steady cannot be moved on")
        self.scheduled = scheduled
        self._running = running
        self._version = running.version
        self._cache = cache
        self._holdings = [entry.request.held for entry in scheduled.entries]
        self._end_ids: frozenset[TokenId] = frozenset()
        """Tokens that may end an answer of the batch; known once a step was prepared."""
        self._spare: Step | None = None
        self._is_prepared = False
        self._view(scheduled.step)

    def _view(self, step: Step) -> None:
        self._token_ids = step.token_ids.data
        self._positions = step.positions.data
        self._kv_lens = step.kv_lens.data

    def prepare(self) -> None:
        """While the step runs: make the one after it ready, in other arrays, if the same requests will go on.

        Effects:
            Holdings take the pages that it needs.
        """
        self._is_prepared = False
        if self._running.version != self._version or self._cache.has_windows:
            return
        page_len = self._cache.spec.page_len
        for entry, holding in zip(self.scheduled.entries, self._holdings, strict=True):
            request, position = entry.request, entry.start + 1
            if position + 1 >= request.end_len or position <= request.started_len:
                return  # it ends, or what it computes is to be entered into the prefix index
            if position % page_len == 0 and not self._has_page(holding, position):
                return
        step, spare = self.scheduled.step, self._spare
        if spare is None:
            arrays = {name: getattr(step, name).copy() for name in ("token_ids", "positions", "kv_lens")}
            spare = self._spare = replace(step, **arrays)
            self._end_ids = frozenset().union(*[entry.request.end_ids for entry in self.scheduled.entries])
        np.add(step.positions, 1, out=spare.positions)
        np.add(step.kv_lens, 1, out=spare.kv_lens)
        spare.page_tables = tuple([table.copy() for table in step.page_tables])
        for row, holding in enumerate(self._holdings):
            if holding.has_changed:
                self._copy_pages(spare, row, holding)
        self._is_prepared = True

    def foresee(self, token_ids: Int32Array) -> Step | None:
        """Return the step to which `move_on` will move when these draws have been recorded.

        Args:
            token_ids: [B] what the entries drew.

        Returns:
            `None` when it was not prepared, when other requests run by now, or when a token may end an answer.
        """
        if not self._is_prepared or self._spare is None or self._running.version != self._version:
            return None
        if not self._end_ids.isdisjoint(token_ids.tolist()):
            return None
        self._spare.token_ids[:] = token_ids
        return self._spare

    def move_on(self) -> bool:
        """Make the step that of the next tokens.

        Returns:
            Whether it is; `False` when other requests run by now, when one has not exactly one token to run, or no
            page for it. Then the batch is not used any more.
        """
        if self._running.version != self._version:
            return False
        if self._is_prepared and self._spare is not None:
            self._is_prepared = False
            self.scheduled.step, self._spare = self._spare, self.scheduled.step
            self._view(self.scheduled.step)
        page_len = self._cache.spec.page_len
        token_ids, positions, kv_lens = self._token_ids, self._positions, self._kv_lens
        for row, (entry, holding) in enumerate(zip(self.scheduled.entries, self._holdings, strict=True)):
            request = entry.request
            start = request.computed_len
            if len(request.tokens) != start + 1:
                return False
            # Inside a page, the token before it is in the same page, which is therefore held.
            if start % page_len == 0 and not self._has_page(holding, start):
                return False
            if holding.has_changed:
                self._copy_pages(self.scheduled.step, row, holding)
            entry.start = start
            entry.is_fresh = False
            token_ids[row] = request.tokens[start]
            positions[row] = start
            kv_lens[row] = start + 1
        return True

    def _has_page(self, holding: Holding, position: int) -> bool:
        """Take a page for `position`, unless there is one; return whether there is one now."""
        if self._cache.longest(holding) <= position:
            return False
        self._cache.grow(holding, position + 1)
        return True

    def _copy_pages(self, step: Step, row: int, holding: Holding) -> None:
        entries, tables = self.scheduled.entries, self._running.tables
        seat, num_pages = entries[row].request.seat, len(holding.pages[0])
        tables.refresh(seat, holding)
        if num_pages <= step.page_tables[0].shape[1]:
            tables.copy_row(seat, step.page_tables, row)
        else:
            step.page_tables = tables.rows([entry.request.seat for entry in entries], num_pages)
