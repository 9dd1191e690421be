"""The thread of the tiers: what is queued is written or counted, fetches come in order, nobody waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.stored_pages import CONTENT_BYTES, FACTS, content_of, facts_of, page_of
from trivium.engine.kv_events import KVEvents
from trivium.tiers.disk import DiskTier
from trivium.tiers.host import HostTier
from trivium.tiers.page import PageFacts, StoredPage
from trivium.tiers.rates import Rate, Rates
from trivium.tiers.worker import TierWorker


class GatedTier(HostTier):
    """A host tier that moves a page only when it is let."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def put(self, page: StoredPage) -> None:
        self.entered.release()
        self.gate.acquire()
        super().put(page)

    def get(self, facts: PageFacts) -> bytes | None:
        self.entered.release()
        self.gate.acquire()
        return super().get(facts)


class BrokenTier(HostTier):
    """A tier with a bug."""

    def put(self, page: StoredPage) -> None:
        raise RuntimeError("a bug")


def worker_over(tier: HostTier, *, pages: int = 100) -> TierWorker:
    return TierWorker(tier, Rates(), queue_bytes=pages * CONTENT_BYTES, fetch_bytes=pages * CONTENT_BYTES)


def test_kv_events_name_the_tier_that_took_a_page() -> None:
    worker, events = worker_over(HostTier(1 << 20)), KVEvents(1, 16)
    worker.listen(events)
    worker.offer([page_of(3)])
    worker.settle()
    worker.close()
    events.cleared(["host"])
    began, moved, cleared = events.take()
    assert [(event.kind, event.medium) for event in (began, moved, cleared)] == [
        ("cleared", "device"),
        ("tier_moved", "host"),
        ("cleared", "host"),
    ]
    assert moved.page_keys == [facts_of(3).ref.key.hex()]
    assert events.take() == []


def test_offered_pages_are_written_and_fetched_in_order() -> None:
    worker = worker_over(HostTier(1 << 20))
    worker.offer([page_of(number) for number in range(5)])
    worker.settle()
    fetch = worker.fetch([facts_of(number) for number in range(5)], 5 * CONTENT_BYTES)
    worker.settle()
    assert not fetch.is_pending
    assert list(fetch.pages.values()) == [content_of(number) for number in range(5)]
    assert set(fetch.tiers.values()) == {"host"}
    worker.release(fetch)
    worker.close()


def test_pages_that_wait_to_be_written_can_be_fetched() -> None:
    tier = GatedTier()
    worker = worker_over(tier)
    worker.offer([page_of(1), page_of(2)])
    tier.entered.acquire()  # the first is being written
    assert worker.where(facts_of(2).ref) == "host"
    fetch = worker.fetch([facts_of(2)], CONTENT_BYTES)
    tier.gate.release()
    while fetch.is_pending:
        worker.wait(1.0)
    assert fetch.pages == {facts_of(2).ref: content_of(2)}
    tier.gate.release(10)
    worker.close()


def test_a_full_queue_drops_its_oldest_page() -> None:
    tier = GatedTier()
    worker = worker_over(tier, pages=3)
    worker.offer([page_of(0)])
    tier.entered.acquire()
    worker.offer([page_of(number) for number in range(1, 6)])
    assert worker.stats.num_dropped == 3
    assert worker.queued_bytes == 3 * CONTENT_BYTES
    tier.gate.release(10)
    worker.settle()
    assert [worker.where(facts_of(number).ref) for number in range(6)] == ["host", None, None, "host", "host", "host"]
    worker.close()


def test_a_fetch_ends_where_a_page_is_missing() -> None:
    worker = worker_over(HostTier(1 << 20))
    worker.offer([page_of(0), page_of(2)])
    worker.settle()
    fetch = worker.fetch([facts_of(number) for number in range(3)], 3 * CONTENT_BYTES)
    worker.settle()
    assert (fetch.is_pending, set(fetch.pages)) == (False, {facts_of(0).ref})
    assert worker.stats.num_missing == 1
    worker.close()


