"""The arithmetic of sliding windows, against brute force."""

from __future__ import annotations

import itertools

import pytest

from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.pages import NO_PAGE
from trivium.cache.spec import KVGroup, KVSpec
from trivium.cache.window import capacity_len, first_needed, peak_pages, usable_len


def window_spec(page_len: int, *windows: int | None) -> KVSpec:
    return KVSpec(tuple(KVGroup("window" if w else "full", (i,), 8, w) for i, w in enumerate(windows)), page_len)


def is_usable(held: tuple[bool, ...], length: int, page_len: int, window: int) -> bool:
    return all(held[position // page_len] for position in range(max(0, length - window + 1), length))


@pytest.mark.parametrize("page_len", [1, 2, 4])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
def test_the_usable_length_is_the_largest_whose_window_is_held(page_len: int, window: int) -> None:
    num_pages = 6
    spec = window_spec(page_len, window)
    for held in itertools.product([False, True], repeat=num_pages):
        pages = [[PageId(idx) if is_held else NO_PAGE for idx, is_held in enumerate(held)]]
        for longest in (num_pages * page_len, num_pages * page_len - 1, 3):
            expected = max(
                length for length in range(longest + 1) if length == 0 or is_usable(held, length, page_len, window)
            )
            assert usable_len(pages, spec, longest) == expected


def test_every_window_group_must_be_usable_at_the_same_length() -> None:
    spec = window_spec(2, 3, 5)
    for first, second in itertools.product(itertools.product([False, True], repeat=5), repeat=2):
        pages = [[PageId(i) if h else NO_PAGE for i, h in enumerate(held)] for held in (first, second)]
        expected = max(
            length
            for length in range(10)
            if length == 0 or (is_usable(first, length, 2, 3) and is_usable(second, length, 2, 5))
        )
        assert usable_len(pages, spec, 9) == expected


def test_full_groups_are_usable_as_they_are() -> None:
    assert usable_len([[PageId(0)]], window_spec(4, None), 3) == 3


def test_a_query_sees_itself_and_the_window_before_it() -> None:
    assert [first_needed(length, 4) for length in (0, 3, 4, 10)] == [0, 0, 1, 7]
    assert first_needed(10, None) == 0


@pytest.mark.parametrize("page_len", [1, 3, 4])
@pytest.mark.parametrize("window", [1, 4, 6])
@pytest.mark.parametrize("chunk", [1, 5])
def test_the_peak_is_never_below_what_a_request_holds(page_len: int, window: int, chunk: int) -> None:
    group = KVGroup("window", (0,), 8, window)
    for start in range(30):
        held = ceil_div(start + chunk, page_len) - first_needed(start, window) // page_len
        assert held <= peak_pages(group, page_len, 1000, chunk)


def test_a_pool_that_holds_a_window_and_a_page_has_no_longest_request() -> None:
    assert capacity_len(window_spec(4, 8), [3]) is None
    assert capacity_len(window_spec(4, 8), [2]) == 8
    assert capacity_len(window_spec(4, None, 8), [5, 3]) == 20
    assert capacity_len(window_spec(4, None, 8), [5, 2]) == 8
