"""The requests that run: their holdings and seats, who must make room for whom, and the entries of the next step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.pages import NO_PAGE
from trivium.schedule.adapter_slots import AdapterSlots
from trivium.schedule.below import Below
from trivium.schedule.decision import Entry
from trivium.schedule.request import Request, RequestState
from trivium.schedule.rows import limit_by_rows, want_rows
from trivium.schedule.tables import SeatedTables
from trivium.schedule.timeline import PreemptionKind

if TYPE_CHECKING:
    from trivium.schedule.step import Int32Array


class StepDraft:
    """A step in the making: what is left of its budgets, and whose part is decided."""

    def __init__(self, num_tokens: int, num_rows: int) -> None:
        self.tokens_left = num_tokens
        self.rows_left = num_rows
        self.entries: dict[Request, Entry] = {}
        self.has_preempted = False
        self.unfinished: list[Request] = []
        """Decoding requests that have more tokens to run than the one that each gets first."""


class RunningSet:
    """Running requests in the order in which they started, or better priorities first and then in that order."""

    def __init__(
        self, cache: KVCache, num_seats: int, below: Below, slots: AdapterSlots, *, by_priority: bool = False
    ) -> None:
        """Make an empty set.

        Args:
            cache: Pages and prefix index.
            num_seats: Most requests that run at a time.
            below: Where victims may be swapped to.
            slots: Of adapters; those of running requests are held.
            by_priority: Whether better priorities come first; whoever comes last makes room first.
        """
        self._cache = cache
        self._below = below
        self._slots = slots
        self._by_priority = by_priority
        self.tables = SeatedTables(len(cache.pools), num_seats)
        self.requests: list[Request] = []
        self.version = 0
        """Changes whenever `requests` does."""
        self.preempted: list[tuple[Request, int, PreemptionKind]] = []
        """Requests that had to make room since the scheduler last looked, the tokens whose KV each gave up, and how
        they come back."""

    def start(self, request: Request, holding: Holding) -> None:
        """Make a waiting request run with what `holding` found in the cache."""
        request.state = RequestState.RUNNING
        request.holding = holding
        request.pages = holding.pages
        request.started_len = request.target_len
        request.computed_len = holding.cached_len
        request.seat = self.tables.sit()
        request.adapter_slot = self._slots.hold(request.adapter)
        request.array = None
        if self._by_priority:
            insort(self.requests, request, key=lambda other: other.priority)
        else:
            self.requests.append(request)
        self.version += 1

    def stop(self, request: Request, *, keep: bool) -> None:
        """Make a request not run any more; the caller sets its state.

        Args:
            request: Running.
            keep: Whether its computed KV enters the prefix index. Never for a request whose pages were not all copied
                or filled.
        """
        holding = request.held
        self._cache.close(holding, computed_tokens(request) if keep and _is_whole(holding) else None, request.claim)
        self.tables.stand(request.seat)
        self._slots.release(request.adapter)
        request.adapter_slot = -1
        self.requests.remove(request)
        self.version += 1
        request.holding = None
        request.pages = ()
        request.seat = -1
        request.computed_len = 0

    def grant_decodes(self, draft: StepDraft) -> None:
        """Give every request that decodes, or is at the end of its prefill, one token, as far as budgets and pages go.

        Effects:
            Later-started requests without a part in the step may be preempted. Those that could run more tokens, forced
            by their grammars, are in `draft.unfinished`.
        """
        page_len = self._cache.spec.page_len
        for request in tuple(self.requests):
            start, target = request.computed_len, len(request.tokens)
            if request.holding is None:
                continue
            if target - start != 1:
                if start >= request.started_len:
                    self.grant(draft, request, 1)
                    if request in draft.entries:
                        draft.unfinished.append(request)
                continue
            if start < request.prompt_len or target >= request.end_len:
                self.grant(draft, request, 1)  # the end of a prompt: it may be scored, and may draw nothing
                continue
            if draft.tokens_left <= 0 or draft.rows_left <= 0:
                return
            # Inside a page, the token before it is in the same page, which is therefore held.
            if start % page_len == 0 and self._fit(draft, request, start, 1) == 0:
                continue
            draft.entries[request] = Entry(request, start, 1, num_rows=1, draws=True)
            draft.tokens_left -= 1
            draft.rows_left -= 1

    def grant(self, draft: StepDraft, request: Request, num_tokens: int) -> None:
        """Give a running request up to `num_tokens` tokens of the step, in all, as far as rows and pages go.

        Effects:
            Later-started requests without a part in the step may be preempted.
        """
        entry = draft.entries.get(request)
        start = request.computed_len
        had_tokens, had_rows = (entry.num_tokens, entry.num_rows) if entry else (0, 0)
        count = min(num_tokens, request.target_len - start, draft.tokens_left + had_tokens)
        can_draw = request.target_len < request.end_len
        count = limit_by_rows(request, start, count, draft.rows_left + had_rows, can_draw=can_draw)
        if count > had_tokens:
            count = self._fit(draft, request, start, count)
        if count <= had_tokens:
            return
        if entry is None:
            entry = draft.entries[request] = Entry(request, start, count)
        entry.num_tokens = count
        want_rows(entry, can_draw=can_draw)
        draft.tokens_left -= count - had_tokens
        draft.rows_left -= entry.num_rows - had_rows

    def _fit(self, draft: StepDraft, request: Request, start: int, count: int) -> int:
        """Grow the request's holding by up to `count` tokens; return by how many."""
        holding, page_len = request.held, self._cache.spec.page_len
        if start + count > len(holding.pages[0]) * page_len:
            while (longest := self._cache.longest(holding)) <= start:
                victim = self._victim(draft, request)
                if victim is None:
                    return 0
                self.preempt(victim)
                draft.has_preempted = True
            count = min(count, longest - start)
            self._cache.grow(holding, start + count)
        return count

    def _victim(self, draft: StepDraft, request: Request) -> Request | None:
        """Choose who makes room: the last that has no part in the step yet, if it comes after `request`."""
        for other in reversed(self.requests):
            if other is request:
                break
            if other not in draft.entries:
                return other
        return None

    def worse_than(self, request: Request, pages: Sequence[int], *, spare: Callable[[Request], bool]) -> list[Request]:
        """Return the last running requests of worse priority that must go so that `request` finds what it lacks.

        Args:
            request: Waiting.
            pages: Per group, the pages that it lacks; it lacks a seat when it lacks none.
            spare: Says whose place is not to be taken.

        Returns:
            As few as possible, last first; none when all of them together would not do.
        """
        lacking, chosen = list(pages), []
        for victim in reversed(self.requests):
            if victim.priority <= request.priority:
                break
            if spare(victim):
                continue
            chosen.append(victim)
            for group, (pool, held) in enumerate(zip(self._cache.pools, victim.held.pages, strict=True)):
                lacking[group] -= sum(1 for page in held if page != NO_PAGE and pool.users(page) == 1)
            if all(count <= 0 for count in lacking):
                return chosen
        return []

    def preempt(self, victim: Request) -> None:
        """Take a running request's place; it lies in `preempted` until the scheduler queues it again."""
        num_tokens, kind = victim.computed_len, PreemptionKind.RECOMPUTE
        if _is_whole(victim.held):
            kind = self._below.swap_out(victim, computed_tokens(victim))
        self.stop(victim, keep=True)
        victim.state = RequestState.WAITING
        victim.num_preemptions += 1
        self.preempted.append((victim, num_tokens, kind))


def computed_tokens(request: Request) -> Int32Array:
    """Return the computed tokens that the prefix index may not have yet."""
    return np.array(request.tokens[request.held.locked_len : request.computed_len], np.int32)


def _is_whole(holding: Holding) -> bool:
    """Return whether every page of a holding has its content."""
    return holding.is_filled and not holding.sources
