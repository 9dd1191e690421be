"""Claims: whatever comes and goes, a claimed path loses a token only when nothing that is not claimed could go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.base.clock import FakeClock
from trivium.cache.accounting import check
from trivium.cache.claims import Claim
from trivium.cache.evict import ORDERS
from trivium.cache.kv_cache import KVCache
from trivium.cache.radix import RadixTree
from trivium.cache.spec import KVGroup, KVSpec


@dataclass(frozen=True)
class Run:
    """A request, and who claims what it leaves behind."""

    tokens: list[int]
    whose: int | None


@dataclass(frozen=True)
class End:
    """A program ends."""

    whose: int


paths = st.lists(st.integers(0, 1), min_size=1, max_size=14)
runs = st.builds(Run, tokens=paths, whose=st.none() | st.integers(0, 2))
stories = st.lists(runs | runs | runs | st.builds(End, whose=st.integers(0, 2)), min_size=3, max_size=25)


@settings(max_examples=150, deadline=None)
@given(
    story=stories,
    page_len=st.sampled_from([1, 3, 4]),
    num_tokens=st.integers(16, 40),
    eviction=st.sampled_from(sorted(ORDERS)),
)
def test_a_claimed_path_is_cut_last(story: list[Run | End], page_len: int, num_tokens: int, eviction: str) -> None:
    spec = KVSpec((KVGroup("full", (0,), 8),), page_len)
    num_pages = num_tokens // page_len + 2
    cache = KVCache(spec, [num_pages], prefix_cache=True, eviction=eviction, clock=FakeClock())
    claims = (Claim(), Claim(), Claim())
    known: tuple[dict[tuple[int, ...], None], ...] = ({}, {}, {})
    """What each program has computed since it began, as far as it must still be there."""
    for event in story:
        if isinstance(event, End):
            cache.index.disclaim(claims[event.whose])
            known[event.whose].clear()
            continue
        ids = np.array(event.tokens, np.int32)
        holding = cache.open(ids, (), len(ids) - 1)
        if cache.longest(holding) < len(ids):
            cache.close(holding, None)
            continue
        cache.grow(holding, len(ids))
        cache.confirm_copies(holding)
        claim = None if event.whose is None else claims[event.whose]
        cache.close(holding, ids[holding.locked_len :], claim)
        assert check(cache, []) == []
        lost = [(path, own) for own in known for path in own if held(cache, path) < len(path)]
        assert not lost or not could_go(cache), f"{lost[0][0]} was cut, and what nobody claims was not"
        for path, own in lost:
            del own[path]
        if event.whose is not None:
            known[event.whose][tuple(event.tokens)] = None


def held(cache: KVCache, path: tuple[int, ...]) -> int:
    """Tokens of a path that are cached."""
    return cache.index.match_len(np.array(path, np.int32), (), len(path))


def could_go(cache: KVCache) -> bool:
    """Whether pages are free, or of a leaf that nobody claims and that was there before."""
    assert isinstance(cache.index, RadixTree)
    newest = max((node.last_use for node in cache.index.nodes()), default=0)
    return any(
        node.pages[0] and not node.children and node.claims is None and node.last_use != newest
        for node in cache.index.nodes()
    )
