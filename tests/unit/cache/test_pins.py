"""Pins: what is pinned stays, within bounds, and everything is accounted for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trivium.base.clock import FakeClock
from trivium.cache.accounting import check
from trivium.cache.census import count_namespaces, unused_bytes
from trivium.cache.kv_cache import KVCache
from trivium.cache.pins import Pin, PinRefusal, Pins
from trivium.cache.spec import KVGroup, KVSpec

FULL = KVSpec((KVGroup("full", (0,), 8),), 4)
MIXED = KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, 5)), 4)


class Rig:
    def __init__(self, spec: KVSpec = FULL, num_pages: int = 16) -> None:
        self.clock = FakeClock()
        self.cache = KVCache(spec, [num_pages] * len(spec.groups), prefix_cache=True, clock=self.clock)
        self.pins = Pins(self.cache, self.clock)

    def run(self, tokens: Sequence[int]) -> None:
        ids = np.array(tokens, np.int32)
        holding = self.cache.open(ids, (), len(ids))
        self.cache.grow(holding, len(ids))
        self.cache.confirm_copies(holding)
        self.cache.close(holding, ids[holding.locked_len :])

    def pin(self, name: str, tokens: Sequence[int], ttl_s: float | None = None) -> Pin | PinRefusal:
        made = self.pins.pin(name, np.array(tokens, np.int32), (), ttl_s)
        self.assert_sound()
        return made

    def hit(self, tokens: Sequence[int]) -> int:
        return self.cache.index.match_len(np.array(tokens, np.int32), (), len(tokens))

    def assert_sound(self) -> None:
        assert check(self.cache, [pin.holding for pin in self.pins]) == []


@pytest.mark.parametrize("spec", [FULL, MIXED])
def test_what_is_pinned_outlives_flush_and_eviction_until_it_is_unpinned(spec: KVSpec) -> None:
    rig = Rig(spec)
    rig.run(range(14))
    assert isinstance(rig.pin("a", range(14)), Pin)
    rig.cache.index.flush()
    rig.cache.index.evict(0, 16)
    assert rig.hit(range(14)) == 12, "whole pages"
    assert rig.pins.unpin("a")
    assert not rig.pins.unpin("a")
    rig.assert_sound()
    rig.cache.index.flush()
    assert rig.hit(range(14)) == 0
    assert all(pool.num_free == 16 for pool in rig.cache.pools)


def test_a_pin_ends_with_its_time() -> None:
    rig = Rig()
    rig.run(range(8))
    rig.pin("a", range(8), ttl_s=10.0)
    rig.clock.advance(9.5)
    rig.pins.expire()
    (pin,) = rig.pins
    assert rig.pins.expires_in_s(pin) == 0.5
    rig.clock.advance(0.5)
    rig.pins.expire()
    assert (len(rig.pins), rig.pins.num_pages) == (0, 0)
    rig.assert_sound()


def test_shared_pages_count_once_and_stay_until_the_last_pin_is_gone() -> None:
    rig = Rig()
    rig.run(range(12))
    rig.pin("short", range(8))
    rig.pin("long", range(12))
    assert rig.pins.num_pages == 3
    rig.pins.unpin("long")
    rig.cache.index.flush()
    assert (rig.pins.num_pages, rig.hit(range(12))) == (2, 8)


def test_pins_hold_half_of_the_pool_at_most() -> None:
    rig = Rig()
    rig.run(range(40))
    refused = rig.pin("a", range(40))
    assert refused == PinRefusal(
        "10 pages more would be pinned, 0 are; at most 8 of 16 pages may be. Pin less, unpin something, or give more "
        "KV memory (--kv-cache-memory)",
        is_final=True,
    )
    assert isinstance(rig.pin("b", range(24)), Pin)
    rig.run([90, *range(19)])
    again = rig.pin("c", [90, *range(19)])
    assert isinstance(again, PinRefusal)
    assert not again.is_final
    assert "5 pages more would be pinned, 6 are" in again.reason


def test_what_is_not_cached_or_fills_no_page_is_not_pinned() -> None:
    rig = Rig()
    assert isinstance(rig.pin("a", range(3)), PinRefusal)
    missing = rig.pin("b", range(8))
    assert isinstance(missing, PinRefusal)
    assert not missing.is_final


def test_a_request_loses_what_is_pinned_but_not_what_it_begins_with_itself() -> None:
    rig = Rig()
    rig.run(range(14))
    rig.pin("a", range(14))
    lost = [rig.pins.lost_len(np.array(tokens, np.int32), ()) for tokens in ([9], range(6), range(20))]
    assert lost == [12, 8, 0]
    assert rig.pins.lost_len(np.arange(20, dtype=np.int32), "other") == 12


def test_the_census_counts_tokens_once_and_bytes_that_hold_none() -> None:
    rig = Rig()
    rig.run(range(10))
    rig.run([*range(9), 50])
    (counts,) = count_namespaces(rig.cache)
    assert (counts["nodes"], counts["tokens"], counts["pages"]) == (4, 11, 4)
    assert unused_bytes(rig.cache, [(5, 8)]) == (4 * 4 - 11 + 3) * 8


def test_a_pin_of_a_known_id_takes_the_place_of_the_old_one() -> None:
    rig = Rig()
    rig.run(range(12))
    for length in (8, 12, 12):
        assert isinstance(rig.pin("a", range(length)), Pin)
    assert (len(rig.pins), rig.pins.num_pages) == (1, 3)
    rig.pins.unpin("a")
    rig.cache.index.flush()
    assert all(pool.num_free == 16 for pool in rig.cache.pools)
