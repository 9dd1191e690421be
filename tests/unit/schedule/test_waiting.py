"""The waiting queue keeps two orders; tables, limits and requests keep their promises."""

from __future__ import annotations

import pytest

from support.scheduling import Bench, full_spec, make_request
from trivium.base.clock import FakeClock
from trivium.base.errors import InternalError
from trivium.base.ids import PageId
from trivium.schedule.fair import FairShare
from trivium.schedule.limits import Limits
from trivium.schedule.orders import ByKey
from trivium.schedule.rate import DepartureRate
from trivium.schedule.request import Request
from trivium.schedule.waiting import WaitingQueue


def make_queue(fair: FairShare | None = None) -> WaitingQueue:
    return WaitingQueue(lambda: ByKey(lambda request: request.need_len), lambda request: request.need_len, fair)


def queued(queue: WaitingQueue, *lengths: int) -> list[Request]:
    requests = [make_request(str(idx), range(length)) for idx, length in enumerate(lengths)]
    for idx, request in enumerate(requests):
        request.sequence, request.end_len, request.queued_s = idx, request.limit_len, float(idx)
        queue.add(request)
    return requests


def test_the_queue_knows_the_oldest_the_due_and_the_smallest() -> None:
    queue = make_queue()
    requests = queued(queue, 9, 3, 6)
    assert queue.oldest() is requests[0]
    assert queue.due(2.0) == requests[:2]
    assert queue.by_need() == list(queue.offers((), 0.0)) == [requests[1], requests[2], requests[0]]
    queue.remove(requests[0])
    assert queue.oldest() is requests[1]
    queue.add(requests[0])
    assert queue.oldest() is requests[0]
    assert queue.after(0, 5) == requests[1:]
    assert len(queue) == 3


def test_a_held_request_waits_in_no_line() -> None:
    queue = make_queue()
    requests = queued(queue, 9, 3)
    requests[0].held_by = requests[1]
    queue.withdraw(requests[0])
    assert (len(queue), queue.num_ready, queue.num_held) == (2, 1, 1)
    assert queue.oldest() is requests[1]
    queue.remove(requests[0])
    assert (len(queue), queue.num_held) == (1, 0)
    queue.add(requests[0])


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


def test_only_the_oldest_starts_once_it_is_due() -> None:
    bench = Bench(full_spec(), 12, max_num_seqs=4, aging_s=5.0)
    holder = make_request("holder", range(8), max_tokens=30)
    bench.scheduler.add(holder)
    bench.step()
    big = make_request("big", range(40, 76), max_tokens=2)
    bench.scheduler.add(big)
    bench.clock.advance(5.5)
    small = make_request("small", [1], max_tokens=1)
    bench.scheduler.add(small)
    while holder.finish_reason is None:
        bench.step()
        assert small.output_len == 0
    bench.run()
    assert (small.output_len, big.output_len) == (1, 2)
