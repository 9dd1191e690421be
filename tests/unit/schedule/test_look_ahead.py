"""Look-ahead: every token of the tree of prompts is computed once, and the tree of prompts tells who shares what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scheduling import Bench, full_spec, make_request, mixed_spec, output_of
from support.scripted_executor import tokens_alone
from trivium.schedule.prompt_tree import PromptTree
from trivium.schedule.request import Request

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=12)


def least_tokens(prompts: list[list[int]]) -> int:
    """Distinct beginnings of the prompts, and one token for each prompt that is a beginning of an earlier one's."""
    known: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        fresh = {tuple(prompt[: end + 1]) for end in range(len(prompt))} - known
        total += max(len(fresh), 1)
        known |= fresh
    return total


@given(prompts, st.sampled_from([1, 3, 7, 64]), st.sampled_from([1, 4, 16]), st.integers(1, 12))
def test_what_is_computed_is_the_tree_of_prompts_once(
    prompts: list[list[int]], budget: int, page_len: int, num_seats: int
) -> None:
    bench = Bench(
        full_spec(page_len),
        1000,
        max_num_batched_tokens=budget,
        max_num_seqs=num_seats,
        max_logit_rows=64,
        order="fcfs",
    )
    requests = [make_request(str(idx), prompt, max_tokens=0) for idx, prompt in enumerate(prompts)]
    bench.scheduler.add(*requests)
    bench.run()
    # Repeats cost one token each, in whichever order; a prompt inside another may come before or after it.
    repeats = sum(prompts.count(prompt) - 1 for prompt in {tuple(p) for p in prompts} for prompt in [list(prompt)])
    distinct = {tuple(prompt[: end + 1]) for prompt in prompts for end in range(len(prompt))}
    inside = sum(
        any(len(other) > len(prompt) and list(other[: len(prompt)]) == list(prompt) for other in prompts)
        for prompt in {tuple(p) for p in prompts}
    )
    assert len(distinct) + repeats <= bench.executor.num_tokens_run <= len(distinct) + repeats + inside


@pytest.mark.parametrize("spec", [full_spec(16), mixed_spec(16, 20)], ids=["full", "mixed"])
def test_many_that_come_at_once_compute_what_they_share_once(spec: object) -> None:
    """A shared part that is no multiple of the page, at three depths."""
    system = list(range(37))
    documents = [[100 + 7 * number + k % 5 for k in range(21)] for number in range(3)]
    prompts = [[*system, *documents[idx % 3], 40 + idx] for idx in range(12)]
    bench = Bench(spec, 400, max_num_batched_tokens=16, max_num_seqs=12)  # type: ignore[arg-type]
    requests = [make_request(str(idx), prompt, max_tokens=1) for idx, prompt in enumerate(prompts)]
    bench.scheduler.add(*requests)
    bench.run()
    assert bench.executor.num_tokens_run == least_tokens(prompts) == 37 + 3 * 21 + 12
    for request in requests:
        assert output_of(request) == tokens_alone(bench.executor.kv_spec, request.tokens[:-1], 1)


def test_without_look_ahead_each_computes_for_itself() -> None:
    bench = Bench(full_spec(16), 400, max_num_batched_tokens=256, max_num_seqs=12, look_ahead=False)
    bench.scheduler.add(*[make_request(str(idx), [*range(20), 40 + idx], max_tokens=1) for idx in range(4)])
    bench.run()
    assert bench.executor.num_tokens_run == 4 * 21


def test_who_waits_for_a_prefix_is_released_when_its_computer_is_preempted_or_aborted() -> None:
    bench = Bench(full_spec(4), 100, max_num_batched_tokens=8)
    first, second = make_request("first", range(40)), make_request("second", [*range(30), 99])
    bench.scheduler.add(first, second)
    bench.step()
    assert second.held_by is first
    bench.scheduler.abort(first)
    assert second.held_by is None
    bench.run()
    assert output_of(second) == tokens_alone(full_spec(4), [*range(30), 99], 4)


def test_a_held_request_can_be_aborted() -> None:
    bench = Bench(full_spec(4), 100, max_num_batched_tokens=8)
    first, second = make_request("first", range(40)), make_request("second", [*range(30), 99])
    bench.scheduler.add(first, second)
    bench.step()
    bench.scheduler.abort(second)
    assert bench.scheduler.check() == []
    bench.run()
    assert first.output_len == 4


def test_a_better_priority_does_not_wait_for_the_prefix_of_a_worse_one() -> None:
    bench = Bench(full_spec(4), 100, max_num_batched_tokens=8, order="priority")
    worse = make_request("worse", range(40), priority=5)
    better = make_request("better", [*range(30), 99], priority=0, max_tokens=1)
    bench.scheduler.add(worse)
    bench.step()
    bench.scheduler.add(better)
    bench.step()
    assert better.held_by is None
    assert better.computed_len > 0
    bench.run()


def shared(left: Request, right: Request) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left.tokens, right.tokens, strict=False))
    return sum(1 for _ in pairs)


@given(prompts, st.data())
def test_the_tree_of_prompts_agrees_with_comparing_all_pairs(prompts: list[list[int]], data: st.DataObject) -> None:
    requests = [make_request(str(idx), prompt, namespace=len(prompt) % 2) for idx, prompt in enumerate(prompts)]
    tree = PromptTree()
    present: list[Request] = []
    for request in requests:
        tree.add(request)
        present.append(request)
        if data.draw(st.booleans()):
            gone = present.pop(data.draw(st.integers(0, len(present) - 1)))
            tree.remove(gone)
            assert gone not in tree
        others = [[one for one in present if one is not each and one.namespace == each.namespace] for each in requests]
        for each, rivals in zip(requests, others, strict=True):
            longest = max((shared(each, rival) for rival in rivals), default=0)
            length, found = tree.longest_shared(each)
            assert length == longest
            assert (found is None) == (longest == 0)
            assert found is None or (found in rivals and shared(each, found) == longest)
    assert len(tree) == len(present)
    walked = list(tree.walk())
    assert sorted(map(id, walked)) == sorted(map(id, present))
    assert_neighbours_share_most(walked)
    for request in walked:
        tree.remove(request)
    assert list(tree.walk()) == []


def assert_neighbours_share_most(walked: list[Request]) -> None:
    """Depth first: whoever shares a beginning with the first and the last of a run shares it with all between."""
    for (_, first), (gap, last) in itertools.combinations(enumerate(walked), 2):
        if first.namespace == last.namespace:
            depth = shared(first, last)
            between = walked[walked.index(first) : gap]
            assert all(shared(first, one) >= depth for one in between)
