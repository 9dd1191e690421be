"""The thread that moves pages between memory and the tiers, so that no step waits for a disk.

::

    loop thread    offer ─► queue, bounded ─┐                      ┌─► Fetch.pages, one by one ─► imported
                   fetch ─► jobs, in order ─┴► worker: reads first ┴─► tier.put

Pages in the queue count as being in the tier: a fetch takes them from there. When the queue is full its oldest page
is dropped and counted: pages are evicted from the end of a prefix towards its beginning, and a beginning without its
end is of use, but not the reverse.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivium.tiers.page import PageFacts, PageRef, StoredPage
    from trivium.tiers.rates import Rates
    from trivium.tiers.tier import Tier, TierListener, TierStats

logger = logging.getLogger(__name__)

_FLUSH_S = 5.0
"""Most seconds that `close` spends to write what is queued."""


@dataclass(slots=True, eq=False)
class Fetch:
    """Pages on their way up. The worker fills it; the loop thread reads it, and releases it in the end."""

    wanted: tuple[PageFacts, ...]
    """In the order in which they are read."""
    num_bytes: int
    """Of all contents, as far as is known before."""
    pages: dict[PageRef, bytes] = field(default_factory=dict)
    """What was read so far."""
    tiers: dict[PageRef, str] = field(default_factory=dict)
    """Which tier each came from."""
    is_pending: bool = True
    """Whether more may come."""
    num_asked: int = 0


@dataclass(slots=True)
class WorkerStats:
    """Counters since the start."""

    num_dropped: int = 0
    """Pages that were not written because the queue was full."""
    num_missing: int = 0
    """Pages that were there when a fetch began and could not be read."""


class TierWorker:
    """Owns the tiers, and the only thread that touches them.

    Invariants:
        - The pages of the queue are at most `queue_bytes`, but for a single larger one.
        - Contents of fetches that were not released are at most `fetch_bytes`, but for a single larger fetch.
    """

    def __init__(self, tier: Tier, rates: Rates, *, queue_bytes: int, fetch_bytes: int) -> None:
        """Take ownership of `tier` and start the thread."""
        self.stats = WorkerStats()
        self._tier = tier
        self._rates = rates
        self._queue_limit = queue_bytes
        self._fetch_limit = fetch_bytes
        self._changed = threading.Condition()
        self._queue: OrderedDict[PageRef, StoredPage] = OrderedDict()
        self._queued_bytes = 0
        self._fetches: deque[Fetch] = deque()
        self._begun: Fetch | None = None
        self._fetched_bytes = 0
        self._calls: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._closes_at_s: float | None = None
        self._is_busy = False
        self._is_dead = False
        self._thread = threading.Thread(target=self._run, name="trivium-tiers", daemon=True)
        self._thread.start()

    # -- for the loop thread ----------------------------------------------------------------------------------

    def where(self, ref: PageRef) -> str | None:
        """Return the name of the tier that has a page, or will have it; `None` when it would have to be offered."""
        if self._is_dead:
            return None
        return self._tier.name if ref in self._queue else self._tier.where(ref)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._queued_bytes

    def offer(self, pages: Sequence[StoredPage]) -> None:
        """Queue pages to be written, the most valuable last; drops the oldest where the queue is full."""
        with self._changed:
            if self._is_dead:
                return
            for page in pages:
                ref = page.facts.ref
                if ref in self._queue:
                    continue
                self._queue[ref] = page
                self._queued_bytes += page.num_bytes
            while self._queued_bytes > self._queue_limit and len(self._queue) > 1:
                _, dropped = self._queue.popitem(last=False)
                self._queued_bytes -= dropped.num_bytes
                self.stats.num_dropped += 1
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether the queue is at most half full."""
        return self._is_dead or self._queued_bytes <= self._queue_limit // 2

    def wait_for_room(self, until_s: float) -> bool:
        """Wait until the queue is at most half full; returns whether it is, before `until_s` on the monotonic clock."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_room, until_s - time.monotonic())

    def fetch(self, wanted: Sequence[PageFacts], num_bytes: int) -> Fetch:
        """Begin to read pages, after the fetches before."""
        fetch = Fetch(tuple(wanted), num_bytes)
        with self._changed:
            if self._is_dead or not wanted:
                fetch.is_pending = False
                fetch.num_bytes = 0
            else:
                self._fetches.append(fetch)
                self._changed.notify_all()
        return fetch

    def stop(self, fetch: Fetch) -> None:
        """Read no more of a fetch; what was read stays until its release."""
        with self._changed:
            if fetch in self._fetches:
                self._fetches.remove(fetch)
                fetch.num_bytes = 0
            if self._begun is fetch:
                self._begun = None
            fetch.is_pending = False
            self._changed.notify_all()

    def release(self, fetch: Fetch) -> None:
        """Let go of a fetch, finished or not."""
        self.stop(fetch)
        with self._changed:
            self._fetched_bytes -= fetch.num_bytes
            fetch.num_bytes = 0
            fetch.pages = {}
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Sleep until a fetch has got on, or `timeout_s` has passed."""
        with self._changed:
            if self._fetches or self._begun is not None:
                self._changed.wait(timeout_s)

    def clear(self) -> None:
        """Forget every page, also those of the queue; returns when it is done."""
        with self._changed:
            self._queue.clear()
            self._queued_bytes = 0
        self._call(self._tier.clear)

    def settle(self) -> None:
        """Return when everything that was queued is written, and every fetch that has room is read."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_dead or not (self._is_busy or self._has_work))

    def listen(self, listener: TierListener) -> None:
        """Tell `listener`, in the worker's thread, what the tiers take and lose; to be called before they are used."""
        self._tier.listen(listener)

    def tier_stats(self) -> dict[str, TierStats]:
        """Return the statistics of the tiers, by name."""
        return self._tier.stats()

    def close(self) -> None:
        """Write what is queued, for a bounded time, then close the tiers and end the thread."""
        with self._changed:
            self._closes_at_s = time.monotonic() + _FLUSH_S
            self._changed.notify_all()
        self._thread.join()

    def _call(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        with self._changed:
            if self._is_dead:
                return
            self._calls.append((call, done))
            self._changed.notify_all()
        done.wait()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._work_once():
                pass
            if self._queue:
                logger.warning("the tiers were closed with %d pages unwritten", len(self._queue))
        except Exception:
            logger.exception("the thread of the cache tiers ended; prefixes stay in KV memory only")
            self._give_up()
        self._tier.close()

    def _work_once(self) -> bool:
        """Do the next thing; returns whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work or self._closes_at_s is not None)
            if self._closes_at_s is not None and (not self._queue or time.monotonic() > self._closes_at_s):
                return False
            call = self._calls.popleft() if self._calls else None
            fetch = None if call else self._fetch_to_go_on_with()
            page = next(iter(self._queue.values())) if call is None and fetch is None and self._queue else None
            self._is_busy = True
        if call is not None:
            call[0]()
            call[1].set()
        elif fetch is not None:
            self._read(fetch)
        elif page is not None:
            self._write(page)
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
        return True

    @property
    def _has_work(self) -> bool:
        return bool(self._calls or self._queue) or self._fetch_to_go_on_with() is not None

    def _fetch_to_go_on_with(self) -> Fetch | None:
        """Return the fetch that is being read, else begin the next one if its contents have room."""
        if self._closes_at_s is not None:
            return None
        if self._begun is None and self._fetches:
            first = self._fetches[0]
            if not self._fetched_bytes or self._fetched_bytes + first.num_bytes <= self._fetch_limit:
                self._begun = self._fetches.popleft()
                self._fetched_bytes += first.num_bytes
        return self._begun

    def _read(self, fetch: Fetch) -> None:
        """Read the next page of a fetch; a page that is not there ends it, since what follows is of no use."""
        facts = fetch.wanted[fetch.num_asked]
        queued = self._queue.get(facts.ref)
        tier = self.where(facts.ref)
        began_s = time.perf_counter()
        content = bytes(queued.content) if queued is not None else self._tier.get(facts)
        if content is not None and queued is None:
            self._rates.read.note(len(content), time.perf_counter() - began_s)
        with self._changed:
            fetch.num_asked += 1
            if content is None:
                self.stats.num_missing += 1
            elif fetch.is_pending:
                fetch.tiers[facts.ref] = tier or self._tier.name
                fetch.pages[facts.ref] = content
            if content is None or fetch.num_asked == len(fetch.wanted):
                fetch.is_pending = False
            if not fetch.is_pending and self._begun is fetch:
                self._begun = None

    def _write(self, page: StoredPage) -> None:
        began_s = time.perf_counter()
        self._tier.put(page)
        self._rates.write.note(page.num_bytes, time.perf_counter() - began_s)
        with self._changed:
            if self._queue.pop(page.facts.ref, None) is not None:
                self._queued_bytes -= page.num_bytes

    def _give_up(self) -> None:
        """Let nobody wait for a thread that is gone."""
        with self._changed:
            for fetch in (*self._fetches, *([self._begun] if self._begun else [])):
                fetch.is_pending = False
            self._fetches.clear()
            self._begun = None
            self._queue.clear()
            self._queued_bytes = 0
            self._is_dead = True
            for _, done in self._calls:
                done.set()
            self._calls.clear()
            self._changed.notify_all()
