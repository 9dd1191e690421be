"""What the scheduler chooses, refuses, records and reports."""

from __future__ import annotations

import numpy as np
import pytest

from support.scheduling import Bench, full_spec, make_request, mixed_spec, output_of
from support.scripted_executor import tokens_alone
from trivium.base.errors import (
    CapacityError,
    InternalError,
    InvalidParameterError,
    PromptTooLongError,
    RequestTooLargeError,
)
from trivium.base.ids import FinishReason, TokenId
from trivium.schedule.decision import Outcome
from trivium.schedule.request import RequestState

SPEC = full_spec(4)


def test_a_step_packs_decodes_first_and_then_the_chunk() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=6)
    decoding = make_request("a", [1, 2, 3], max_tokens=9)
    bench.scheduler.add(decoding)
    bench.step()
    bench.scheduler.add(make_request("b", [7, 8, 9, 10, 11, 12, 13]))
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    step = scheduled.step
    assert [entry.request.request_id for entry in scheduled.entries] == ["a", "b"]
    assert step.token_ids.tolist() == [decoding.tokens[-1], 7, 8, 9, 10, 11]
    assert step.positions.tolist() == [3, 0, 1, 2, 3, 4]
    assert (step.starts.tolist(), step.kv_lens.tolist()) == ([0, 1, 6], [4, 5])
    assert (step.logit_rows.tolist(), step.mask_row.tolist()) == ([0], [-1])
    assert step.reaches.tolist() == [12, 11]
    assert (step.page_tables[0] >= 0).sum(axis=1).tolist() == [1, 2]
    assert step.page_tables[0][0, 1] == -1
    for array in (step.token_ids, step.positions, step.starts, step.kv_lens, step.logit_rows, step.page_tables[0]):
        assert array.dtype == np.int32
    assert step.copies.shape == (0, 3)
    assert step.adapter_slot.tolist() == step.state_slot.tolist() == [-1, -1]


def test_a_request_draws_when_its_chunk_completes_the_known_tokens() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=4)
    request = make_request("a", range(10), max_tokens=2)
    bench.scheduler.add(request)
    draws = []
    while (scheduled := bench.step()) is not None:
        draws += [entry.draws for entry in scheduled.entries]
    assert draws == [False, False, True, True]
    assert output_of(request) == tokens_alone(SPEC, range(10), 2)
    assert request.finish_reason is FinishReason.LENGTH


def test_the_outcome_says_why_a_request_ends() -> None:
    bench = Bench(SPEC, 64)
    request = make_request("a", [1, 2], max_tokens=9)
    bench.scheduler.add(request)
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    assert bench.scheduler.commit(scheduled, [Outcome((TokenId(5),), FinishReason.STOP)]) == [request]
    assert (request.finish_reason, request.state) == (FinishReason.STOP, RequestState.FINISHED)
    assert not bench.scheduler.has_work


def test_drawing_nothing_is_an_internal_error() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("a", [1, 2]))
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    with pytest.raises(InternalError, match="drew nothing"):
        bench.scheduler.commit(scheduled, [Outcome()])


def test_a_step_is_committed_once_and_before_the_next() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("a", [1, 2], max_tokens=5))
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    with pytest.raises(InternalError, match="neither committed nor discarded"):
        bench.scheduler.next()
    bench.scheduler.commit(scheduled, [Outcome((TokenId(1),))])
    with pytest.raises(InternalError, match="not the one in flight"):
        bench.scheduler.commit(scheduled, [Outcome((TokenId(1),))])
    with pytest.raises(InternalError, match="not the one in flight"):
        bench.scheduler.discard(scheduled)


def test_no_more_than_max_num_seqs_run() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=3)
    for idx in range(7):
        bench.scheduler.add(make_request(str(idx), [idx, 1, 2]))
    while bench.step() is not None:
        assert bench.scheduler.stats().num_running <= 3


def test_no_step_exceeds_the_token_budget() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=8, max_num_batched_tokens=5)
    for idx in range(8):
        bench.scheduler.add(make_request(str(idx), range(idx, idx + 9)))
    while (scheduled := bench.step()) is not None:
        assert scheduled.step.num_tokens <= 5