def test_fetches_wait_for_memory_until_others_are_released() -> None:
    worker = worker_over(HostTier(1 << 20), pages=3)
    worker.offer([page_of(number) for number in range(3)])
    worker.settle()
    first = worker.fetch([facts_of(0), facts_of(1)], 2 * CONTENT_BYTES)
    second = worker.fetch([facts_of(1), facts_of(2)], 2 * CONTENT_BYTES)
    worker.settle()
    assert (first.is_pending, second.is_pending) == (False, True)
    worker.release(first)
    worker.settle()
    assert not second.is_pending
    assert len(second.pages) == 2
    worker.release(second)
    large = worker.fetch([facts_of(0)], 1000 * CONTENT_BYTES)
    worker.settle()
    assert not large.is_pending, "one that is larger than the bound goes alone"
    worker.close()


def test_a_released_fetch_is_not_read_on() -> None:
    tier = GatedTier()
    worker = worker_over(tier)
    tier.gate.release(2)
    worker.offer([page_of(0), page_of(1)])
    worker.settle()
    tier.entered = threading.Semaphore(0)
    fetch = worker.fetch([facts_of(0), facts_of(1)], 2 * CONTENT_BYTES)
    tier.entered.acquire()
    worker.release(fetch)
    tier.gate.release(1)
    worker.settle()
    assert (fetch.is_pending, fetch.pages, fetch.num_asked) == (False, {}, 1)
    worker.close()


def test_clearing_forgets_queue_and_tiers() -> None:
    worker = worker_over(HostTier(1 << 20))
    worker.offer([page_of(number) for number in range(5)])
    worker.clear()
    assert [worker.where(facts_of(number).ref) for number in range(5)] == [None] * 5
    assert worker.queued_bytes == 0
    worker.close()


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    worker = TierWorker(DiskTier(tmp_path / "kv", 1 << 20, FACTS, 200), Rates(), queue_bytes=1 << 20, fetch_bytes=1)
    worker.offer([page_of(number) for number in range(30)])
    worker.close()
    tier = DiskTier(tmp_path / "kv", 1 << 20, FACTS, 200)
    assert all(tier.get(facts_of(number)) == content_of(number) for number in range(30))
    tier.close()


def test_a_bug_in_the_thread_lets_nobody_wait(caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_over(BrokenTier(1 << 20))
    worker.offer([page_of(0)])
    worker.settle()
    fetch = worker.fetch([facts_of(0)], CONTENT_BYTES)
    assert not fetch.is_pending
    worker.offer([page_of(1)])
    worker.clear()
    assert worker.where(facts_of(1).ref) is None
    assert "the thread of the cache tiers ended" in caplog.text
    worker.close()


def test_the_first_measurement_replaces_the_guess_and_later_ones_move_it() -> None:
    rate = Rate(1000.0)
    rate.note(0, 1.0)
    rate.note(1, 0.0)
    assert (rate.per_s, rate.is_measured) == (1000.0, False)
    rate.note(100, 1.0)
    assert rate.per_s == 100.0
    rate.note(200, 1.0)
    assert rate.per_s == pytest.approx(120.0)
    assert rate.seconds(60) == pytest.approx(0.5)


def test_swapping_is_cheaper_when_the_medium_is_fast_and_the_model_slow() -> None:
    rates = Rates(compute=Rate(1000.0), read=Rate(1e9), write=Rate(5e8))
    assert rates.is_swapping_cheaper(100_000_000, 1000, 0)
    assert not rates.is_swapping_cheaper(100_000_000, 100, 0)
    assert not rates.is_swapping_cheaper(100_000_000, 1000, 500_000_000)
    assert rates.is_reading_cheaper(100_000_000, 1000)
    assert not rates.is_reading_cheaper(100_000_000, 50)
