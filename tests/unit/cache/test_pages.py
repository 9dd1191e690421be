"""Laws of one page pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.base.errors import InternalError
from trivium.base.ids import PageId
from trivium.cache.pages import NO_PAGE, PagePool


def test_the_page_given_back_last_is_handed_out_first() -> None:
    pool = PagePool(4)
    first, second = pool.take(2)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(2) == [second, first]
    assert pool.free_pages()[-1] not in {first, second}


def test_a_page_is_free_after_its_last_user_left() -> None:
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.share(page)
    pool.give_back(page)
    assert pool.num_free == 1
    pool.give_back(page)
    assert pool.num_free == 2


def test_a_page_given_back_twice_is_an_internal_error() -> None:
    pool = PagePool(2)
    (page,) = pool.take(1)
    pool.give_back(page)
    with pytest.raises(InternalError, match="has no user"):
        pool.give_back(page)


def test_no_page_is_never_given_back() -> None:
    pool = PagePool(2)
    with pytest.raises(InternalError):
        pool.give_back(NO_PAGE)
    pool.give_back_all([NO_PAGE])
    assert pool.num_free == 2


def test_more_pages_than_are_free_are_refused() -> None:
    pool = PagePool(2)
    with pytest.raises(InternalError, match="3 pages were asked for and 2 are free"):
        pool.take(3)
    assert pool.take(0) == []


def test_a_free_page_cannot_be_shared_or_kept() -> None:
    pool = PagePool(2)
    with pytest.raises(InternalError):
        pool.share(PageId(0))
    with pytest.raises(InternalError, match=r"pages \[1\] are free"):
        pool.share_all([PageId(1)])
    with pytest.raises(InternalError, match="have no user"):
        pool.keep_all([PageId(0)])
    assert (pool.num_free, pool.num_cached) == (2, 0)


def test_a_cached_page_without_users_is_evictable() -> None:
    pool = PagePool(3)
    pages = pool.take(3)
    pool.keep_all(pages)
    pool.give_back_all(pages)
    assert (pool.num_free, pool.num_evictable, pool.num_available, pool.num_cached) == (0, 3, 3, 3)
    pool.share(pages[1])
    pool.share_all([pages[1], pages[0]])
    assert (pool.num_evictable, pool.users(pages[1]), pool.users(pages[0])) == (1, 2, 1)
    pool.give_back_all(pages[:2])
    assert (pool.num_evictable, pool.users(pages[1]), pool.users(pages[0])) == (2, 1, 0)


def test_a_dropped_page_stays_with_its_users() -> None:
    pool = PagePool(1)
    (page,) = pool.take(1)
    pool.keep_all([page])
    with pytest.raises(InternalError, match="twice"):
        pool.keep_all([page])
    pool.drop_all([page])
    assert (pool.num_free, pool.users(page), pool.is_cached(page), pool.num_cached) == (0, 1, False, 0)
    with pytest.raises(InternalError, match="were not in it"):
        pool.drop_all([page])
    pool.give_back(page)
    assert (pool.num_free, pool.num_evictable) == (1, 0)


def test_who_waits_for_a_page_is_woken_once_when_its_last_user_leaves() -> None:
    pool = PagePool(4)
    pages = pool.take(4)
    pool.keep_all(pages)
    pool.share(pages[0])
    pool.wait_for(pages[:1], "first")
    pool.wait_for(pages[1:3], "both")
    pool.wait_for(pages[3:], "last")
    pool.give_back_all(pages[:2])
    assert pool.woken() == ["both"]
    pool.give_back(pages[0])
    pool.drop_all(pages[3:])
    assert pool.woken() == ["first", "last"]
    assert pool.woken() == []


@given(st.data())
def test_runs_of_pages_change_as_if_one_after_the_other(data: st.DataObject) -> None:
    many, single = PagePool(12), PagePool(12)
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.integers(0, many.num_free))
        assert many.take(count) == single.take(count)
        used = [PageId(page) for page in range(12) if many.users(PageId(page))]
        cached = [page for page in map(PageId, range(12)) if many.is_cached(page)]
        action, among = data.draw(
            st.sampled_from([
                ("share", sorted({*used, *cached})),
                ("give_back", used),
                ("keep", [page for page in used if page not in cached]),
                ("drop", cached),
            ])
        )
        pages = [page for page in among if data.draw(st.booleans())]
        getattr(many, f"{action}_all")([*pages, NO_PAGE])
        for page in reversed(pages) if action == "give_back" else pages:
            getattr(single, action, lambda page: getattr(single, f"{action}_all")([page]))(page)  # noqa: B023
        assert state(many) == state(single)


def state(pool: PagePool) -> object:
    pages = [PageId(page) for page in range(pool.num_pages)]
    counts = (pool.num_evictable, pool.num_cached, list(pool.free_pages()))
    return counts, [(pool.users(page), pool.is_cached(page)) for page in pages]
