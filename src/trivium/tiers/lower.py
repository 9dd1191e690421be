"""The tiers below a KV pool, as scheduler and engine loop see them: pages go down, prefixes come up.

Bytes move between two steps, in the loop's thread; files are read and written in the worker's. In the order of a step::

    scheduler.next    chooses who runs; pages leave the prefix index, requests start with pages that come up
    export            what left is copied out of the pool            before anything is written over it
    import            what comes up is copied into the pool
    forward           copies, then the model
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from trivium.tiers.ledger import PageLedger
from trivium.tiers.page import StoredPage

if TYPE_CHECKING:
    from trivium.cache.spec import KVSpec
    from trivium.tiers.ledger import PlacedPage
    from trivium.tiers.page import PageFacts
    from trivium.tiers.rates import Rates
    from trivium.tiers.tier import TierStats
    from trivium.tiers.worker import Fetch, TierWorker

_HOT_PAGES_AT_ONCE = 32
_CLOSE_S = 5.0
"""Most seconds for copying out what only the pool has."""


class PageBytes(Protocol):
    """Whoever owns the bytes of the pool's pages: an executor."""

    def export_page(self, group_idx: int, page: int) -> bytes | memoryview:
        """Return a copy of the bytes of a page, all layers."""
        ...

    def import_page(self, group_idx: int, page: int, content: bytes) -> None:
        """Write what `export_page` gave."""
        ...


class LowerTiers:
    """Ledger, worker and rates of one pool.

    Invariants:
        Every whole page that leaves the prefix index is offered to the tiers, unless they have it.
    """

    def __init__(self, spec: KVSpec, page_bytes: Sequence[int], worker: TierWorker, rates: Rates) -> None:
        """Take ownership of `worker`.

        Args:
            spec: Groups and page length.
            page_bytes: Bytes of a page, by group.
            worker: Over the topmost tier.
            rates: Those that `worker` measures too.
        """
        self.spec = spec
        self.page_bytes = tuple(page_bytes)
        self.worker = worker
        self.rates = rates
        self.ledger = PageLedger(len(spec.groups))
        self._urgent: list[PlacedPage] = []

    # -- down -------------------------------------------------------------------------------------------------

    @property
    def has_exports(self) -> bool:
        """Whether `export` has something to look at."""
        return bool(self._urgent) or self.ledger.has_departed

    def export(self, pool: PageBytes) -> None:
        """Copy what has left the index, and is not below yet, out of the pool. To be called before every step."""
        self._urgent, urgent = [], self._urgent
        self._offer(pool, [*self.ledger.take_departed(), *urgent])

    def export_soon(self, places: Sequence[PlacedPage]) -> None:
        """Have pages that are in the pool exported before the next step, the most valuable last."""
        self._urgent += places

    def write_hot(self, pool: PageBytes) -> bool:
        """Write a few pages that several requests have used, ahead of their eviction; for idle moments.

        Returns:
            Whether there may be more.
        """
        chosen: list[PlacedPage] = []
        if not self.worker.has_room:
            return False
        while len(chosen) < _HOT_PAGES_AT_ONCE and (found := self.ledger.next_hot()) is not None:
            chosen.append(found)
        self._offer(pool, chosen)
        return len(chosen) == _HOT_PAGES_AT_ONCE

    def _offer(self, pool: PageBytes, places: Sequence[PlacedPage]) -> None:
        fresh = {facts.ref: (group, page, facts) for group, page, facts in places if not self.has(facts)}
        self.worker.offer([StoredPage(facts, pool.export_page(group, page)) for group, page, facts in fresh.values()])

    # -- up ---------------------------------------------------------------------------------------------------

    def has(self, facts: PageFacts) -> bool:
        """Return whether a page is below, or on its way there."""
        return self.worker.where(facts.ref) is not None

    def fetch(self, wanted: Sequence[PageFacts]) -> Fetch:
        """Begin to read pages."""
        return self.worker.fetch(wanted, sum(self.page_bytes[facts.ref.group] for facts in wanted))

    # -- all of it --------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget every page below, and what was about to go there."""
        self.ledger.forget_departed()
        self._urgent.clear()
        self.worker.clear()

    def counters(self) -> dict[str, dict[str, float]]:
        """Return counters and gauges by name (those of `EngineStats`), then by tier."""
        stats, rates = self.stats(), self.rates
        by_tier: dict[str, Callable[[TierStats], float]] = {
            "tier_pages": lambda each: each.num_pages,
            "tier_bytes": lambda each: each.num_bytes,
            "tier_off": lambda each: each.is_off,
            "tier_written_bytes_total": lambda each: each.bytes_written,
            "tier_read_bytes_total": lambda each: each.bytes_read,
            "tier_evicted_pages_total": lambda each: each.num_evicted,
            "tier_damaged_pages_total": lambda each: each.num_damaged,
        }
        found = {key: {name: float(read(each)) for name, each in stats.items()} for key, read in by_tier.items()}
        measured = {"read": rates.read, "written": rates.write, "computed": rates.compute}
        return {**found, "tier_rates": {name: rate.per_s for name, rate in measured.items() if rate.is_measured}}

    def stats(self) -> dict[str, TierStats]:
        """Return the statistics of the tiers, by name."""
        return self.worker.tier_stats()

    def close(self, pool: PageBytes) -> None:
        """Write what only the pool has, beginnings of prefixes first, as far as time and half of the room allow; close.

        So a server that ends in good order finds its prefixes again.
        """
        until_s = time.monotonic() + _CLOSE_S
        room = min(stats.limit_bytes for stats in self.stats().values()) // 2
        self.export(pool)
        for place in self.ledger.residents():
            room -= self.page_bytes[place[0]]
            if room < 0 or not self.worker.wait_for_room(until_s):
                break
            self._offer(pool, [place])
        self.worker.close()
