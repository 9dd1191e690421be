"""Page tables of all running requests as two-dimensional arrays, so that a step takes its rows in one copy.

A running request has a seat, its row in every group's table. Rows follow the page lists of the holdings, which stay
the truth; only what changed since the last step is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.intmath import align_up
from trivium.cache.kv_cache import Holding
from trivium.cache.pages import NO_PAGE

if TYPE_CHECKING:
    from trivium.schedule.request import Request
    from trivium.schedule.step import Int32Array

WIDTH_STEP = 16
"""Tables have a multiple of so many columns, so that a step's tables have room for the pages of a few steps more."""


class SeatedTables:
    """One [seats, pages] array per KV group, and the free seats."""

    def __init__(self, num_groups: int, num_seats: int) -> None:
        self._free = list(range(num_seats - 1, -1, -1))
        self._tables = [np.full((num_seats, WIDTH_STEP), NO_PAGE, np.int32) for _ in range(num_groups)]

    def sit(self) -> int:
        """Hand out a free seat; its rows are empty."""
        seat = self._free.pop()
        for table in self._tables:
            table[seat] = NO_PAGE
        return seat

    @property
    def num_free(self) -> int:
        """Seats that nobody has."""
        return len(self._free)

    def stand(self, seat: int) -> None:
        """Take a seat back."""
        self._free.append(seat)

    def refresh(self, seat: int, holding: Holding) -> None:
        """Write what changed in the page lists of `holding` since the last call."""
        if not holding.has_changed:
            return
        holding.has_changed = False
        for group, pages in enumerate(holding.pages):
            first = holding.changed_from[group]
            if first < len(pages):
                self._widen(group, len(pages))
                self._tables[group][seat, first : len(pages)] = pages[first:]
                holding.changed_from[group] = len(pages)

    def rows(self, seats: Sequence[int], num_pages: int) -> tuple[Int32Array, ...]:
        """Return a copy of the rows of `seats` per group, at least `num_pages` columns wide."""
        chosen = np.array(seats, np.intp)
        width = align_up(num_pages, WIDTH_STEP)
        return tuple([table[:, :width][chosen] for table in self._tables])

    def copy_row(self, seat: int, copies: Sequence[Int32Array], row: int) -> None:
        """Write the row of `seat` into row `row` of what `rows` gave, as far as that is wide."""
        for table, copy in zip(self._tables, copies, strict=True):
            copy[row] = table[seat, : copy.shape[1]]

    def problems(self, requests: Sequence[Request]) -> list[str]:
        """Compare rows that claim to be up to date with the page lists."""
        found = []
        for request in requests:
            for group, pages in enumerate(request.pages):
                first = request.held.changed_from[group]
                if self._tables[group][request.seat, :first].tolist() != pages[:first]:
                    found.append(f"{request.request_id}: row {request.seat} of group {group} differs from its pages")
        return found

    def _widen(self, group: int, count: int) -> None:
        table = self._tables[group]
        if count > table.shape[1]:
            wider = np.full((table.shape[0], max(align_up(count, WIDTH_STEP), 2 * table.shape[1])), NO_PAGE, np.int32)
            wider[:, : table.shape[1]] = table
            self._tables[group] = wider
