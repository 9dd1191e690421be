"""The waiting queue keeps two orders; tables, limits and requests keep their promises."""

from __future__ import annotations

import pytest

from support.scheduling import Bench, full_spec, make_request
from trivium.base.clock import FakeClock
from trivium.base.errors import InternalError
from trivium.base.ids import PageId
from trivium.schedule.choose import MAX_OVERTAKEN
from trivium.schedule.limits import Limits
from trivium.schedule.rate import DepartureRate
from trivium.schedule.request import Request
from trivium.schedule.waiting import WaitingQueue


def queued(queue: WaitingQueue, *lengths: int) -> list[Request]:
    requests = [make_request(str(idx), range(length)) for idx, length in enumerate(lengths)]
    for idx, request in enumerate(requests):
        request.sequence, request.end_len = idx, request.limit_len
        queue.add(request)
    return requests


def test_the_queue_knows_the_oldest_and_the_smallest() -> None:
    queue = WaitingQueue(followers_wait=True)
    requests = queued(queue, 9, 3, 6)
    assert queue.oldest() is requests[0]
    assert [ranked[2] for ranked in queue.by_need()] == [requests[1], requests[2], requests[0]]
    queue.remove(requests[0])
    assert queue.oldest() is requests[1]
    queue.add(requests[0])
    assert queue.oldest() is requests[0]
    assert queue.after(0, 5) == requests[1:]
    assert len(queue) == 3


def test_a_request_that_only_scores_needs_no_room_for_a_next_token() -> None:
    request = make_request("a", range(6), max_tokens=0)
    request.end_len = request.limit_len
    assert request.need_len == 6
    request = make_request("b", range(6), max_tokens=1)
    request.end_len = request.limit_len
    assert request.need_len == 6, "the KV of the last token is never needed"
    request = make_request("c", range(6), max_tokens=2)
    request.end_len = request.limit_len
    assert request.need_len == 7


def test_a_request_ends_one_token_beyond_what_the_pool_holds() -> None:
    limits = Limits(full_spec(4), [5], 1000)
    assert limits.end_len(make_request("a", range(10), max_tokens=500)) == 21
    assert limits.end_len(make_request("b", range(10), max_tokens=5)) == 15
    assert limits.end_len(make_request("c", range(20), max_tokens=0)) == 20


def test_the_retry_time_is_at_least_one_second_and_at_most_a_minute() -> None:
    clock = FakeClock()
    rate = DepartureRate(clock)
    assert rate.retry_after_s(1000) == 1.0
    for _ in range(3):
        rate.note()
        clock.advance(100.0)
    assert rate.retry_after_s(1) == pytest.approx(10.0)
    assert rate.retry_after_s(1000) == 60.0


def test_a_waiting_request_holds_nothing() -> None:
    with pytest.raises(InternalError, match="is waiting and holds no pages"):
        _ = make_request("a", [1]).held


def test_a_row_that_differs_from_the_page_list_is_found() -> None:
    bench = Bench(full_spec(), 8)
    request = make_request("a", range(6), max_tokens=5)
    bench.scheduler.add(request)
    bench.step()
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    assert bench.scheduler.check() == []
    request.pages[0][0] = PageId(request.pages[0][0] + 1)
    assert any("differs from its pages" in line for line in bench.scheduler.check())


def test_only_the_oldest_starts_once_it_was_overtaken_too_often() -> None:
    bench = Bench(full_spec(), 12, max_num_seqs=4)
    holder = make_request("holder", range(8), max_tokens=30)
    bench.scheduler.add(holder)
    bench.step()
    big = make_request("big", range(40, 76), max_tokens=2)
    bench.scheduler.add(big)
    small = make_request("small", [1], max_tokens=1)
    bench.scheduler.add(small)
    big.overtaken = MAX_OVERTAKEN
    while holder.finish_reason is None:
        bench.step()
        assert small.output_len == 0
    bench.run()
    assert (small.output_len, big.output_len) == (1, 2)


def test_several_starts_in_one_step_do_not_overtake_the_oldest_once_too_often() -> None:
    bench = Bench(full_spec(), 12, max_num_seqs=8)
    holder = make_request("holder", range(8), max_tokens=30)
    bench.scheduler.add(holder)
    bench.step()
    big = make_request("big", range(40, 76), max_tokens=2)
    bench.scheduler.add(big, *[make_request(f"small{idx}", [idx], max_tokens=1) for idx in range(4)])
    big.overtaken = MAX_OVERTAKEN - 2
    bench.step()
    assert big.overtaken == MAX_OVERTAKEN
    bench.run()
    assert big.output_len == 2
