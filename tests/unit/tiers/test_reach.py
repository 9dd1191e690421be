"""How far a tier extends a prefix, against brute force over every length."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.base.ids import PageId
from trivium.cache.pages import NO_PAGE
from trivium.cache.spec import KVGroup, KVSpec
from trivium.tiers.reach import pages_to_bring, reach


def spec_of(windows: list[int | None], page_len: int) -> KVSpec:
    groups = [KVGroup("window" if window else "full", (idx,), 8, window) for idx, window in enumerate(windows)]
    return KVSpec(tuple(groups), page_len)


def visible(length: int, window: int | None, page_len: int) -> set[int]:
    """Pages that hold a position which the token at `length` sees, one position at a time."""
    first = 0 if window is None else max(0, length - window + 1)
    return {position // page_len for position in range(first, length)}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_longest_length_that_held_pages_and_tier_make_usable(data: st.DataObject) -> None:
    windows = data.draw(st.lists(st.sampled_from([None, None, 1, 3, 7, 20]), min_size=1, max_size=3))
    page_len = data.draw(st.sampled_from([1, 4]))
    spec = spec_of(windows, page_len)
    held_len = data.draw(st.integers(0, 6 * page_len))
    longest = data.draw(st.integers(0, 12 * page_len))
    stored = {
        (group, idx)
        for group in range(len(windows))
        for idx in range(12)
        if data.draw(st.booleans() if group else st.just(value=True) | st.booleans())
    }
    held = [
        [
            PageId(idx) if idx in visible(held_len, window, page_len) else NO_PAGE
            for idx in range(-(-held_len // page_len))
        ]
        for window in windows
    ]
    found = reach(spec, held, held_len, lambda group, idx: (group, idx) in stored, longest)
    first = held_len // page_len
    best = 0
    for length in range(held_len + 1, longest + 1):
        needed = {(group, idx) for group, window in enumerate(windows) for idx in visible(length, window, page_len)}
        from_pool = {
            (group, idx)
            for group, pages in enumerate(held)
            for idx, page in enumerate(pages[:first])
            if page != NO_PAGE
        }
        # Every page of a full group from the first one on is brought, whole, and so are a window's.
        if length % page_len == 0 and needed <= from_pool | stored:
            best = length
    assert found == best
    if found:
        brought = set(pages_to_bring(spec, held_len, found))
        needed = {(group, idx) for group, window in enumerate(windows) for idx in visible(found, window, page_len)}
        assert brought <= stored
        assert needed <= from_pool | brought if found > held_len else True
