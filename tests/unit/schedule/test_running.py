"""Granting tokens when pages are short."""

from __future__ import annotations

import numpy as np

from support.scheduling import full_spec, make_request
from trivium.cache.kv_cache import KVCache
from trivium.schedule.adapter_slots import AdapterSlots
from trivium.schedule.below import NothingBelow
from trivium.schedule.request import Request, RequestState
from trivium.schedule.running import RunningSet, StepDraft
from trivium.schedule.timeline import PreemptionKind


def start(running: RunningSet, cache: KVCache, name: str, length: int) -> Request:
    request = make_request(name, range(length))
    request.end_len = request.limit_len
    running.start(request, cache.open(np.zeros(0, np.int32), (), 0))
    return request


def test_a_chunk_is_shortened_to_the_pages_that_are_left() -> None:
    cache = KVCache(full_spec(4), [3], prefix_cache=True)
    running = RunningSet(cache, 2, NothingBelow(), AdapterSlots(1))
    request = start(running, cache, "a", 30)
    draft = StepDraft(64, 4)
    running.grant(draft, request, 30)
    assert (draft.entries[request].num_tokens, draft.tokens_left) == (12, 52)


def test_only_later_started_requests_without_a_part_in_the_step_make_room() -> None:
    cache = KVCache(full_spec(4), [3], prefix_cache=True)
    running = RunningSet(cache, 3, NothingBelow(), AdapterSlots(1))
    first, second, third = (start(running, cache, name, 12) for name in "abc")
    for request in (first, second, third):
        cache.grow(request.held, 4)
        request.computed_len = 4
    draft = StepDraft(64, 4)
    running.grant(draft, second, 8)
    assert draft.entries[second].num_tokens == 4
    assert third.state is RequestState.WAITING
    assert (running.preempted, third.num_preemptions) == ([(third, 4, PreemptionKind.RECOMPUTE)], 1)
    running.grant(draft, first, 8)
    assert first not in draft.entries, "the second has its part already, and keeps it"
    assert second.state is RequestState.RUNNING
