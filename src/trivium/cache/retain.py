"""Which pages of a request are to be kept with which priority: ranges of tokens, rounded to pages.

::

    page_len 4      page 0     page 1     page 2     page 3
    prompt [0, 10)  . . . .    . . . .    . . | . .  . . . .
    range [2, 6)        p p    p p
    decode                                     d d   d d d d
    pages           p          p          d          d          a page has the highest priority of its tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivium.base.intmath import ceil_div
from trivium.config.retention import DEFAULT_PRIORITY, RangeRetention, Retention

if TYPE_CHECKING:
    from trivium.cache.node import RadixNode


@dataclass(frozen=True, slots=True)
class Kept:
    """A priority with the moment at which it ends."""

    priority: int
    expires_s: float | None
    """On the cache's clock; `None` means never."""

    def priority_at(self, now_s: float) -> int:
        """Return the priority that holds now."""
        return self.priority if self.expires_s is None or now_s < self.expires_s else DEFAULT_PRIORITY


class RetentionPlan:
    """The priorities of one request's pages; those it says nothing of keep what they have."""

    def __init__(
        self, ranges: Sequence[RangeRetention], decode: Retention | None, *, prompt_len: int, page_len: int
    ) -> None:
        """Round to pages what a request asks for."""
        whole: list[tuple[int, int | None, Retention]] = [
            (each.start, prompt_len if each.end is None else min(each.end, prompt_len), each.retention)
            for each in ranges
        ]
        if decode is not None:
            whole.append((prompt_len, None, decode))
        self._ranges = [
            (start // page_len, None if end is None else ceil_div(end, page_len), retention)
            for start, end, retention in whole
            if end is None or start < end
        ]
        self._edges = sorted({edge for start, end, _ in self._ranges for edge in (start, end) if edge is not None})

    def edges(self, first: int, last: int) -> list[int]:
        """Return the page indices strictly between `first` and `last` at which the priority may change."""
        return [edge for edge in self._edges if first < edge < last]

    def kept(self, page: int, now_s: float) -> Kept | None:
        """Return the priority of a page index from now on; `None` where nothing is said."""
        found = [each for start, end, each in self._ranges if start <= page and (end is None or page < end)]
        if not found:
            return None
        most = max(found, key=lambda each: (each.priority, each.duration_s is None, each.duration_s or 0.0))
        return Kept(most.priority, None if most.duration_s is None else now_s + most.duration_s)


def priority_of(node: RadixNode, now_s: float) -> int:
    """Return the priority of a node's pages."""
    return DEFAULT_PRIORITY if node.kept is None else node.kept.priority_at(now_s)
