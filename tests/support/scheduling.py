"""For scheduler tests: requests, specs, and `Bench`, which steps a scheduler with a scripted executor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from support.scripted_executor import ScriptedExecutor
from trivium.base.clock import FakeClock
from trivium.base.ids import RequestId, TokenId
from trivium.base.intmath import ceil_div
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.schedule.decision import Outcome, ScheduledStep
from trivium.schedule.request import Request
from trivium.schedule.scheduler import Scheduler
from trivium.tiers.lower import LowerTiers


def full_spec(page_len: int = 4) -> KVSpec:
    """One full-attention group."""
    return KVSpec((KVGroup("full", (0,), 8),), page_len)


def mixed_spec(page_len: int = 4, window: int = 6) -> KVSpec:
    """One full group and one window group."""
    return KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, window)), page_len)


def make_request(
    name: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    namespace: Hashable = (),
    choice: int = 0,
    prompt_logprobs: int | None = None,
    prompt_logprob_start: int = 0,
    **fields: Any,
) -> Request:
    """Make a request of `prompt` that may draw `max_tokens` tokens; `fields` are further ones of `Request`."""
    params = SamplingParams(
        max_tokens=max_tokens, prompt_logprobs=prompt_logprobs, prompt_logprob_start=prompt_logprob_start, seed=1
    )
    return Request(
        request_id=RequestId(name),
        choice=choice,
        prompt_len=len(prompt),
        params=params,
        limit_len=len(prompt) + max_tokens,
        namespace=namespace,
        tokens=[TokenId(token) for token in prompt],
        **fields,
    )


class Bench:
    """A scheduler with a scripted executor; every step is checked for lost pages."""

    def __init__(
        self,
        spec: KVSpec,
        num_pages: int | Sequence[int],
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_queue: int = 1024,
        max_model_len: int = 10_000,
        prefix_cache: bool = True,
        max_logit_rows: int | None = None,
        **options: Any,
    ) -> None:
        pages = [num_pages] * len(spec.groups) if isinstance(num_pages, int) else list(num_pages)
        self.clock = FakeClock()
        self.tiers: LowerTiers | None = options.pop("tiers", None)
        num_adapter_slots = options.pop("num_adapter_slots", 1)
        self.scheduler = Scheduler(
            ScheduleOptions(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_queue=max_queue,
                **options,
            ),
            spec,
            pages,
            max_model_len,
            prefix_cache=prefix_cache,
            clock=self.clock,
            max_logit_rows=max_logit_rows,
            tiers=self.tiers,
            num_adapter_slots=num_adapter_slots,
        )
        self.executor = ScriptedExecutor(spec, pages)
        self.num_steps = 0
        self.scored: dict[str, list[int]] = {}
        """Per request id, the positions of the rows that were scored, in order."""

    def next(self) -> ScheduledStep | None:
        """Choose a step, and derive its arrays from its entries by brute force."""
        scheduled = self.scheduler.next()
        if scheduled is not None:
            assert_step_follows_from_entries(scheduled, self.executor.kv_spec.page_len)
        return scheduled

    def step(self) -> ScheduledStep | None:
        """Run one step and commit it."""
        scheduled = self.next()
        if scheduled is not None:
            self.forward(scheduled)
            self.commit(scheduled)
        return scheduled

    def forward(self, scheduled: ScheduledStep) -> None:
        """Move pages between the tiers, then execute."""
        if self.tiers is not None:
            self.tiers.export(self.executor)
            for page in scheduled.imports:
                self.executor.import_page(*page)
        self.executor.forward(scheduled.step)

    def commit(self, scheduled: ScheduledStep) -> list[Request]:
        """Commit an executed step with the drawn tokens."""
        return self.commit_drawn(scheduled, self.executor.drawn())

    def commit_drawn(self, scheduled: ScheduledStep, drawn: Sequence[int]) -> list[Request]:
        """Commit a step with one token per wanted row."""
        outcomes = []
        for entry in scheduled.entries:
            last = entry.first_row + entry.num_rows - 1
            outcomes.append(Outcome((TokenId(drawn[last]),) if entry.draws else ()))
            positions = range(entry.scored_start, entry.scored_start + entry.num_scored)
            self.scored.setdefault(entry.request.request_id, []).extend(positions)
        finished = self.scheduler.commit(scheduled, outcomes)
        self.num_steps += 1
        assert self.scheduler.check() == []
        return finished

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing waits or runs."""
        for _ in range(max_steps):
            if self.step() is None:
                if self.tiers is not None and self.scheduler.has_work:
                    self.tiers.worker.settle()
                    continue
                assert not self.scheduler.has_work, "work is left and nothing can run"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def assert_idle_pages(self) -> None:
        """Nothing runs, and every page is free or evictable."""
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.pages_used) == (0, 0, 0)
        assert stats.pages_free + stats.pages_evictable == stats.pages_total


def assert_step_follows_from_entries(scheduled: ScheduledStep, page_len: int) -> None:
    """Derive every array of a step from its entries, one element at a time, and compare."""
    entries, step = scheduled.entries, scheduled.step
    requests = [entry.request for entry in entries]
    assert not scheduled.imports or any(entry.is_fresh for entry in entries), "pages are imported, and nobody starts"
    token_ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    starts = [0]
    for entry in entries:
        assert entry.first_row == len(rows)
        for position in range(entry.start, entry.start + entry.num_tokens):
            is_last = position == entry.start + entry.num_tokens - 1
            if entry.scored_start <= position < entry.scored_start + entry.num_scored or (entry.draws and is_last):
                rows.append(len(token_ids))
            token_ids.append(entry.request.tokens[position])
            positions.append(position)
        starts.append(len(token_ids))
        assert entry.num_rows == len(rows) - entry.first_row
    expected = {
        "token_ids": token_ids,
        "positions": positions,
        "starts": starts,
        "kv_lens": [entry.start + entry.num_tokens for entry in entries],
        "reaches": [request.limit_len for request in requests],
        "logit_rows": rows,
        "adapter_slot": [request.adapter_slot for request in requests],
        "state_slot": [-1] * len(requests),
    }
    for name, values in expected.items():
        array = getattr(step, name)
        assert (name, array.dtype, array.tolist()) == (name, np.int32, values)
    assert (step.mask_row.dtype, len(step.mask_row)) == (np.int32, len(rows))  # the engine sets them, step by step
    for group, table in enumerate(step.page_tables):
        for row, request, kv_len in zip(table.tolist(), requests, expected["kv_lens"], strict=True):
            count = ceil_div(kv_len, page_len)
            assert row[:count] == request.pages[group][:count]
            assert len(row[:count]) == count


def output_of(request: Request) -> list[int]:
    """The tokens that a request drew."""
    return list(request.tokens[request.prompt_len :])