def test_prompts_that_can_never_run_are_refused_with_the_numbers() -> None:
    bench = Bench(SPEC, 8, max_model_len=40)
    with pytest.raises(PromptTooLongError, match=r"41 tokens and 4 may .* 40 tokens"):
        bench.scheduler.add(make_request("a", range(41)))
    with pytest.raises(PromptTooLongError, match="38 tokens and 4 may"):
        bench.scheduler.add(make_request("b", range(38)))
    with pytest.raises(PromptTooLongError):
        bench.scheduler.add(make_request("c", range(40), max_tokens=1))
    with pytest.raises(RequestTooLargeError, match="33 tokens and the KV memory holds 32"):
        bench.scheduler.add(make_request("d", range(33)))
    assert bench.scheduler.stats().num_refused == 4
    assert not bench.scheduler.has_work


def test_a_full_queue_says_when_to_come_back() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=1, max_queue=2)
    bench.scheduler.add(make_request("a", [1]), make_request("b", [2]), make_request("c", [3], max_tokens=1))
    with pytest.raises(CapacityError) as caught:
        bench.scheduler.add(make_request("d", [4]))
    assert caught.value.retry_after_s == 1.0
    bench.run()
    bench.scheduler.add(make_request("e", [5]))


def test_the_retry_time_follows_the_measured_rate() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=1, max_queue=40)
    for idx in range(4):
        bench.scheduler.add(make_request(str(idx), [idx], max_tokens=1))
        bench.step()
        bench.clock.advance(10.0)
    bench.scheduler.add(*[make_request(f"w{idx}", [idx]) for idx in range(40)])
    with pytest.raises(CapacityError) as caught:
        bench.scheduler.add(make_request("x", [1]), make_request("y", [1]))
    assert caught.value.retry_after_s == pytest.approx(0.1 * 40 / (4 / 40.0))


def test_choices_are_queued_together_or_not_at_all() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=1, max_queue=2)
    bench.scheduler.add(make_request("first", [1, 2]))
    group = [make_request(f"a#{choice}", [1, 2], choice=choice) for choice in range(3)]
    with pytest.raises(CapacityError, match="3 more answers do not fit: 1 wait already, of at most 2"):
        bench.scheduler.add(*group)
    assert bench.scheduler.stats().num_waiting == 1


def test_more_choices_than_can_ever_be_held_are_the_callers_fault() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=1, max_queue=2)
    group = [make_request(f"a#{choice}", [1, 2], choice=choice) for choice in range(4)]
    with pytest.raises(InvalidParameterError, match="holds at most 3") as caught:
        bench.scheduler.add(*group)
    assert caught.value.param == "n"
    assert not bench.scheduler.has_work


def test_later_choices_wait_for_the_prompt_of_the_first_and_then_hit() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=8)
    leader = make_request("a", range(20))
    followers = [make_request(f"a#{choice}", range(20), choice=choice) for choice in (1, 2)]
    bench.scheduler.add(leader, *followers)
    while leader.output_len == 0:
        scheduled = bench.step()
        assert scheduled is not None
        assert [entry.request for entry in scheduled.entries] == [leader]
    bench.run()
    assert [follower.cached_len for follower in followers] == [19, 19]
    assert bench.executor.num_tokens_run == 20 + 2 + 3 * 3


def test_without_a_prefix_cache_later_choices_do_not_wait() -> None:
    bench = Bench(SPEC, 64, prefix_cache=False)
    leader = make_request("a", range(8))
    follower = make_request("a#1", range(8), choice=1)
    bench.scheduler.add(leader, follower)
    scheduled = bench.step()
    assert scheduled is not None
    assert len(scheduled.entries) == 2
    bench.run()
    assert (output_of(follower), follower.cached_len) == (output_of(leader), 0)


def test_later_choices_go_on_when_the_first_is_aborted() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=8)
    leader = make_request("a", range(20))
    follower = make_request("a#1", range(20), choice=1)
    bench.scheduler.add(leader, follower)
    bench.step()
    bench.scheduler.abort(leader)
    bench.run()
    assert output_of(follower) == tokens_alone(SPEC, range(20), 4)
    assert follower.cached_len == 8


def test_a_request_for_no_tokens_only_runs_its_prompt() -> None:
    bench = Bench(SPEC, 64)
    request = make_request("a", range(6), max_tokens=0, prompt_logprobs=1)
    bench.scheduler.add(request)
    scheduled = bench.step()
    assert scheduled is not None
    (entry,) = scheduled.entries
    assert (entry.draws, entry.num_rows, entry.scored_start) == (False, 5, 0)
    assert (request.finish_reason, output_of(request)) == (FinishReason.LENGTH, [])
    assert bench.step() is None


