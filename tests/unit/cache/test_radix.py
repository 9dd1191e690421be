"""The radix tree, token by token, over small pools."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from trivium.base.errors import InternalError
from trivium.cache.accounting import check
from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.pages import NO_PAGE
from trivium.cache.radix import RadixTree
from trivium.cache.spec import KVGroup, KVSpec

FULL = KVSpec((KVGroup("full", (0,), 8),), 4)
MIXED = KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, 5)), 4)


def array(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


class Rig:
    """A cache, and requests that compute all their tokens at once."""

    def __init__(self, spec: KVSpec = FULL, num_pages: int = 32) -> None:
        self.cache = KVCache(spec, [num_pages] * len(spec.groups), prefix_cache=True)
        self.open_holdings: list[Holding] = []

    def start(self, tokens: Sequence[int], namespace: Hashable = (), max_len: int | None = None) -> Holding:
        holding = self.cache.open(array(tokens), namespace, len(tokens) if max_len is None else max_len)
        self.open_holdings.append(holding)
        return holding

    def compute(self, holding: Holding, tokens: Sequence[int]) -> None:
        self.cache.grow(holding, len(tokens))
        self.cache.confirm_copies(holding)
        self.cache.settle(holding, array(tokens[holding.locked_len :]))
        self.assert_sound()

    def stop(self, holding: Holding) -> None:
        self.open_holdings.remove(holding)
        self.cache.close(holding, None)
        self.assert_sound()

    def run(self, tokens: Sequence[int], namespace: Hashable = ()) -> Holding:
        holding = self.start(tokens, namespace)
        self.compute(holding, tokens)
        self.stop(holding)
        return holding

    def hit(self, tokens: Sequence[int], namespace: Hashable = ()) -> int:
        return self.cache.index.match(array(tokens), namespace, len(tokens)).length

    def assert_sound(self) -> None:
        assert check(self.cache, self.open_holdings) == []


@pytest.mark.parametrize("shared", range(11))
def test_a_match_is_exact_to_the_token(shared: int) -> None:
    rig = Rig()
    rig.run(range(10))
    assert rig.hit([*range(shared), 99, 98]) == shared


def test_at_most_max_len_tokens_match() -> None:
    rig = Rig()
    rig.run(range(10))
    assert [rig.cache.index.match(array(range(10)), (), longest).length for longest in (0, 1, 4, 9, 10)] == [
        0,
        1,
        4,
        9,
        10,
    ]


def test_whole_pages_are_shared_and_the_partial_one_is_copied() -> None:
    rig = Rig()
    first = rig.start(range(10))
    rig.compute(first, range(10))
    second = rig.start([*range(9), 50, 51])
    assert second.cached_len == 9
    assert second.pages[0] == first.pages[0][:2]
    rig.cache.grow(second, 11)
    assert rig.cache.copies(second) == [(0, first.pages[0][2], second.pages[0][2])]
    assert second.pages[0][2] != first.pages[0][2]


def test_a_hit_at_a_page_boundary_copies_nothing() -> None:
    rig = Rig()
    rig.run(range(8))
    holding = rig.start([*range(8), 9])
    assert (holding.cached_len, holding.sources) == (8, [])


def test_every_group_copies_its_own_page() -> None:
    rig = Rig(MIXED)
    rig.run(range(10))
    holding = rig.start([*range(9), 50])
    rig.cache.grow(holding, 10)
    assert [group for group, _, _ in rig.cache.copies(holding)] == [0, 1]


def test_namespaces_do_not_see_each_other() -> None:
    rig = Rig()
    rig.run(range(8), "a")
    assert (rig.hit(range(8), "a"), rig.hit(range(8), "b")) == (8, 0)
    rig.run(range(8), "b")
    rig.cache.index.flush()
    assert rig.hit(range(8), "a") == 0
    assert list(rig.cache.index.nodes()) == [], "empty namespaces are forgotten"  # type: ignore[attr-defined]


def test_a_twin_that_was_second_gives_its_duplicates_back() -> None:
    rig = Rig()
    first, second = rig.start(range(10)), rig.start(range(10))
    rig.compute(first, range(10))
    used = rig.cache.pools[0].num_free
    rig.compute(second, range(10))
    assert second.pages[0][:2] == first.pages[0][:2]
    assert second.pages[0][2] != first.pages[0][2], "both still write to their last page"
    assert rig.cache.pools[0].num_free == used - 3 + 2


def test_the_longer_twin_extends_the_shorter_ones_tokens() -> None:
    rig = Rig()
    short, long = rig.start(range(6)), rig.start(range(12))
    rig.compute(short, range(6))
    rig.compute(long, range(12))
    assert rig.hit(range(12)) == 12
    rig.compute(short, [*range(6), 70, 71, 72])
    assert rig.hit([*range(6), 70, 71, 72]) == 9
    assert rig.hit(range(12)) == 12


def test_branches_inside_one_page_keep_their_own_pages() -> None:
    rig = Rig(num_pages=8)
    for last in range(5):
        rig.run([1, 2, last])
    assert rig.cache.pools[0].num_cached == 5
    assert [rig.hit([1, 2, last]) for last in range(6)] == [3, 3, 3, 3, 3, 2]


def test_eviction_takes_the_least_recently_used_leaf_from_its_end() -> None:
    rig = Rig(num_pages=6)
    rig.run([*range(8)])
    rig.run([50, 51, 52, 53, 54])
    rig.start([50, 51, 52, 53, 54])
    rig.stop(rig.open_holdings[0])
    rig.cache.index.evict(0, 3)
    assert (rig.hit(range(8)), rig.hit([50, 51, 52, 53, 54])) == (4, 5)
    rig.cache.index.evict(0, 4)
    assert (rig.hit(range(8)), rig.hit([50, 51, 52, 53, 54])) == (0, 5)


def test_a_shared_prefix_goes_after_both_of_its_branches() -> None:
    rig = Rig(num_pages=4)
    rig.run([1, 2, 3, 4, 5])
    rig.run([1, 2, 3, 4, 6])
    rig.cache.index.evict(0, 2)
    assert [rig.hit([1, 2, 3, 4, last]) for last in (5, 6)] == [4, 5]
    rig.cache.index.evict(0, 3)
    assert [rig.hit([1, 2, 3, 4, last]) for last in (5, 6)] == [4, 4]
    rig.cache.index.evict(0, 4)
    assert rig.hit([1, 2, 3, 4]) == 0


def test_dropping_the_last_branch_of_a_page_drops_the_tokens_before_it_in_that_page() -> None:
    rig = Rig(num_pages=4)
    rig.run([1, 2, 3, 4, 5, 6])
    rig.run([1, 2, 3, 4, 5, 7])
    rig.cache.index.evict(0, 3)
    assert rig.hit([1, 2, 3, 4, 5]) == 4
    rig.assert_sound()


def test_pages_in_use_are_not_evicted() -> None:
    rig = Rig(num_pages=5)
    holding = rig.start(range(10))
    rig.compute(holding, range(10))
    rig.cache.index.evict(0, 5)
    assert rig.cache.pools[0].num_free == 2
    assert rig.hit(range(10)) == 10
    rig.stop(holding)
    rig.cache.index.evict(0, 5)
    assert rig.cache.pools[0].num_free == 5


def test_tokens_that_were_not_computed_leave_nothing_behind() -> None:
    rig = Rig()
    holding = rig.start(range(10))
    rig.cache.grow(holding, 10)
    rig.stop(holding)
    assert rig.hit(range(10)) == 0
    assert rig.cache.pools[0].num_free == 32


def test_a_lock_is_released_once() -> None:
    rig = Rig()
    tree = rig.cache.index
    match = tree.match(array([1]), (), 1)
    lock = tree.lock(match, ())
    tree.unlock(lock)
    with pytest.raises(InternalError, match="more often"):
        tree.unlock(lock)


def test_window_pages_go_alone_and_a_match_ends_where_the_window_is_still_held() -> None:
    rig = Rig(MIXED)
    rig.run(range(16))
    tree = rig.cache.index
    assert isinstance(tree, RadixTree)
    tree.evict(1, 29)
    assert rig.cache.pools[0].num_cached == 4
    assert rig.hit(range(16)) == 16, "only [12, 16) is in the window of position 16"
    tree.evict(1, 32)
    assert rig.hit(range(16)) == 0
    assert rig.cache.pools[0].num_cached == 4


def test_a_match_holds_only_the_window_pages_it_needs() -> None:
    rig = Rig(MIXED)
    rig.run(range(16))
    holding = rig.start([*range(16), 99])
    assert holding.pages[1][:3] == [NO_PAGE] * 3
    assert holding.pages[1][3] != NO_PAGE
    assert NO_PAGE not in holding.pages[0]


def test_who_computes_evicted_window_pages_again_repairs_the_tree() -> None:
    rig = Rig(MIXED)
    rig.run(range(16))
    rig.cache.index.evict(1, 32)
    rig.run(range(16))
    assert rig.hit(range(16)) == 16
    assert rig.cache.pools[0].num_cached == 4


def test_window_pages_are_released_when_the_window_has_passed() -> None:
    rig = Rig(MIXED)
    holding = rig.start(range(16))
    rig.compute(holding, range(16))
    rig.cache.release_window(holding, 16)
    assert holding.pages[1][:3] == [NO_PAGE] * 3
    rig.assert_sound()
    rig.cache.index.evict(1, 31)
    rig.assert_sound()
    assert rig.cache.pools[1].users(holding.pages[1][3]) == 1


def test_a_tree_of_windows_only_forgets_nodes_without_pages() -> None:
    rig = Rig(KVSpec((KVGroup("window", (0,), 8, 3),), 4))
    for first in range(4):
        rig.run([first, *range(20, 31)])
    rig.cache.index.flush()
    assert list(rig.cache.index.nodes()) == []  # type: ignore[attr-defined]
    assert rig.cache.pools[0].num_free == 32


def test_a_leaf_whose_end_is_being_copied_is_passed_over_and_goes_once_it_was() -> None:
    rig = Rig(num_pages=8)
    rig.run(range(6))
    rig.run([50, 51, 52])
    copying = rig.start([0, 1, 2, 3, 4, 90])
    assert copying.sources != []
    rig.cache.index.evict(0, 8)
    assert (rig.hit(range(6)), rig.hit([50, 51, 52])) == (6, 0)
    rig.assert_sound()
    rig.stop(copying)
    rig.cache.index.evict(0, 8)
    assert rig.cache.pools[0].num_free == 8
    rig.assert_sound()


def test_many_pages_of_many_leaves_go_at_once() -> None:
    rig = Rig(num_pages=200)
    for first in range(20):
        rig.run([first, *range(100, 130)])
    rig.cache.index.evict(0, 120)
    assert rig.cache.pools[0].num_free == 120
    assert [rig.hit([first, *range(100, 130)]) for first in (9, 10, 11)] == [0, 31, 31]
    rig.assert_sound()


def test_lengths_alone_are_found_as_matches_are() -> None:
    for spec in (FULL, MIXED):
        rig = Rig(spec)
        rig.run(range(10))
        tree = rig.cache.index
        for tokens, longest in ((range(10), 10), (range(10), 7), ([0, 1, 9], 3), ([7], 1), (range(4), 0)):
            expected = tree.match(array(tokens), (), longest).length
            assert tree.match_len(array(tokens), (), longest) == expected
        assert tree.match_len(array(range(10)), "other", 10) == 0


def test_a_short_branch_inside_a_page_is_found_through_longer_ones() -> None:
    rig = Rig()
    rig.run([1, 2, 3, 5])
    rig.run([1, 2, 4, 5])
    rig.run([1, 6])
    assert [rig.hit(tokens) for tokens in ([1, 9], [1, 2, 9], [1, 6], [1, 2, 4])] == [1, 2, 2, 3]


def test_equal_pages_are_left_alone_when_a_chunk_is_entered_again() -> None:
    rig = Rig()
    holding = rig.start(range(10))
    rig.compute(holding, range(6))
    other = rig.start([*range(8), 50])
    rig.compute(other, [*range(8), 50])
    pages = list(holding.pages[0])
    rig.compute(holding, range(10))
    assert holding.pages[0][0] == pages[0]
    assert holding.pages[0][1] == other.pages[0][1]
