"""Laws of one page pool."""

from __future__ import annotations

import pytest

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
    with pytest.raises(InternalError):
        pool.keep(PageId(0))


def test_a_cached_page_without_users_is_evictable_in_the_order_of_leaving() -> None:
    pool = PagePool(3)
    pages = pool.take(3)
    for page in pages:
        pool.keep(page)
    for page in (pages[1], pages[0], pages[2]):
        pool.give_back(page)
    assert (pool.num_free, pool.num_evictable, pool.num_available, pool.num_cached) == (0, 3, 3, 3)
    assert pool.evictable_pages() == (pages[1], pages[0], pages[2])
    pool.share(pages[1])
    assert pool.oldest_evictable() == pages[0]
    pool.give_back(pages[1])
    assert pool.evictable_pages()[-1] == pages[1]


def test_a_dropped_page_stays_with_its_users() -> None:
    pool = PagePool(1)
    (page,) = pool.take(1)
    pool.keep(page)
    with pytest.raises(InternalError, match="twice"):
        pool.keep(page)
    pool.drop(page)
    assert (pool.num_free, pool.users(page), pool.is_cached(page)) == (0, 1, False)
    with pytest.raises(InternalError, match="was not in it"):
        pool.drop(page)
    pool.give_back(page)
    assert pool.num_free == 1
    assert pool.oldest_evictable() is None