def test_prompt_rows_are_scored_in_blocks_of_the_row_limit() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=32, max_logit_rows=4)
    request = make_request("a", range(15), prompt_logprobs=1, max_tokens=1)
    bench.scheduler.add(request)
    rows = []
    while (scheduled := bench.step()) is not None:
        rows.append(len(scheduled.step.logit_rows))
    assert bench.scored["a"] == list(range(14))
    assert max(rows) == 4
    assert output_of(request) == tokens_alone(SPEC, range(15), 1)


def test_scoring_starts_where_it_was_asked_to() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("a", range(10), prompt_logprobs=1, prompt_logprob_start=7))
    bench.run()
    assert bench.scored["a"] == [6, 7, 8]


def test_scoring_requests_share_the_rows_with_drawing_ones() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=4)
    for idx in range(6):
        bench.scheduler.add(make_request(str(idx), range(idx, idx + 12), prompt_logprobs=1 if idx % 2 else None))
    while (scheduled := bench.step()) is not None:
        assert len(scheduled.step.logit_rows) <= 4
    assert all(bench.scored[str(idx)] == list(range(11)) for idx in (1, 3, 5))


def test_a_step_that_was_not_executed_leaves_nothing_behind() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("warm", range(10)))
    bench.run()
    request = make_request("a", [*range(9), 40, 41], max_tokens=3)
    bench.scheduler.add(request)
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    assert len(scheduled.step.copies) == 1
    bench.scheduler.discard(scheduled)
    assert bench.scheduler.check() == []
    assert (request.state, request.computed_len) == (RequestState.WAITING, 0)
    bench.run()
    assert output_of(request) == tokens_alone(SPEC, [*range(9), 40, 41], 3)
    bench.assert_idle_pages()


def test_several_accepted_tokens_at_once_are_run_as_one_chunk() -> None:
    bench = Bench(SPEC, 64)
    request = make_request("a", [1, 2, 3], max_tokens=6)
    bench.scheduler.add(request)
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    bench.executor.forward(scheduled.step)
    first, forced = tokens_alone(SPEC, [1, 2, 3], 1)[0], [7, 8]
    bench.scheduler.commit(scheduled, [Outcome(tuple(map(TokenId, [first, *forced])))])
    following = bench.step()
    assert following is not None
    assert following.entries[0].num_tokens == 3
    assert request.tokens[6] == tokens_alone(SPEC, [1, 2, 3, first, *forced], 1)[0]


def test_statistics_tell_pages_hits_and_waste() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("a", range(10), max_tokens=5))
    bench.step()
    stats = bench.scheduler.stats()
    assert (stats.pages_used, stats.pages_cached, stats.pages_free) == (3, 3, 61)
    assert stats.waste == pytest.approx(2 / 12)
    bench.run()
    bench.scheduler.add(make_request("b", range(10), max_tokens=5))
    bench.run()
    stats = bench.scheduler.stats()
    assert (stats.queried_tokens, stats.hit_tokens, stats.num_finished) == (20, 9, 2)
    assert stats.waste == 0.0


def test_waste_counts_only_pages_inside_the_window() -> None:
    bench = Bench(mixed_spec(4, 6), 64)
    bench.scheduler.add(make_request("a", range(17), max_tokens=5))
    bench.step()
    # 5 full pages and the window's [12, 17) of pages 3 and 4: 7 pages of 4 slots; positions 17, 18, 19 unused twice.
    assert bench.scheduler.stats().waste == pytest.approx(6 / 28)


def test_an_idle_scheduler_chooses_nothing() -> None:
    bench = Bench(SPEC, 4)
    assert bench.scheduler.next() is None
    assert not bench.scheduler.has_work


