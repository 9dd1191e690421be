"""From entries to the flat arrays of a `Step`; decides nothing.

Nearly every step is a step of decodes: each request runs one token and wants its row. As long as the same requests
run, such a step is the one before it with other tokens and lengths, and the other arrays are kept::

    from the entries, every step     token_ids  positions  kv_lens  page_tables
    kept while the batch lasts       starts  reaches  logit_rows  adapter_slot, and what is empty
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.schedule.decision import Entry
from trivium.schedule.step import Step
from trivium.schedule.tables import SeatedTables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.kv_cache import Holding
    from trivium.schedule.step import Int32Array

Copies = Sequence[tuple[int, PageId, PageId]]
"""(group, source page, target page) of each page copy."""


class StepBuilder:
    """Packs the entries of one step after another.

    Arrays of a step may be those of the step before: nobody writes to them.
    """

    def __init__(self, tables: SeatedTables, page_len: int) -> None:
        """Take page tables from `tables`, whose rows are brought up to date here."""
        self._tables = tables
        self._page_len = page_len
        self._batch: _DecodeBatch | None = None

    def build(self, entries: Sequence[Entry], copies: Copies) -> Step:
        """Pack `entries`, one after the other.

        Args:
            entries: At least one; each entry's `first_row` is set here.
            copies: What is copied before the step.
        """
        if not copies and all(entry.num_tokens == 1 == entry.num_rows for entry in entries):
            return self._decodes(entries)
        return self.any_entries(entries, copies)

    def any_entries(self, entries: Sequence[Entry], copies: Copies) -> Step:
        """Pack entries of any kind; `build` gives the same for decodes, sooner."""
        token_ids: list[int] = []
        rows: list[int] = []
        for entry in entries:
            start, end = entry.start, entry.start + entry.num_tokens
            tokens = entry.request.tokens
            entry.first_row = len(rows)
            if entry.num_rows:
                origin = len(token_ids) - start
                rows.extend(range(origin + entry.scored_start, origin + entry.scored_start + entry.num_scored))
                if entry.draws:
                    rows.append(origin + end - 1)
            if entry.num_tokens == 1:
                token_ids.append(tokens[start])
            else:
                token_ids.extend(tokens[start:end])
        counts = np.array([entry.num_tokens for entry in entries], np.int32)
        first = np.array([entry.start for entry in entries], np.int32)
        starts = np.zeros(len(entries) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        kv_lens = first + counts
        holdings = [entry.request.held for entry in entries]
        seats = np.array([entry.request.seat for entry in entries], np.intp)
        return Step(
            token_ids=np.array(token_ids, np.int32),
            positions=np.arange(len(token_ids), dtype=np.int32) + np.repeat(first - starts[:-1], counts),
            starts=starts,
            kv_lens=kv_lens,
            reaches=np.array([entry.request.limit_len for entry in entries], np.int32),
            page_tables=self._page_tables(holdings, seats, int(kv_lens.max())),
            logit_rows=np.array(rows, np.int32),
            mask_row=np.full(len(rows), -1, np.int32),
            copies=np.array(copies, np.int32).reshape(-1, 3),
            adapter_slot=np.array([entry.request.adapter_slot for entry in entries], np.int32),
            state_slot=np.full(len(entries), -1, np.int32),
        )

    def _decodes(self, entries: Sequence[Entry]) -> Step:
        requests = [entry.request for entry in entries]
        lengths = [entry.start for entry in entries]
        holdings = [request.held for request in requests]
        batch = self._batch
        if batch is None or batch.holdings != holdings:
            batch = self._batch = _DecodeBatch.of(entries, holdings)
        for row, entry in enumerate(entries):
            entry.first_row = row
        positions = np.array(lengths, np.int32)
        drawn = [request.tokens[length] for request, length in zip(requests, lengths, strict=True)]
        return Step(
            token_ids=np.array(drawn, np.int32),
            positions=positions,
            starts=batch.starts,
            kv_lens=positions + 1,
            reaches=batch.reaches,
            page_tables=self._page_tables(holdings, batch.seats, max(lengths) + 1),
            logit_rows=batch.logit_rows,
            mask_row=batch.none,
            copies=batch.no_pairs,
            moves=batch.no_pairs,
            adapter_slot=batch.adapter_slot,
            state_slot=batch.none,
        )

    def _page_tables(
        self, holdings: Sequence[Holding], seats: NDArray[np.intp], longest: int
    ) -> tuple[Int32Array, ...]:
        tables = self._tables
        for idx, holding in enumerate(holdings):
            if holding.has_changed:
                tables.refresh(int(seats[idx]), holding)
        return tables.rows(seats, ceil_div(longest, self._page_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeBatch:
    """What steps of the same B decoding requests have in common."""

    holdings: list[Holding]
    """Who is in the batch; a request that stopped and started again has another holding, and perhaps another seat."""
    seats: NDArray[np.intp]
    starts: Int32Array
    logit_rows: Int32Array
    reaches: Int32Array
    adapter_slot: Int32Array
    none: Int32Array
    """[B] of -1."""
    no_pairs: Int32Array

    @classmethod
    def of(cls, entries: Sequence[Entry], holdings: list[Holding]) -> _DecodeBatch:
        count = len(entries)
        return cls(
            holdings=holdings,
            seats=np.array([entry.request.seat for entry in entries], np.intp),
            starts=np.arange(count + 1, dtype=np.int32),
            logit_rows=np.arange(count, dtype=np.int32),
            reaches=np.array([entry.request.limit_len for entry in entries], np.int32),
            adapter_slot=np.array([entry.request.adapter_slot for entry in entries], np.int32),
            none=np.full(count, -1, np.int32),
            no_pairs=np.zeros((0, 3), np.int32),
        )
