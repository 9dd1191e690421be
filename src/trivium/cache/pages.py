"""Pages of one KV group: who uses each, which are free, which only the prefix index still remembers.

Knows page ids and counts only; neither tokens nor bytes. Every page is in exactly one of four states::

    users  cached   state
      0      no     free        in the free list, last in first out
     >0      no     private     in the page tables of running requests only
     >0     yes     shared      in page tables and in the prefix index
      0     yes     evictable   in the prefix index only, which knows in what order they go

Counts lie in arrays, so that a run of pages changes state in a few array operations, whatever its length (`*_all`).
One page at a time goes through a memory view of the same arrays, several times quicker than an array of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import ensure
from trivium.base.ids import PageId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    PageArray = NDArray[np.int32]

NO_PAGE = PageId(-1)
"""Entry of a page table where no page is held: out of the window."""

_FEW = 8
"""Pages below which a loop is quicker than an array."""


class PagePool:
    """Reference counts and free list of one group's pages.

    Invariants:
        - A page is free exactly when it has no users and is not cached.
        - `num_evictable` counts the pages that have no users and are cached.
    """

    def __init__(self, num_pages: int) -> None:
        """Make a pool in which all of `num_pages` pages are free."""
        self._free = [PageId(page) for page in range(num_pages - 1, -1, -1)]
        self._users = np.zeros(num_pages, np.int32)
        self._is_cached = np.zeros(num_pages, np.bool_)
        self.users_of = self._users.data
        """Number of page tables that hold each page; for reading."""
        self._cached_of = self._is_cached.data
        self.num_evictable = 0
        """Pages that only the prefix index holds."""
        self.num_cached = 0
        """Pages that the prefix index holds, used or not."""
        self.on_drop: list[Callable[[list[PageId]], None]] = []
        """Told of the pages that the prefix index drops, whose bytes are still there."""
        self._awaited: dict[PageId, Any] = {}
        self._woken: list[Any] = []

    @property
    def num_pages(self) -> int:
        """Pages in the pool, whatever their state."""
        return len(self._users)

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Pages that can be had: free, or free after eviction."""
        return len(self._free) + self.num_evictable

    # -- users ------------------------------------------------------------------------------------------------

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
        if count < _FEW:
            for page in pages:
                self.users_of[page] = 1
        else:
            self._users[pages] = 1
        return pages

    def share(self, page: PageId) -> None:
        """Add a user to a page that has one, or that is cached.

        Raises:
            InternalError: The page is free.
        """
        if self.users_of[page] == 0:
            ensure(self._cached_of[page], f"page {page} is free and cannot be shared")
            self.num_evictable -= 1
        self.users_of[page] += 1

    def share_all(self, pages: Sequence[PageId] | PageArray) -> None:
        """Add a user to each of `pages` that is a page; none may be there twice.

        Raises:
            InternalError: A page is free.
        """
        held = _held(pages)
        unused = held[self._users[held] == 0]
        if len(unused):
            free = unused[~self._is_cached[unused]]
            ensure(len(free) == 0, f"pages {free.tolist()} are free and cannot be shared")
            self.num_evictable -= len(unused)
        self._users[held] += 1

    def give_back(self, page: PageId) -> None:
        """Take a user away; the last one leaves the page evictable when it is cached, else free.

        Raises:
            InternalError: The page has no user (it was given back twice).
        """
        ensure(page >= 0 and self.users_of[page] > 0, f"page {page} is given back and has no user")
        self.users_of[page] -= 1
        if self.users_of[page] == 0:
            if self._cached_of[page]:
                self.num_evictable += 1
                if self._awaited:
                    self._wake((page,))
            else:
                self._free.append(page)

    def give_back_all(self, pages: Sequence[PageId] | PageArray) -> None:
        """Give back each of `pages` that is a page; none may be there twice.

        Raises:
            InternalError: A page has no user.
        """
        held = _held(pages)
        users = self._users[held] - 1
        idle = held[users < 0]
        ensure(len(idle) == 0, f"pages {idle.tolist()} are given back and have no user")
        self._users[held] = users
        unused = held[users == 0]
        if not len(unused):
            return
        is_cached = self._is_cached[unused]
        # Backwards, so that a request's first page is handed out next.
        self._free.extend(unused[~is_cached][::-1].tolist())
        evictable = unused[is_cached]
        self.num_evictable += len(evictable)
        if self._awaited and len(evictable):
            self._wake(self._awaited.keys() & set(evictable.tolist()))

    def unused_of(self, pages: Sequence[PageId]) -> list[int]:
        """Return where in `pages` those lie that have no user."""
        listed = np.array(pages, np.int32)
        indices: list[int] = np.flatnonzero((listed != NO_PAGE) & (self._users[listed] == 0)).tolist()
        return indices

    # -- the prefix index -------------------------------------------------------------------------------------

    def keep_all(self, pages: Sequence[PageId] | PageArray) -> None:
        """Mark each of `pages` that is a page, all in use, as held by the prefix index too.

        Raises:
            InternalError: A page is free, or the index holds it already.
        """
        held = _held(pages)
        free = held[self._users[held] == 0]
        ensure(len(free) == 0, f"pages {free.tolist()} enter the index and have no user")
        known = held[self._is_cached[held]]
        ensure(len(known) == 0, f"pages {known.tolist()} enter the index twice")
        self._is_cached[held] = True
        self.num_cached += len(held)

    def drop_all(self, pages: Sequence[PageId] | PageArray) -> None:
        """Take each of `pages` that is a page out of the prefix index; those without users are free.

        Raises:
            InternalError: The index does not hold a page.
        """
        held = _held(pages)
        unknown = held[~self._is_cached[held]]
        ensure(len(unknown) == 0, f"pages {unknown.tolist()} leave the index and were not in it")
        self._is_cached[held] = False
        self.num_cached -= len(held)
        for tell in self.on_drop:
            tell(held.tolist())
        unused = held[self._users[held] == 0]
        self.num_evictable -= len(unused)
        self._free.extend(unused.tolist())
        if self._awaited:
            self._wake(self._awaited.keys() & set(held.tolist()))

    def wait_for(self, pages: Iterable[PageId], sleeper: Any) -> None:
        """Have `sleeper` among the `woken` when one of these pages, all in use, loses its last user or is dropped."""
        for page in pages:
            self._awaited[page] = sleeper

    def woken(self) -> list[Any]:
        """Return once each who waited for pages and need wait no longer, perhaps several times."""
        woken, self._woken = self._woken, []
        return woken

    def _wake(self, pages: Iterable[PageId]) -> None:
        for page in pages:
            sleeper = self._awaited.pop(page, None)
            if sleeper is not None:
                self._woken.append(sleeper)

    # -- for the accounting -----------------------------------------------------------------------------------

    def users(self, page: PageId) -> int:
        """Return the number of page tables that hold `page`."""
        return self.users_of[page]

    def is_cached(self, page: PageId) -> bool:
        """Return whether the prefix index holds `page`."""
        return bool(self._cached_of[page])

    def is_awaited(self, page: PageId) -> bool:
        """Return whether someone waits for `page`."""
        return page in self._awaited

    def free_pages(self) -> Sequence[PageId]:
        """Return the free list; the last entry is handed out next. Not to be mutated."""
        return self._free


def _held(pages: Sequence[PageId] | PageArray) -> PageArray:
    """Return those of `pages` that are pages."""
    listed: PageArray = np.asarray(pages, np.int32)
    held: PageArray = listed[listed != NO_PAGE]
    return held
