"""From entries to the flat arrays of a `Step`; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.ids import PageId
from trivium.schedule.decision import Entry
from trivium.schedule.step import Step
from trivium.schedule.tables import SeatedTables

if TYPE_CHECKING:
    from trivium.schedule.step import Int32Array


def build_step(entries: Sequence[Entry], tables: SeatedTables, copies: Sequence[tuple[int, PageId, PageId]]) -> Step:
    """Pack `entries` one after the other.

    Args:
        entries: At least one; each entry's `first_row` is set here.
        tables: Rows of the running requests, brought up to date here.
        copies: (group, source page, target page).
    """
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
    num_tokens = len(token_ids)
    return Step(
        token_ids=np.array(token_ids, np.int32),
        positions=np.arange(num_tokens, dtype=np.int32) + np.repeat(first - starts[:-1], counts),
        starts=starts,
        kv_lens=first + counts,
        reaches=np.array([entry.request.limit_len for entry in entries], np.int32),
        page_tables=_page_tables(entries, tables),
        logit_rows=np.array(rows, np.int32),
        mask_row=np.full(len(rows), -1, np.int32),
        copies=np.array(copies, np.int32).reshape(-1, 3),
        adapter_slot=np.array([entry.request.adapter_slot for entry in entries], np.int32),
        state_slot=np.full(len(entries), -1, np.int32),
    )


def _page_tables(entries: Sequence[Entry], tables: SeatedTables) -> tuple[Int32Array, ...]:
    seats = []
    num_pages = 0
    for entry in entries:
        request = entry.request
        tables.refresh(request.seat, request.held)
        seats.append(request.seat)
        num_pages = max(num_pages, len(request.pages[0]))
    return tables.rows(seats, num_pages)
