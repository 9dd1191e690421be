"""Steps that nobody asked for: to time a plan on, and to compare it on a text.

Requests here have consecutive pages of their own, and random tokens where the text does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trivium.base.intmath import ceil_div
from trivium.schedule.step import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.plan.cost import Workload

    Tokens = NDArray[np.int32]


class Timed(Protocol):
    """An executor that can time its instructions."""

    def forward(self, step: Step) -> None:
        """Run a step."""
        ...

    def timed(self, step: Step) -> Sequence[float] | NDArray[np.float64]:
        """Run a step and return the seconds of each instruction."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one request runs in a step: its tokens [start, end)."""

    tokens: Tokens
    start: int
    end: int
    first_page: int
    """Its pages in every group begin here."""


def text_steps(tokens: Sequence[int], spec: KVSpec, *, num_alone: int) -> list[Step]:
    """Build the steps that run a text: all but the last few tokens at once, these one by one; all rows are wanted.

    Args:
        tokens: The text, at least two tokens.
        spec: KV groups and page length.
        num_alone: How many tokens run alone, fewer than there are.
    """
    ids = np.array(tokens, np.int32)
    first = len(ids) - num_alone
    ends = [first, *range(first + 1, len(ids) + 1)]
    starts = [0, *ends[:-1]]
    parts = (Part(tokens=ids, start=start, end=end, first_page=0) for start, end in zip(starts, ends, strict=True))
    return [build_step([part], spec, wants_all=True) for part in parts]


def pages_needed(loads: Sequence[Workload], spec: KVSpec) -> tuple[int, ...]:
    """Return the pages of each group with which all of these can be timed."""
    most = max(load.num_requests * ceil_div(load.kv_len, spec.page_len) for load in loads)
    return (most,) * len(spec.groups)


def time_instructions(
    executor: Timed, load: Workload, spec: KVSpec, *, vocab_size: int, max_num_tokens: int, rounds: int
) -> list[float]:
    """Time a step of this size.

    The context is computed once and copied to the other requests, so that every page holds keys and is in memory.

    Args:
        executor: With at least `pages_needed`.
        load: The step.
        spec: KV groups and page length.
        vocab_size: Tokens are drawn below it.
        max_num_tokens: The most that a step may run.
        rounds: Timings, of which the median of each instruction is taken.

    Returns:
        Seconds of each instruction.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab_size, load.kv_len).astype(np.int32)
    for start in range(0, load.kv_len, max_num_tokens):
        end = min(start + max_num_tokens, load.kv_len)
        executor.forward(build_step([Part(tokens=tokens, start=start, end=end, first_page=0)], spec))
    per_request = ceil_div(load.kv_len, spec.page_len)
    count = load.num_tokens // load.num_requests
    parts = [
        Part(tokens=tokens, start=load.kv_len - count, end=load.kv_len, first_page=request * per_request)
        for request in range(load.num_requests)
    ]
    step = build_step(parts, spec, wants_all=load.num_rows == load.num_tokens)
    step.copies = _spread(load.num_requests, per_request, len(spec.groups))
    executor.forward(step)
    step.copies = step.copies[:0]
    timings = [np.array(executor.timed(step), np.float64) for _ in range(rounds)]
    return [float(seconds) for seconds in np.median(timings, axis=0)]


def build_step(parts: Sequence[Part], spec: KVSpec, *, wants_all: bool = False) -> Step:
    """Pack what requests run into flat arrays; the wanted rows are all, or the last of each request."""
    counts = [part.end - part.start for part in parts]
    num_pages = max(ceil_div(part.end, spec.page_len) for part in parts)
    held = [ceil_div(part.end, spec.page_len) for part in parts]
    columns = np.arange(num_pages, dtype=np.int32)
    first = np.array([part.first_page for part in parts], np.int32)
    table = np.where(columns < np.array(held)[:, None], first[:, None] + columns, -1).astype(np.int32)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    rows = np.arange(starts[-1], dtype=np.int32) if wants_all else starts[1:] - 1
    return Step(
        token_ids=np.concatenate([part.tokens[part.start : part.end] for part in parts]),
        positions=np.concatenate([np.arange(part.start, part.end, dtype=np.int32) for part in parts]),
        starts=starts,
        kv_lens=np.array([part.end for part in parts], np.int32),
        reaches=np.array([len(part.tokens) for part in parts], np.int32),
        page_tables=tuple(table.copy() for _ in spec.groups),
        logit_rows=rows,
        mask_row=np.full(len(rows), -1, np.int32),
        adapter_slot=np.full(len(parts), -1, np.int32),
        state_slot=np.full(len(parts), -1, np.int32),
    )


def _spread(num_requests: int, per_request: int, num_groups: int) -> Tokens:
    """Return the copies that give every request the first one's pages: [C, 3] of (group, source, target)."""
    copies = [
        (group, page, request * per_request + page)
        for group in range(num_groups)
        for request in range(1, num_requests)
        for page in range(per_request)
    ]
    return np.array(copies, np.int32).reshape(-1, 3)
