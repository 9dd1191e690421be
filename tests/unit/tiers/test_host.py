"""The host tier, alone and above the disk tier."""

from __future__ import annotations

from pathlib import Path

from support.stored_pages import CONTENT_BYTES, FACTS, content_of, facts_of, page_of
from trivium.tiers.disk import DiskTier
from trivium.tiers.host import HostTier
from trivium.tiers.page import PageFacts


def test_the_least_recently_used_page_makes_room() -> None:
    tier = HostTier(3 * CONTENT_BYTES)
    for number in range(3):
        tier.put(page_of(number))
    assert tier.get(facts_of(0)) == content_of(0)
    tier.put(page_of(3))
    assert [tier.where(facts_of(number).ref) for number in range(4)] == ["host", None, "host", "host"]
    stats = tier.stats()["host"]
    assert (stats.num_pages, stats.num_bytes, stats.num_evicted) == (3, 3 * CONTENT_BYTES, 1)
    tier.put(page_of(2))
    tier.put(page_of(4))
    assert tier.where(facts_of(0).ref) is None
    assert tier.where(facts_of(2).ref) == "host"


def test_a_page_that_is_larger_than_the_tier_is_not_kept() -> None:
    tier = HostTier(CONTENT_BYTES)
    tier.put(page_of(1))
    tier.put(page_of(2, num_bytes=CONTENT_BYTES + 1))
    assert tier.where(facts_of(1).ref) == "host"
    assert tier.where(facts_of(2).ref) is None


def test_a_key_with_other_tokens_finds_nothing() -> None:
    tier = HostTier(10 * CONTENT_BYTES)
    tier.put(page_of(1))
    mine = facts_of(1)
    assert tier.get(PageFacts(mine.ref, mine.parent, mine.index, facts_of(2).tokens)) is None


def test_what_leaves_the_host_goes_to_the_disk_and_is_found_there(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path / "kv", 1 << 20, FACTS, 200)
    tier = HostTier(2 * CONTENT_BYTES, disk)
    for number in range(5):
        tier.put(page_of(number))
    assert [tier.where(facts_of(number).ref) for number in range(6)] == ["disk", "disk", "disk", "host", "host", None]
    assert [tier.get(facts_of(number)) for number in range(5)] == [content_of(number) for number in range(5)]
    assert set(tier.stats()) == {"host", "disk"}
    tier.close()
    again = DiskTier(tmp_path / "kv", 1 << 20, FACTS, 200)
    assert [again.get(facts_of(number)) for number in range(5)] == [content_of(number) for number in range(5)]
    again.clear()
    again.close()


def test_clearing_reaches_every_tier(tmp_path: Path) -> None:
    tier = HostTier(2 * CONTENT_BYTES, DiskTier(tmp_path / "kv", 1 << 20, FACTS, 200))
    for number in range(5):
        tier.put(page_of(number))
    tier.clear()
    assert [tier.where(facts_of(number).ref) for number in range(5)] == [None] * 5
    assert [stats.num_bytes for stats in tier.stats().values()] == [0, 0]
    tier.close()
