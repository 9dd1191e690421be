"""Faults that users of other servers met, tried on the scheduler with the scripted executor."""

from __future__ import annotations

import itertools
import random

import pytest

from support.scheduling import Bench, full_spec, make_request, mixed_spec, output_of
from support.scripted_executor import tokens_alone
from trivium.base.errors import RequestTooLargeError
from trivium.base.ids import FinishReason
from trivium.schedule.request import Request

SPEC = full_spec(4)


def common_prefix(left: list[int], right: list[int]) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    return sum(1 for _ in pairs)


@pytest.mark.parametrize("page_len", [4, 16])
def test_prompt_scores_are_complete_whatever_is_cached(page_len: int) -> None:
    """Case D02: prompts around page boundaries, scored twice and in both orders, in chunks."""
    for order in (1, -1):
        bench = Bench(full_spec(page_len), 128, max_num_batched_tokens=7)
        for round_ in range(2):
            for length in [page_len - 1, page_len, page_len + 1, 3 * page_len + 1][::order]:
                name = f"{length}/{round_}"
                request = make_request(name, range(length), prompt_logprobs=1)
                bench.scheduler.add(request)
                bench.run()
                assert bench.scored[name] == list(range(length - 1)), "every row is scored once, in order"
                assert request.cached_len == 0, "scored rows are computed, never taken from the cache"
                assert output_of(request) == tokens_alone(full_spec(page_len), range(length), 4)


def test_prompt_scores_from_a_later_start_use_the_cache_before_it() -> None:
    """Case D02."""
    bench = Bench(SPEC, 64)
    for name in ("cold", "warm"):
        request = make_request(name, range(20), prompt_logprobs=1, prompt_logprob_start=13)
        bench.scheduler.add(request)
        bench.run()
        assert bench.scored[name] == list(range(12, 19))
    assert request.cached_len == 12


def test_similar_prompts_never_share_more_than_their_common_prefix() -> None:
    """Case D03: token pairs that collide in weak hashes, swaps, same multisets, last page only, random ones."""
    base = [(idx * 37) % 400 + 40 for idx in range(16)]
    swapped, shifted, last = base.copy(), base.copy(), base.copy()
    swapped[5], swapped[6] = base[6], base[5]
    shifted[5], shifted[6] = base[5] + 31, base[6] - 31
    last[15] += 1
    rng = random.Random(7)  # noqa: S311
    prompts = [base, swapped, shifted, last, sorted(base), base]
    prompts += [[rng.randint(0, 3) for _ in range(rng.randint(1, 12))] for _ in range(300)]
    bench = Bench(SPEC, 64)
    sent: list[list[int]] = []
    for idx, prompt in enumerate(prompts):
        request = make_request(str(idx), prompt, max_tokens=2)
        bench.scheduler.add(request)
        bench.run()
        longest = max((common_prefix(prompt, other) for other in sent), default=0)
        assert request.cached_len <= min(longest, len(prompt) - 1)
        assert output_of(request) == tokens_alone(SPEC, prompt, 2)
        sent.append([*request.tokens])


def test_a_prompt_is_cold_once_and_then_hits_all_but_its_last_token() -> None:
    """Case A17."""
    bench = Bench(full_spec(16), 64, max_num_batched_tokens=64)
    requests = [make_request(name, range(300)) for name in ("cold", "warm")]
    for request in requests:
        bench.scheduler.add(request)
        bench.run()
    assert [request.cached_len for request in requests] == [0, 299]


@pytest.mark.parametrize("spec", [full_spec(4), mixed_spec(4, 6)], ids=["full", "mixed"])
def test_a_prefix_in_use_survives_200_prompts_that_force_eviction(spec: object) -> None:
    """Case D04, with partial matches that split the used node."""
    bench = Bench(spec, 24, max_num_seqs=3)  # type: ignore[arg-type]
    stream = make_request("stream", range(12), max_tokens=50)
    bench.scheduler.add(stream)
    others = []
    for idx in range(200):
        prompt = [*range(idx % 12), 100 + idx, 101 + idx, *range(8)]
        others.append(make_request(str(idx), prompt, max_tokens=1))
        bench.scheduler.add(others[-1])
        if idx % 4 == 0:
            bench.step()
    bench.run()
    assert output_of(stream) == tokens_alone(bench.executor.kv_spec, range(12), 50)
    for other in others:
        prompt = other.tokens[: other.prompt_len]
        assert output_of(other) == tokens_alone(bench.executor.kv_spec, prompt, 1)
    bench.assert_idle_pages()


