"""Pages for tests of the tiers: chained keys, tokens, and contents that can be told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from trivium.tiers.page import KEY_BYTES, PageFacts, PageRef, StoredPage

PAGE_LEN = 4
FACTS: Mapping[str, object] = {"model": "tiny", "kv": "f32"}
CONTENT_BYTES = 100


def facts_of(number: int, *, group: int = 0, index: int = 0) -> PageFacts:
    """Facts of the page `number`, whose parent is the one before."""
    tokens = np.arange(number * PAGE_LEN, (number + 1) * PAGE_LEN, dtype="<i4").tobytes()
    return PageFacts(PageRef(group, _key(number)), _key(number - 1), index, tokens)


def page_of(number: int, *, group: int = 0, num_bytes: int = CONTENT_BYTES) -> StoredPage:
    """The page `number` with content that only it has."""
    return StoredPage(facts_of(number, group=group), content_of(number, group=group, num_bytes=num_bytes))


def content_of(number: int, *, group: int = 0, num_bytes: int = CONTENT_BYTES) -> bytes:
    """Bytes that only this page has."""
    return np.random.default_rng((number, group)).bytes(num_bytes)


def _key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=KEY_BYTES).digest()
