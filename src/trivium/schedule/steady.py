"""The steady state: the same requests decode, one token each, step after step.

Such a step is the one before it with the next token of each request, so it is moved on in place: nobody is chosen, no
record is made and no array is allocated::

    step k       token_ids [ 17   8   4 ]    positions [ 40   7  23 ]    kv_lens [ 41   8  24 ]
    step k + 1   token_ids [ 93  12   5 ]    positions [ 41   8  24 ]    kv_lens [ 42   9  25 ]    all else is the same

What that saves is less instructions than memory: an executor that reads its weights in every step leaves nothing else
in the processor's caches, so Python waits for everything that it touches. Hence also the memory views: NumPy's ways of
filling an array touch some hundred cache lines more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from trivium.cache.kv_cache import Holding, KVCache
    from trivium.schedule.decision import ScheduledStep
    from trivium.schedule.running import RunningSet


def is_steady(scheduled: ScheduledStep, running: RunningSet) -> bool:
    """Return whether a step runs one token of every running request, and each draws its next token from it."""
    return (
        len(scheduled.entries) == len(running.requests)
        and len(scheduled.step.copies) == 0
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
        step = scheduled.step
        self._token_ids = step.token_ids.data
        self._positions = step.positions.data
        self._kv_lens = step.kv_lens.data

    def move_on(self) -> bool:
        """Make the step that of the next tokens.

        Returns:
            Whether it is; `False` when other requests run by now, when one has not exactly one token to run, or no
            page for it. Then the batch is not used any more.
        """
        if self._running.version != self._version:
            return False
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
                self._copy_pages(row, holding)
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

    def _copy_pages(self, row: int, holding: Holding) -> None:
        step, entries, tables = self.scheduled.step, self.scheduled.entries, self._running.tables
        seat, num_pages = entries[row].request.seat, len(holding.pages[0])
        tables.refresh(seat, holding)
        if num_pages <= step.page_tables[0].shape[1]:
            tables.copy_row(seat, step.page_tables, row)
        else:
            step.page_tables = tables.rows([entry.request.seat for entry in entries], num_pages)
