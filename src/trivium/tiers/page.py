"""A whole page on its way between the KV pool and a tier: by which key it is found, and what it holds.

Pages are found by content, never by place: `key` is the chained hash of the namespace and of every token up to the
end of the page, so equal keys mean equal tokens, and (by the first promise) equal KV bits. KV groups share the key
and not the bytes::

    tokens    [ 0 ....... page_len ) [ page_len ... 2 page_len )
    keys        k0 = h(namespace, ..)  k1 = h(k0, ..)                 parent of k1 is k0
    refs      (group 0, k0) (group 1, k0)   (group 0, k1) …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

KEY_BYTES = 16


class PageRef(NamedTuple):
    """The name of a page's content."""

    group: int
    key: bytes
    """[16] chained hash up to the end of the page."""


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What is known of a page without its bytes."""

    ref: PageRef
    parent: bytes
    """[16] key of the page before it, or of the namespace."""
    index: int
    """Position of its first token, in pages."""
    tokens: bytes
    """[page_len] int32, little-endian: compared on load, so that not even equal hashes would mix contents up."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page and its bytes, as the executor exported them."""

    facts: PageFacts
    content: bytes | memoryview

    @property
    def num_bytes(self) -> int:
        """Bytes of content."""
        return memoryview(self.content).nbytes