def test_a_request_that_fits_only_by_its_cached_part_is_found_behind_others() -> None:
    bench = Bench(SPEC, 30, max_num_seqs=8)
    shared = list(range(60))
    bench.scheduler.add(make_request("holder", [*shared, 1], max_tokens=30))
    bench.step()
    bench.step()
    blocked = [make_request(f"b{idx}", range(100 + idx, 161 + idx)) for idx in range(5)]
    bench.scheduler.add(*blocked)
    bench.step()
    lucky = make_request("lucky", [*shared, 2, 3, 4], max_tokens=1)
    bench.scheduler.add(lucky)
    for _ in range(6):
        bench.step()
    assert lucky.finish_reason is FinishReason.LENGTH
    assert lucky.cached_len == 60
    assert all(request.output_len == 0 for request in blocked)
    bench.run()


def test_followers_are_skipped_while_their_leader_prefills_and_others_start() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=8)
    leader = make_request("a", range(40))
    follower = make_request("a#1", range(40), choice=1)
    bench.scheduler.add(leader, follower)
    bench.scheduler.add(make_request("other", range(50, 95)))
    scheduled = bench.step()
    assert scheduled is not None
    assert [entry.request.request_id for entry in scheduled.entries] == ["a", "other"]
    bench.run()


def test_decodes_run_in_the_order_of_their_start_when_the_budget_is_short() -> None:
    bench = Bench(SPEC, 64, max_num_batched_tokens=2)
    requests = [make_request(str(idx), [idx], max_tokens=5) for idx in range(4)]
    bench.scheduler.add(*requests)
    bench.run()
    for idx, request in enumerate(requests):
        assert output_of(request) == tokens_alone(SPEC, [idx], 5)


def test_an_aborted_request_is_not_aborted_twice() -> None:
    bench = Bench(SPEC, 64)
    request = make_request("a", [1])
    bench.scheduler.add(request)
    bench.scheduler.abort(request, FinishReason.ERROR)
    bench.scheduler.abort(request)
    assert (request.finish_reason, bench.scheduler.stats().num_aborted) == (FinishReason.ERROR, 1)


def test_a_replayed_answer_reports_no_more_cached_tokens_than_its_prompt_has() -> None:
    bench = Bench(SPEC, 64)
    first = make_request("first", range(6), max_tokens=8)
    bench.scheduler.add(first)
    bench.run()
    replayed = make_request("replayed", range(6), max_tokens=8)
    replayed.tokens.extend(first.tokens[6:10])
    bench.scheduler.add(replayed)
    bench.run()
    assert replayed.tokens == first.tokens
    assert replayed.cached_len == 5


def test_a_start_leaves_every_running_request_a_page() -> None:
    bench = Bench(SPEC, 8, max_num_seqs=8)
    running = [make_request(str(idx), [idx, 1], max_tokens=20) for idx in range(2)]
    bench.scheduler.add(*running)
    bench.step()
    tight = make_request("tight", range(20), max_tokens=1)
    bench.scheduler.add(tight)
    bench.step()
    assert not tight.computed_len, "5 of 6 pages would leave 1 for 2 requests"
    bench.scheduler.add(make_request("snug", range(50, 66), max_tokens=1))
    bench.step()
    assert bench.scheduler.stats().num_finished == 1, "4 of 6 pages leave one for each"
    bench.run()


def test_a_seat_shows_nothing_of_who_sat_there_before() -> None:
    bench = Bench(SPEC, 64, max_num_seqs=2)
    bench.scheduler.add(make_request("long", range(40), max_tokens=1))
    bench.run()
    bench.scheduler.add(make_request("short", [90, 91]), make_request("other", range(60, 90)))
    scheduled = bench.step()
    assert scheduled is not None
    assert [int((row >= 0).sum()) for row in scheduled.step.page_tables[0]] == [
        len(entry.request.pages[0]) for entry in scheduled.entries
    ]
    bench.run()


def test_pages_whose_copies_were_not_executed_are_never_entered() -> None:
    bench = Bench(SPEC, 64)
    bench.scheduler.add(make_request("warm", range(10), max_tokens=1))
    bench.run()
    request = make_request("a", [*range(9), 40])
    bench.scheduler.add(request)
    assert bench.scheduler.next() is not None
    index = request.held.lock
    (tail,) = index.children.values()
    cache, dropped = bench.scheduler._cache, ([],)
    cache.index._shrinker.cut(tail, 0, dropped)  # type: ignore[attr-defined]
    cache.pools[0].drop_all(*dropped)
    bench.scheduler.abort(request)
    assert bench.scheduler.check() == []
    assert bench.scheduler.stats().pages_cached == 2