def test_answers_that_ended_early_leave_only_what_was_computed() -> None:
    """Case D05: 20 answers end after a few tokens, by their outcome; then prompts that go on from them."""
    bench = Bench(SPEC, 200)
    warm = [make_request(f"w{idx}", [1, 2, 3, idx], max_tokens=20) for idx in range(20)]
    bench.scheduler.add(*warm)
    for _ in range(6):
        bench.step()
    for request in warm:
        bench.scheduler.abort(request, FinishReason.STOP)
    for request in warm:
        prompt = [*request.tokens, 9]
        target = make_request(f"t{request.request_id}", prompt)
        bench.scheduler.add(target)
        bench.run()
        assert output_of(target) == tokens_alone(SPEC, prompt, 4)
        assert target.cached_len <= len(request.tokens)
    bench.assert_idle_pages()


def test_a_request_bigger_than_the_pool_is_refused_or_ends_and_blocks_nobody() -> None:
    """Case E01: a pool of 512 tokens."""
    bench = Bench(full_spec(16), 32, max_num_batched_tokens=256, max_num_seqs=8)
    with pytest.raises(RequestTooLargeError, match=r"1000 tokens .* 512"):
        bench.scheduler.add(make_request("huge", range(1000)))
    growing = make_request("growing", range(300), max_tokens=1000)
    short = make_request("short", [5, 6], max_tokens=3)
    bench.scheduler.add(growing)
    bench.scheduler.add(short)
    for _ in range(6):
        bench.step()
    assert short.finish_reason is FinishReason.LENGTH
    bench.run()
    assert growing.finish_reason is FinishReason.LENGTH
    assert growing.target_len == 513
    assert output_of(growing) == tokens_alone(full_spec(16), range(300), 213)


def test_eight_choices_in_a_pool_for_two_all_end() -> None:
    """Case E01."""
    bench = Bench(full_spec(16), 16, max_num_seqs=8)
    leader = make_request("a", range(60), max_tokens=100)
    group = [leader, *(make_request(f"a#{k}", range(60), max_tokens=100, choice=k) for k in range(1, 8))]
    bench.scheduler.add(*group)
    bench.run()
    expected = tokens_alone(full_spec(16), range(60), 100)
    assert all(output_of(request) == expected for request in group)
    bench.assert_idle_pages()


def test_a_long_prefill_lets_a_short_request_and_running_streams_through() -> None:
    """Case E02: a 7000-token prompt, then a 20-token one; streams decode meanwhile."""
    bench = Bench(full_spec(16), 700, max_num_batched_tokens=512, max_num_seqs=8)
    streams = [make_request(f"s{idx}", [idx, 1], max_tokens=100) for idx in range(3)]
    bench.scheduler.add(*streams)
    bench.step()
    long = make_request("long", [idx % 977 for idx in range(7000)], max_tokens=2)
    other = make_request("other", [idx % 953 for idx in range(3000)], max_tokens=2)
    bench.scheduler.add(long)
    bench.scheduler.add(other)
    dry_step(bench)
    short = make_request("short", range(20), max_tokens=2)
    bench.scheduler.add(short)
    before, outputs = long.computed_len, [stream.output_len for stream in streams]
    num_steps = 0
    while short.output_len == 0:
        dry_step(bench)
        num_steps += 1
    assert num_steps == 1
    assert long.computed_len - before < (7000 - before) / 4
    assert [stream.output_len for stream in streams] == [count + num_steps for count in outputs]
    while long.output_len == 0:
        computed = long.computed_len
        dry_step(bench)
        assert long.computed_len - computed >= 254, "the oldest prefill gets half of what is left"


def dry_step(bench: Bench) -> None:
    """Step without computing anything: who gets tokens does not depend on which."""
    scheduled = bench.scheduler.next()
    assert scheduled is not None
    bench.commit_drawn(scheduled, [1] * len(scheduled.step.logit_rows))


@pytest.mark.parametrize("spec", [full_spec(4), mixed_spec(4, 10)], ids=["full", "mixed"])
def test_preempted_requests_lose_and_double_nothing(spec: object) -> None:
    """Case E03: a pool for about four requests, sixteen at once."""
    bench = Bench(spec, 40, max_num_seqs=16)  # type: ignore[arg-type]
    requests = [make_request(str(idx), [idx, 1, 2, 3, idx], max_tokens=33) for idx in range(16)]
    for request in requests:
        bench.scheduler.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert output_of(request) == tokens_alone(bench.executor.kv_spec, request.tokens[:5], 33)
        assert request.finish_reason is FinishReason.LENGTH
    bench.assert_idle_pages()


