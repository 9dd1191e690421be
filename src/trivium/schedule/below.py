"""What the tiers below the KV pool mean for requests: which prefix comes up, how long it is waited for, who is swapped.

When a request is queued, pages that continue what the pool holds of it begin to be read. When it could start::

    nothing below, or computing is quicker    it starts with what the pool has
    pages are still being read                it waits, at most as long as computing these tokens would take
    they are there                            it starts with them, imported before the step, as computed tokens

So waiting never costs more than twice what computing at once would have cost, and a disk that hangs delays a request
by the time of its own prefill. What was computed meanwhile, or left the pool, is looked up again at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from trivium.base.ids import PageId
from trivium.cache.page_keys import page_keys, root_key
from trivium.schedule.timeline import PreemptionKind, Tier, WaitReason
from trivium.tiers.page import PageFacts, PageRef
from trivium.tiers.reach import pages_to_bring, reach

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.kv_cache import Holding, KVCache
    from trivium.schedule.decision import ScheduledStep
    from trivium.schedule.recorder import Recorder
    from trivium.schedule.request import Request
    from trivium.schedule.step import Int32Array
    from trivium.tiers.lower import LowerTiers
    from trivium.tiers.worker import Fetch

PreemptionMode = Literal["recompute", "swap", "auto"]

_MOST_LOOKS = 4
"""Fetches per start of a request: what leaves the pool while others are read is fetched too, but not for ever."""
_FEWEST_MEASURED = 64
"""Prompt tokens in a step from which on it tells how fast tokens are computed."""


class Import(NamedTuple):
    """A page to write into the pool before a step."""

    group: int
    page: PageId
    content: bytes


@dataclass(slots=True)
class Approach:
    """A request's dealings with the tiers until it runs."""

    keys: list[bytes] = field(default_factory=list)
    """Of its whole pages, as far as they were needed."""
    root: bytes = b""
    fetch: Fetch | None = None
    from_len: int = 0
    """Tokens that the pool had when the fetch began."""
    to_len: int = 0
    """Tokens that it has with all pages of the fetch."""
    num_looks: int = 0
    patience_until_s: float | None = None
    """When it starts with what is there; set when it could have started first."""
    imports: list[Import] = field(default_factory=list)
    """Of its start, until the step was executed."""
    cached: dict[Tier, int] = field(default_factory=dict)
    """Tokens that its last start found, by where."""


