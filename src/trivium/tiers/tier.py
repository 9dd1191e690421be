"""The contract of a tier: a store of whole pages below the KV pool, found by content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trivium.tiers.page import PageFacts, PageRef, StoredPage


@dataclass(slots=True, kw_only=True)
class TierStats:
    """Counters since the start (the first block) and the state now."""

    num_written: int = 0
    """Pages taken."""
    num_read: int = 0
    """Pages given back."""
    num_evicted: int = 0
    """Pages that made room for others."""
    num_damaged: int = 0
    """Entries that were dropped because their bytes are not what was written."""
    bytes_written: int = 0
    bytes_read: int = 0

    num_pages: int = 0
    num_bytes: int = 0
    limit_bytes: int = 0
    is_off: bool = False
    """Whether an error of the medium ended its use until the next start."""


class TierListener(Protocol):
    """Whoever follows what tiers hold; called by the thread that owns them, so it must be quick, and not call back."""

    def found(self, refs: Sequence[PageRef], tier: str) -> None:
        """Tell of pages that a tier has had from the start."""
        ...

    def moved(self, facts: PageFacts, tier: str) -> None:
        """Tell of a page that a tier has taken."""
        ...

    def lost(self, refs: Sequence[PageRef], tier: str) -> None:
        """Tell of pages that a tier has given up, handed down, or found damaged."""
        ...

    def cleared(self, media: Iterable[str]) -> None:
        """Tell of tiers that hold nothing any more."""
        ...


class NobodyListens:
    """The same for nobody."""

    def found(self, refs: Sequence[PageRef], tier: str) -> None:
        """Nobody wants to know."""

    def moved(self, facts: PageFacts, tier: str) -> None:
        """Nobody wants to know."""

    def lost(self, refs: Sequence[PageRef], tier: str) -> None:
        """Nobody wants to know."""

    def cleared(self, media: Iterable[str]) -> None:
        """Nobody wants to know."""


class Tier(Protocol):
    """Keeps pages until room is needed.

    A tier never raises after it was opened: what it cannot keep is not kept, what it cannot read is not there. `where`
    may be called by any thread; everything else belongs to one thread.
    """

    @property
    def name(self) -> str:
        """What it is called in statistics: `host` or `disk`."""
        ...

    def where(self, ref: PageRef) -> str | None:
        """Return the name of the tier that has this page, this one or one below, or `None`."""
        ...

    def put(self, page: StoredPage) -> None:
        """Keep a page, evicting others where need be; a page that is here already is only marked as used."""
        ...

    def get(self, facts: PageFacts) -> bytes | None:
        """Return the bytes of a page, verified completely, or `None` when it is not here or not whole."""
        ...

    def clear(self) -> None:
        """Forget every page."""
        ...

    def listen(self, listener: TierListener) -> None:
        """Tell `listener` what this tier and those below have, and from now on what they take and lose.

        Not of what `clear` and `close` do: whoever calls them knows.
        """
        ...

    def stats(self) -> dict[str, TierStats]:
        """Return the statistics of this tier and of those below, by name."""
        ...

    def close(self) -> None:
        """Hand down what can only be kept below, and let go of memory, files and locks."""
        ...