def test_a_preempted_request_finds_its_own_kv_again() -> None:
    """Case E03: its computed tokens went to the tree first, so that little is computed twice."""
    bench = Bench(SPEC, 16, max_num_seqs=4)
    requests = [make_request(str(idx), [idx, 1, 2, 3, 4], max_tokens=30) for idx in range(4)]
    for request in requests:
        bench.scheduler.add(request)
    bench.run()
    preempted = bench.scheduler.stats().num_preemptions
    assert preempted > 0
    assert bench.executor.num_tokens_run < 4 * 34 + preempted * 34
    assert all(request.cached_len < 5 for request in requests), "what is reported is the first admission's"


def abort_at(bench: Bench, group: list[Request], moment: int) -> None:
    """Abort `group` in one of seven moments of its life."""
    if moment == 0:
        pass
    elif moment < 4:
        for _ in range(moment):
            bench.step()
    elif moment == 4:
        while group[0].output_len < group[0].params.max_tokens - 1:  # type: ignore[operator]
            bench.step()
    else:
        scheduled = bench.scheduler.next()
        assert scheduled is not None
        if moment == 5:
            bench.executor.forward(scheduled.step)
        for request in group:
            bench.scheduler.abort(request)
        if moment == 6:
            bench.executor.forward(scheduled.step)
        bench.commit(scheduled)
    for request in group:
        bench.scheduler.abort(request)


@pytest.mark.parametrize("spec", [full_spec(4), mixed_spec(4, 6)], ids=["full", "mixed"])
def test_aborts_at_any_moment_leak_nothing(spec: object) -> None:
    """Case E04: 200 rounds: queued, in prefill, in decode, at the last token, in flight, with n = 4, with 1 token."""
    bench = Bench(spec, 48, max_num_batched_tokens=6)  # type: ignore[arg-type]
    for round_ in range(200):
        moment = round_ % 7
        prompt = [round_ % 3, *range(13)]
        max_tokens = 1 if round_ % 11 == 0 else 5
        leader = make_request(f"{round_}", prompt, max_tokens=max_tokens)
        group = [leader]
        if round_ % 2:
            group += [make_request(f"{round_}#{k}", prompt, max_tokens=max_tokens, choice=k) for k in range(1, 4)]
        bench.scheduler.add(*group)
        abort_at(bench, group, moment)
        assert bench.scheduler.check() == []
        bench.assert_idle_pages()
    probe = make_request("probe", [0, *range(13)])
    bench.scheduler.add(probe)
    bench.run()
    assert output_of(probe) == tokens_alone(bench.executor.kv_spec, [0, *range(13)], 4)


def test_a_big_request_is_overtaken_until_it_is_due() -> None:
    """A request that fits only alone is passed by, but not for ever, while short ones keep coming."""
    bench = Bench(SPEC, 20, max_num_seqs=8, aging_s=10.0)
    bench.scheduler.add(make_request("first", [1], max_tokens=9))
    bench.step()
    big = make_request("big", range(76), max_tokens=2)
    bench.scheduler.add(big)
    started_s = []
    for idx in range(600):
        bench.scheduler.add(make_request(f"s{idx}", [idx % 50, 3], max_tokens=3 + idx % 5))
        scheduled = bench.step()
        assert scheduled is not None
        if big.computed_len:
            break
        started_s += [bench.clock.now_s()] * sum(entry.is_fresh for entry in scheduled.entries)
        bench.clock.advance(0.25)
    assert 9.5 <= max(started_s) <= 10.0
    bench.run()
    assert output_of(big) == tokens_alone(SPEC, range(76), 2)


def test_a_preempted_request_scores_no_row_twice() -> None:
    """Cases D02 and E03 together."""
    bench = Bench(SPEC, 16, max_num_seqs=4, max_num_batched_tokens=8)
    requests = [make_request(str(idx), [idx, *range(9)], max_tokens=25, prompt_logprobs=1) for idx in range(4)]
    bench.scheduler.add(*requests)
    bench.run()
    assert sum(request.num_preemptions for request in requests) > 0
    assert all(bench.scored[request.request_id] == list(range(9)) for request in requests)
