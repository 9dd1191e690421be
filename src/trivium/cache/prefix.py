"""The seam between page pools and whatever remembers prefixes: `RadixTree`, or `NoPrefixIndex` when sharing is off."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trivium.base.ids import PageId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.cache.claims import Claim
    from trivium.cache.page_runs import PageListener
    from trivium.cache.retain import RetentionPlan

    TokenArray = NDArray[np.int32]


@dataclass(slots=True)
class PrefixMatch:
    """A cached prefix, exact to the token.

    Valid until the index changes; `lock` makes its whole pages last.
    """

    length: int
    """Tokens whose KV can be reused."""
    pages: tuple[list[PageId], ...]
    """Per group, the pages of [0, length), position-aligned; `NO_PAGE` where the window needs none. When `length`
    ends inside a page, the last entry is that page: it holds further tokens of others, so it is copied, not shared."""
    path: list[Any]
    """The index's own record of where the match lies."""


class PrefixIndex(Protocol):
    """Remembers which pages hold the KV of which token sequences.

    The index holds pages through `PagePool.keep` and `PagePool.drop`; it never counts as a user.
    """

    def match(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> PrefixMatch:
        """Find the longest usable cached prefix of `tokens`, at most `max_len` tokens.

        Changes nothing. A prefix is usable when every window group still holds the pages behind its end.
        """
        ...

    def match_len(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> int:
        """Return the length of what `match` would find, without looking for its pages where lengths alone tell."""
        ...

    def lock(self, match: PrefixMatch, namespace: Hashable, plan: RetentionPlan | None = None) -> Any:
        """Keep the place where the whole pages of `match` end, and return it; `insert` goes on from there.

        What leads there gets the priorities of `plan`, where the eviction policy heeds any.
        """
        ...

    def unlock(self, lock: Any) -> None:
        """Release a place; each lock is released once."""
        ...

    def insert(
        self,
        lock: Any,
        locked_len: int,
        tokens: TokenArray,
        pages: Sequence[list[PageId]],
        plan: RetentionPlan | None = None,
    ) -> Any:
        """Enter computed tokens behind a locked place, and move the lock to the end of their last whole page.

        Args:
            lock: The place; no longer valid afterwards.
            locked_len: Its length in tokens, a multiple of the page length.
            tokens: Computed tokens from `locked_len` on.
            pages: Per group, the request's page table.
            plan: Priorities of its pages; `None` when it asks for none.

        Returns:
            The new lock, `locked_len + len(tokens)` long, rounded down to whole pages.

        Effects:
            Whole pages that the index already had replace those in `pages`, whose own are given back.
        """
        ...

    def claim(self, lock: Any, tail: TokenArray, claim: Claim) -> None:
        """Drop the path of a locked place, and of `tail` behind it, after all that nobody claims.

        Args:
            lock: The place.
            tail: Tokens that were entered behind it, fewer than a page.
            claim: Whose path it is; what it claimed of the same path before is let go.
        """
        ...

    def disclaim(self, claim: Claim) -> None:
        """Let everything go that `claim` has."""
        ...

    def evict(self, group: int, count: int) -> None:
        """Drop what the eviction policy names until `count` pages of `group` are free, or none is evictable."""
        ...

    def flush(self) -> None:
        """Drop everything that no running request uses."""
        ...

    def listen(self, listener: PageListener) -> None:
        """Tell `listener` from now on which full pages are stored and removed; before anything is stored."""
        ...

    def namespaces(self) -> Iterable[tuple[Hashable, Sequence[Any]]]:
        """Yield every namespace with the nodes that it has."""
        ...

    def held_pages(self) -> Iterator[tuple[int, PageId]]:
        """Yield every held page once, as (group, page)."""
        ...

    def check(self) -> list[str]:
        """Re-derive the invariants of the structure; return what does not hold."""
        ...


class NoPrefixIndex:
    """Remembers nothing: the same path with `prefix_cache` off."""

    def __init__(self, num_groups: int) -> None:
        self._num_groups = num_groups

    def match(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> PrefixMatch:
        """Find nothing."""
        del tokens, namespace, max_len
        return PrefixMatch(0, tuple([] for _ in range(self._num_groups)), [])

    def match_len(self, tokens: TokenArray, namespace: Hashable, max_len: int) -> int:
        """Find nothing."""
        del tokens, namespace, max_len
        return 0

    def lock(self, match: PrefixMatch, namespace: Hashable, plan: RetentionPlan | None = None) -> None:
        """Keep nothing."""

    def unlock(self, lock: None) -> None:
        """Release nothing."""

    def insert(
        self,
        lock: None,
        locked_len: int,
        tokens: TokenArray,
        pages: Sequence[list[PageId]],
        plan: RetentionPlan | None = None,
    ) -> None:
        """Enter nothing."""

    def claim(self, lock: None, tail: TokenArray, claim: Claim) -> None:
        """Keep nothing."""

    def disclaim(self, claim: Claim) -> None:
        """Have nothing to let go."""

    def evict(self, group: int, count: int) -> None:
        """Nothing is evictable."""

    def flush(self) -> None:
        """Nothing is held."""

    def listen(self, listener: PageListener) -> None:
        """Have nothing to tell."""

    def namespaces(self) -> Iterable[tuple[Hashable, Sequence[Any]]]:
        """There are none."""
        return ()

    def held_pages(self) -> Iterator[tuple[int, PageId]]:
        """Yield nothing."""
        return iter(())

    def check(self) -> list[str]:
        """Nothing can be wrong."""
        return []
