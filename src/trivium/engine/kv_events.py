"""KV events: what the prefix cache comes to hold and loses, collected between two messages to the client.

A stretch of consecutive pages becomes one event, longer ones several, so that no record is large::

    run      k0 k1 k2 k3 k4 k5        keys
    group 0  p0 p1 p2 p3 p4 p5        stored [k0 ... k5]
    group 1  -  -  p2 p3 -  p5        stored [k2 k3]   stored [k5]
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from trivium.cache.census import show_namespace
from trivium.cache.pages import NO_PAGE
from trivium.engine.messages import CacheEvent

if TYPE_CHECKING:
    from trivium.base.ids import PageId
    from trivium.cache.page_runs import PageRun
    from trivium.tiers.page import PageFacts, PageRef

DEVICE = "device"
MAX_EVENT_PAGES = 64
"""Most pages of one event."""


class KVEvents:
    """Follows the prefix index (`cache.page_runs.PageFollower`), and the tiers below it.

    Invariants:
        Whoever adds what is stored and takes out what is removed has, per group, the full pages of the index; and so
        for each tier below, of which `tier_moved` tells what it takes.
    """

    def __init__(self, num_groups: int, page_len: int) -> None:
        """Begin with the news that nothing is there."""
        self._page_len = page_len
        self._known: list[dict[PageId, tuple[str, str]]] = [{} for _ in range(num_groups)]
        self._pending: deque[CacheEvent] = deque()
        self.cleared([DEVICE])

    def take(self) -> list[CacheEvent]:
        """Return what happened since the last call, in order."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def stored(self, run: PageRun) -> None:
        """Tell of pages that have entered the index."""
        namespace = show_namespace(run.namespace)
        keys = [key.hex() for key in run.keys]
        for group, pages in enumerate(run.pages):
            for first, end in _stretches(pages):
                self._known[group].update({
                    page: (namespace, key) for page, key in zip(pages[first:end], keys[first:end], strict=True)
                })
                self._add(
                    kind="stored",
                    medium=DEVICE,
                    group=group,
                    namespace=namespace,
                    parent_key=keys[first - 1] if first else run.before.hex(),
                    page_keys=keys[first:end],
                    token_ids=run.tokens[first * self._page_len : end * self._page_len].tolist(),
                    page_len=self._page_len,
                )

    def removed(self, run: PageRun) -> None:
        """Take no notice: the pools tell of each page that is dropped, also of those that only a window loses."""

    def dropped(self, group: int, pages: Sequence[PageId]) -> None:
        """Tell of pages that have left the index; those that were not full were never told of."""
        known = self._known[group]
        gone = [known.pop(page) for page in pages if page in known]
        for namespace, of_one in groupby(gone, key=lambda each: each[0]):
            keys = [key for _, key in of_one]
            for first in range(0, len(keys), MAX_EVENT_PAGES):
                self._add(
                    kind="removed",
                    medium=DEVICE,
                    group=group,
                    namespace=namespace,
                    page_keys=keys[first : first + MAX_EVENT_PAGES],
                    page_len=self._page_len,
                )

    def found(self, refs: Sequence[PageRef], tier: str) -> None:
        """Tell of pages that a tier below has had from the start."""
        self._add_pages("tier_moved", refs, tier)

    def moved(self, facts: PageFacts, tier: str) -> None:
        """Tell of a page that a tier below has taken; called by the thread of the tiers."""
        self._add(
            kind="tier_moved",
            medium=tier,
            group=facts.ref.group,
            parent_key=facts.parent.hex(),
            page_keys=[facts.ref.key.hex()],
            page_len=self._page_len,
        )

    def lost(self, refs: Sequence[PageRef], tier: str) -> None:
        """Tell of pages that a tier below has no more; called by the thread of the tiers."""
        self._add_pages("removed", refs, tier)

    def cleared(self, media: Iterable[str]) -> None:
        """Tell that these hold nothing."""
        for medium in media:
            self._add(kind="cleared", medium=medium)

    def _add_pages(self, kind: str, refs: Sequence[PageRef], tier: str) -> None:
        for group in sorted({ref.group for ref in refs}):
            keys = [ref.key.hex() for ref in refs if ref.group == group]
            for first in range(0, len(keys), MAX_EVENT_PAGES):
                self._add(
                    kind=kind,
                    medium=tier,
                    group=group,
                    page_keys=keys[first : first + MAX_EVENT_PAGES],
                    page_len=self._page_len,
                )

    def _add(self, **fields: Any) -> None:
        self._pending.append(CacheEvent(time_s=time.time(), **fields))


def _stretches(pages: Sequence[PageId]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of consecutive pages that are there, `MAX_EVENT_PAGES` at most."""
    first = 0
    for idx in range(len(pages) + 1):
        is_there = idx < len(pages) and pages[idx] != NO_PAGE
        if first < idx and (not is_there or idx - first == MAX_EVENT_PAGES):
            yield first, idx
            first = idx
        if not is_there:
            first = idx + 1
