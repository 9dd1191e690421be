"""Pins: cached prefixes that stay, whatever memory is wanted for, until they are unpinned or their time has passed.

A pin is a holding without a request: it uses the whole pages of a prefix and locks its place, so eviction
need not know about pins. What they hold together is bounded, since what is pinned is gone for everybody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.base.ids import PageId
from trivium.cache.node import common_len, token_bytes
from trivium.cache.pages import NO_PAGE

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.cache.kv_cache import Holding, KVCache
    from trivium.cache.prefix import TokenArray

PINNED_SHARE = 0.5
"""Most of each pool's pages that all pins together may hold."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that stays."""

    pin_id: str
    namespace: Hashable
    data: bytes
    """Its tokens, as nodes keep them."""
    holding: Holding
    expires_s: float | None
    """On the cache's clock; `None` means never."""


@dataclass(frozen=True, slots=True)
class PinRefusal:
    """Why a prefix was not pinned."""

    reason: str
    is_final: bool
    """Whether it would be refused even if nothing else were pinned."""


class Pins:
    """The pins of one cache.

    Invariants:
        No more than `PINNED_SHARE` of a pool's pages are pinned; pages that several pins share count once.
    """

    def __init__(self, cache: KVCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._pins: dict[str, Pin] = {}
        self._pages: tuple[Counter[PageId], ...] = tuple(Counter() for _ in cache.pools)

    def __iter__(self) -> Iterator[Pin]:
        """Go through the pins, the oldest first."""
        return iter(tuple(self._pins.values()))

    def __len__(self) -> int:
        """Return the number of pins."""
        return len(self._pins)

    def lost_len(self, tokens: TokenArray, namespace: Hashable) -> int:
        """Return how many tokens of a pool pins keep from a request; what it shares with one of them is its own.

        Cost: O(pins), each a comparison of memory.
        """
        page_len = self._cache.spec.page_len
        data = token_bytes(tokens)
        own = max((common_len(pin.data, data) for pin in self if pin.namespace == namespace), default=0)
        return max(0, max(map(len, self._pages)) * page_len - own // page_len * page_len)

    @property
    def num_pages(self) -> int:
        """Pages that are pinned, over all groups."""
        return sum(map(len, self._pages))

    def pin(self, pin_id: str, tokens: TokenArray, namespace: Hashable, ttl_s: float | None) -> Pin | PinRefusal:
        """Keep the whole pages of a prefix that is cached.

        Args:
            pin_id: New, or that of a pin which this one replaces.
            tokens: The prefix.
            namespace: Where it is cached.
            ttl_s: Seconds after which it goes like others; `None` means never.

        Returns:
            The pin, or why there is none: parts of the prefix are not cached, or too much would be pinned.
        """
        self.expire()
        self.unpin(pin_id)
        page_len = self._cache.spec.page_len
        wanted = len(tokens) // page_len * page_len
        if not wanted:
            return PinRefusal(
                f"{len(tokens)} tokens fill no page; whole pages of {page_len} tokens are pinned", is_final=True
            )
        holding = self._cache.open(tokens[:wanted], namespace, wanted)
        refusal = None
        if holding.locked_len < wanted:
            reason = f"{holding.cached_len} of {wanted} tokens are cached; memory is too short to keep them all"
            refusal = PinRefusal(reason, is_final=False)
        refusal = refusal or self._excess(holding)
        if refusal is not None:
            self._cache.close(holding, None)
            return refusal
        pin = Pin(
            pin_id,
            namespace,
            token_bytes(tokens[:wanted]),
            holding,
            None if ttl_s is None else self._clock.now_s() + ttl_s,
        )
        for counts, pages in zip(self._pages, holding.pages, strict=True):
            counts.update(page for page in pages if page != NO_PAGE)
        self._pins[pin_id] = pin
        return pin

    def unpin(self, pin_id: str) -> bool:
        """Let a prefix go; returns whether there was such a pin."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return False
        for counts, pages in zip(self._pages, pin.holding.pages, strict=True):
            counts.subtract(page for page in pages if page != NO_PAGE)
            for page in pages:
                if not counts[page]:
                    del counts[page]
        self._cache.close(pin.holding, None)
        return True

    def expire(self) -> None:
        """Let those go whose time has passed.

        Cost: O(pins).
        """
        if self._pins:
            now_s = self._clock.now_s()
            for pin in self:
                if pin.expires_s is not None and now_s >= pin.expires_s:
                    self.unpin(pin.pin_id)

    def expires_in_s(self, pin: Pin) -> float | None:
        """Return the seconds that a pin has left; `None` when it stays for good."""
        return None if pin.expires_s is None else max(0.0, pin.expires_s - self._clock.now_s())

    def _excess(self, holding: Holding) -> PinRefusal | None:
        for pool, counts, pages in zip(self._cache.pools, self._pages, holding.pages, strict=True):
            own = {page for page in pages if page != NO_PAGE}
            limit = int(pool.num_pages * PINNED_SHARE)
            more = len(own - counts.keys())
            if len(counts) + more > limit:
                return PinRefusal(
                    f"{more} pages more would be pinned, {len(counts)} are; at most {limit} of {pool.num_pages} pages "
                    "may be. Pin less, unpin something, or give more KV memory (--kv-cache-memory)",
                    is_final=len(own) > limit,
                )
        return None