class TiersBelow:
    """Brings prefixes up for one scheduler."""

    def __init__(
        self, cache: KVCache, tiers: LowerTiers, recorder: Recorder, clock: Clock, preemption: PreemptionMode
    ) -> None:
        """Follow the prefix index of `cache`, which must be empty."""
        self._cache = cache
        self._tiers = tiers
        self._recorder = recorder
        self._clock = clock
        self._preemption = preemption
        self._page_len = cache.spec.page_len
        self._groups = range(len(cache.spec.groups))
        cache.follow(tiers.ledger)

    # -- before a start ---------------------------------------------------------------------------------------

    def queued(self, request: Request, longest: int) -> None:
        """Begin to read what continues the pool's prefix of a request that was just queued.

        Args:
            request: Waiting.
            longest: Tokens that it may take from a cache.
        """
        match = self._cache.index.match(request.known_array()[:longest], request.namespace, longest)
        self._look(request, match.pages, match.length, longest)

    def bring(self, request: Request, holding: Holding, longest: int) -> bool:
        """Extend the holding of a request that can start by the pages that were read for it.

        Returns:
            Whether it may start now; `False` while it is worth waiting for pages. Then nothing was changed.
        """
        approach, length = self._approach(request), 0
        fetch = approach.fetch or self._look(request, holding.pages, holding.cached_len, longest)
        while fetch is not None:
            if fetch.is_pending and holding.cached_len < approach.to_len and self._is_worth_waiting(approach):
                self._recorder.hold(request, WaitReason.TIER)
                return False
            length = self._reach(approach, fetch, holding, longest)
            if length or holding.cached_len // self._page_len >= approach.from_len // self._page_len:
                break
            fetch = self._look(request, holding.pages, holding.cached_len, longest)
        self._recorder.release(request)
        self._start(approach, holding, length)
        return True

    def _is_worth_waiting(self, approach: Approach) -> bool:
        now_s = self._clock.now_s()
        if approach.patience_until_s is None:
            seconds = self._tiers.rates.compute.seconds(approach.to_len - approach.from_len)
            approach.patience_until_s = now_s + seconds
        return now_s < approach.patience_until_s

    def _reach(self, approach: Approach, fetch: Fetch, holding: Holding, longest: int) -> int:
        keys, pages = approach.keys, fetch.pages
        limit = min(longest, len(keys) * self._page_len)

        def has(group: int, idx: int) -> bool:
            return PageRef(group, keys[idx]) in pages

        return reach(self._cache.spec, holding.pages, holding.cached_len, has, limit)

    def _start(self, approach: Approach, holding: Holding, length: int) -> None:
        """Take pages for what comes up, and count where the prefix was found."""
        for group in self._groups:
            self._tiers.ledger.use(group, holding.pages[group])
        held_len = holding.cached_len
        approach.cached = {Tier.DEVICE: held_len}
        approach.imports = []
        fetch = approach.fetch
        if fetch is not None:
            self._tiers.worker.stop(fetch)
        if not length or fetch is None:
            return
        held_pages = held_len // self._page_len
        approach.cached[Tier.DEVICE] = held_pages * self._page_len
        for group, idx, page in self._cache.extend(holding, length):
            ref = PageRef(group, approach.keys[idx])
            approach.imports.append(Import(group, page, fetch.pages[ref]))
        for idx in range(held_pages, length // self._page_len):
            found = (fetch.tiers.get(PageRef(group, approach.keys[idx])) for group in self._groups)
            tier = Tier(next((name for name in found if name is not None), Tier.DEVICE))
            approach.cached[tier] = approach.cached.get(tier, 0) + self._page_len

    def _look(self, request: Request, held: Sequence[Sequence[PageId]], held_len: int, longest: int) -> Fetch | None:
        """Begin to read what continues `held_len` tokens, if that pays; a fetch before it is given up."""
        approach = self._approach(request)
        self._let_go(approach)
        if approach.num_looks >= _MOST_LOOKS:
            return None
        spec, tiers = self._cache.spec, self._tiers
        keys = self._keys(request, approach, longest // self._page_len)

        def has(group: int, idx: int) -> bool:
            return tiers.worker.where(PageRef(group, keys[idx])) is not None

        length = reach(spec, held, held_len, has, longest)
        if not length:
            return None
        tokens = np.asarray(request.known_array()[:length], "<i4").tobytes()
        size = 4 * self._page_len
        wanted = [
            PageFacts(
                PageRef(group, keys[idx]),
                keys[idx - 1] if idx else approach.root,
                idx,
                tokens[idx * size : (idx + 1) * size],
            )
            for group, idx in pages_to_bring(spec, held_len, length)
        ]
        num_bytes = sum(tiers.page_bytes[facts.ref.group] for facts in wanted)
        if not tiers.rates.is_reading_cheaper(num_bytes, length - held_len):
            return None
        approach.num_looks += 1
        approach.from_len, approach.to_len = held_len, length
        approach.fetch = tiers.fetch(wanted)
        return approach.fetch

    def _keys(self, request: Request, approach: Approach, num_pages: int) -> list[bytes]:
        """Return the keys of the first pages of a request; at least `num_pages`."""
        if not approach.root:
            approach.root = root_key(request.namespace)
        known = len(approach.keys)
        if known < num_pages:
            tokens = request.known_array()[known * self._page_len : num_pages * self._page_len]
            before = approach.keys[-1] if known else approach.root
            approach.keys += page_keys(before, tokens.tobytes(), self._page_len)
        return approach.keys

    # -- after it ---------------------------------------------------------------------------------------------

    def imports(self, request: Request) -> list[Import]:
        """Return what must be written into the pool before the step in which a request starts."""
        return request.approach.imports if request.approach else []

    def found(self, request: Request) -> dict[Tier, int]:
        """Return how many tokens the start of a request found, by where."""
        return dict(self._approach(request).cached)

    def forget(self, request: Request) -> None:
        """Let go of what was read for a request."""
        if request.approach is not None:
            self._let_go(request.approach)
            request.approach = None

    def give_up(self, request: Request) -> None:
        """Start a request without the tiers: what was read for it cannot be used."""
        approach = self._approach(request)
        self._let_go(approach)
        approach.imports = []
        approach.num_looks = _MOST_LOOKS

    def _let_go(self, approach: Approach) -> None:
        if approach.fetch is not None:
            self._tiers.worker.release(approach.fetch)
            approach.fetch = None

    def _approach(self, request: Request) -> Approach:
        if request.approach is None:
            request.approach = Approach()
        return request.approach

    # -- preemption -------------------------------------------------------------------------------------------

    def swap_out(self, victim: Request, tokens: Int32Array) -> PreemptionKind:
        """Have the pages of a running request written below at once, if that is how victims come back.

        Args:
            victim: About to make room.
            tokens: Its computed tokens that the prefix index may not have yet.
        """
        if self._preemption == "recompute":
            return PreemptionKind.RECOMPUTE
        self._cache.settle(victim.held, tokens)
        ledger, pages = self._tiers.ledger, victim.held.pages
        places = [
            place
            for idx in reversed(range(victim.computed_len // self._page_len))
            for group in self._groups
            if (place := ledger.place_of(group, pages[group][idx])) is not None and not self._tiers.has(place[2])
        ]
        num_bytes = sum(self._tiers.page_bytes[group] for group, _, _ in places)
        queued = self._tiers.worker.queued_bytes
        if self._preemption == "auto" and not self._tiers.rates.is_swapping_cheaper(
            num_bytes, victim.computed_len, queued
        ):
            return PreemptionKind.RECOMPUTE
        self._tiers.export_soon(places)
        return PreemptionKind.SWAP

    # -- steps ------------------------------------------------------------------------------------------------

    def note_step(self, scheduled: ScheduledStep) -> None:
        """Learn from an executed step how fast prompts are computed."""
        if len(scheduled.step.token_ids) >= _FEWEST_MEASURED + len(scheduled.entries):
            seconds = self._clock.now_s() - scheduled.chosen_s
            self._tiers.rates.compute.note(len(scheduled.step.token_ids), seconds)

    def flush(self) -> None:
        """Forget every page below, also those that the index has just dropped."""
        self._tiers.clear()

    def problems(self) -> list[str]:
        """Compare the ledger with what the index holds."""
        return self._tiers.ledger.problems(self._cache.index.held_pages())


class NothingBelow:
    """The same without tiers: prefixes are in the pool, or computed."""

    def queued(self, request: Request, longest: int) -> None:
        """There is nothing to read."""

    def bring(self, request: Request, holding: Holding, longest: int) -> bool:
        """Let it start."""
        del request, holding, longest
        return True

    def imports(self, request: Request) -> list[Import]:
        """Nothing comes up."""
        del request
        return []

    def found(self, request: Request) -> dict[Tier, int]:
        """Return the tokens that the pool had."""
        return {Tier.DEVICE: request.held.cached_len}

    def forget(self, request: Request) -> None:
        """Nothing was read."""

    def give_up(self, request: Request) -> None:
        """Nothing was read."""

    def swap_out(self, victim: Request, tokens: Int32Array) -> PreemptionKind:
        """Leave the victim's pages to the prefix index."""
        del victim, tokens
        return PreemptionKind.RECOMPUTE

    def note_step(self, scheduled: ScheduledStep) -> None:
        """Nothing depends on it."""

    def flush(self) -> None:
        """Nothing is there."""

    def problems(self) -> list[str]:
        """Nothing can be wrong."""
        return []


Below = TiersBelow | NothingBelow
"""What a scheduler has below its pool."""
