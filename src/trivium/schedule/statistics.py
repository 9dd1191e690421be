"""Counters of the scheduler, and their summary with the state of the page pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivium.cache.census import count_namespaces, unused_bytes
from trivium.cache.kv_cache import KVCache
from trivium.cache.pins import Pins
from trivium.schedule.decision import SchedulerStats
from trivium.schedule.output_estimate import OutputEstimate
from trivium.schedule.recorder import Recorder
from trivium.schedule.request import Request


@dataclass(slots=True)
class Counters:
    """What is counted since the start."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_refused: int = 0


def summarize(
    counters: Counters,
    recorder: Recorder,
    estimate: OutputEstimate,
    cache: KVCache,
    running: Sequence[Request],
    num_waiting: int,
) -> SchedulerStats:
    """Put counters, sums over timelines and pools together.

    Cost: O(running requests).
    """
    total = sum(pool.num_pages for pool in cache.pools)
    free = sum(pool.num_free for pool in cache.pools)
    evictable = sum(pool.num_evictable for pool in cache.pools)
    return SchedulerStats(
        num_waiting=num_waiting,
        num_running=len(running),
        pages_total=total,
        pages_used=total - free - evictable,
        pages_cached=sum(pool.num_cached for pool in cache.pools),
        pages_evictable=evictable,
        pages_free=free,
        queried_tokens=counters.queried_tokens,
        hit_tokens=counters.hit_tokens,
        num_preemptions=counters.num_preemptions,
        num_finished=counters.num_finished,
        num_aborted=counters.num_aborted,
        num_refused=counters.num_refused,
        waste=_waste(cache, running),
        pages_evicted=cache.num_evicted,
        waiting_by_reason=recorder.count_waiting(num_waiting),
        waited_seconds=recorder.waited_seconds,
        cached_tokens=recorder.cached_tokens,
        preemptions=recorder.preemptions,
        output_len_mean=estimate.mean_len,
        output_len_error=estimate.mean_error,
    )


def _waste(cache: KVCache, running: Sequence[Request]) -> float:
    """Return the share of the bytes in page tables that hold no token."""
    page_len = cache.spec.page_len
    slots = unused = 0
    for request in running:
        for group, pages, out in zip(cache.spec.groups, request.pages, request.held.released, strict=True):
            held = len(pages) - out
            slots += held * page_len * group.bytes_per_token
            unused += (len(pages) * page_len - request.computed_len) * group.bytes_per_token
    return unused / slots if slots else 0.0


def describe_cache(
    stats: SchedulerStats, cache: KVCache, pins: Pins, running: Sequence[Request], eviction: str
) -> dict[str, object]:
    """Describe a cache for people, as JSON-like values.

    Cost: O(nodes of the prefix index).
    """
    namespaces = count_namespaces(cache)
    page_len = cache.spec.page_len
    wasted = unused_bytes(cache, [(each.computed_len, len(each.pages[0]) * page_len) for each in running])
    reserved = sum(
        (pool.num_pages - pool.num_free) * page_len * group.bytes_per_token
        for group, pool in zip(cache.spec.groups, cache.pools, strict=True)
    )
    return {
        "eviction": eviction,
        "page_len": page_len,
        "nodes": sum(int(str(each["nodes"])) for each in namespaces),
        "tokens": sum(int(str(each["tokens"])) for each in namespaces),
        "pages": {
            "total": stats.pages_total,
            "free": stats.pages_free,
            "used": stats.pages_used,
            "evictable": stats.pages_evictable,
            "cached": stats.pages_cached,
            "pinned": pins.num_pages,
        },
        "evicted_pages": stats.pages_evicted,
        "queried_tokens": stats.queried_tokens,
        "hit_tokens": stats.hit_tokens,
        "hit_rate": stats.hit_tokens / stats.queried_tokens if stats.queried_tokens else 0.0,
        "reserved_bytes": reserved,
        "wasted_bytes": wasted,
        "waste": wasted / reserved if reserved else 0.0,
        "namespaces": namespaces,
        "pins": [
            {"pin_id": pin.pin_id, "tokens": pin.holding.locked_len, "expires_in_s": pins.expires_in_s(pin)}
            for pin in pins
        ],
    }
