"""Pages of one KV group: who uses each, which are free, which only the prefix index still remembers.

Knows page ids and counts only; neither tokens nor bytes. Every page is in exactly one of four states::

    users  cached   state
      0      no     free        in the free list, last in first out
     >0      no     private     in the page tables of running requests only
     >0     yes     shared      in page tables and in the prefix index
      0     yes     evictable   in the prefix index only; in the order in which their last users left
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from trivium.base.errors import ensure
from trivium.base.ids import PageId

NO_PAGE = PageId(-1)
"""Entry of a page table where no page is held: out of the window."""


class PagePool:
    """Reference counts, free list and eviction order of one group's pages.

    Invariants:
        - A page is free exactly when it has no users and is not cached.
        - A page is evictable exactly when it has no users and is cached.
    """

    def __init__(self, num_pages: int) -> None:
        """Make a pool in which all of `num_pages` pages are free."""
        self._free = [PageId(page) for page in range(num_pages - 1, -1, -1)]
        self._users = [0] * num_pages
        self._is_cached = bytearray(num_pages)
        self._evictable: OrderedDict[PageId, None] = OrderedDict()

    @property
    def num_pages(self) -> int:
        """Pages in the pool, whatever their state."""
        return len(self._users)

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Pages that only the prefix index holds."""
        return len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Pages that the prefix index holds, used or not."""
        return self._is_cached.count(1)

    @property
    def num_available(self) -> int:
        """Pages that can be had: free, or free after eviction."""
        return len(self._free) + len(self._evictable)

    def take(self, count: int) -> list[PageId]:
        """Hand out `count` free pages, each with one user.

        Raises:
            InternalError: Fewer pages are free; the caller evicts first.
        """
        if count == 0:
            return []
        ensure(count <= len(self._free), f"{count} pages were asked for and {len(self._free)} are free")
        pages = self._free[-count:]
        del self._free[-count:]
        pages.reverse()
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, page: PageId) -> None:
        """Add a user to a page that has one, or that is cached.

        Raises:
            InternalError: The page is free.
        """
        if self._users[page] == 0:
            ensure(self._is_cached[page], f"page {page} is free and cannot be shared")
            del self._evictable[page]
        self._users[page] += 1

    def give_back(self, page: PageId) -> None:
        """Take a user away; the last one leaves the page evictable when it is cached, else free.

        Raises:
            InternalError: The page has no user (it was given back twice).
        """
        ensure(page >= 0 and self._users[page] > 0, f"page {page} is given back and has no user")
        self._users[page] -= 1
        if self._users[page] == 0:
            if self._is_cached[page]:
                self._evictable[page] = None
            else:
                self._free.append(page)

    def give_back_all(self, pages: Iterable[PageId]) -> None:
        """Give back each of `pages` that is a page; the first becomes evictable first.

        Raises:
            InternalError: A page has no user.
        """
        for page in pages:
            if page != NO_PAGE:
                self.give_back(page)

    def keep(self, page: PageId) -> None:
        """Mark a page in use as held by the prefix index too.

        Raises:
            InternalError: The page is free, or the index holds it already.
        """
        ensure(self._users[page] > 0, f"page {page} enters the index and has no user")
        ensure(not self._is_cached[page], f"page {page} enters the index twice")
        self._is_cached[page] = 1

    def drop(self, page: PageId) -> None:
        """Take a page out of the prefix index; it is free when it has no users.

        Raises:
            InternalError: The index does not hold the page.
        """
        ensure(self._is_cached[page], f"page {page} leaves the index and was not in it")
        self._is_cached[page] = 0
        if self._users[page] == 0:
            del self._evictable[page]
            self._free.append(page)

    def oldest_evictable(self) -> PageId | None:
        """Return the evictable page whose last user left first, or `None`."""
        return next(iter(self._evictable), None)

    def users(self, page: PageId) -> int:
        """Return the number of page tables that hold `page`."""
        return self._users[page]

    def is_cached(self, page: PageId) -> bool:
        """Return whether the prefix index holds `page`."""
        return bool(self._is_cached[page])

    def free_pages(self) -> Sequence[PageId]:
        """Return the free list; the last entry is handed out next. Not to be mutated."""
        return self._free

    def evictable_pages(self) -> Sequence[PageId]:
        """Return the evictable pages, oldest first."""
        return tuple(self._evictable)
