"""The space: every distinct product once, at the rows that matter; and tactics put back into a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_plan import small_plan
from trivium.base.errors import InternalError
from trivium.compile.tuner.space import Case, Site, cases_of, find_work, rows_up_to, site_of, with_tactics
from trivium.plan.check import check_plan
from trivium.plan.program import Limits
from trivium.plan.tactic import check_tactic, kernel_for, kernel_ranges, make_tactic, tactic_text

QKV = Site("store", 64, (64, 32, 32), ("i4m_g32",) * 3, "q8")
HEAD = Site("store", 64, (320,), ("i4m_g32",), "q8")


def test_products_that_agree_are_one_site_and_the_heaviest_comes_first() -> None:
    work = find_work(small_plan())
    sites = list(dict.fromkeys(each.case.site for each in work))
    assert [str(site) for site in sites] == [
        "store q8[64] x 320:i4m_g32",
        "gated q8[64] x 96:i4m_g32+96:i4m_g32",
        "store q8[64] x 64:i4m_g32+32:i4m_g32+32:i4m_g32",
        "add q8[96] x 64:i4m_g32",
        "add q8[64] x 64:i4m_g32",
    ]
    weights = [each.num_weights for each in work]
    assert weights == sorted(weights, reverse=True)


def test_a_site_is_timed_at_a_few_rows_up_to_what_a_step_may_have() -> None:
    cases = list(cases_of(small_plan()))
    assert [case.num_rows for case in cases if case.site == QKV] == [1, 4, 16, 64, 128]
    assert [case.num_rows for case in cases if case.site == HEAD] == [1, 4, 8]  # wanted rows
    assert len(set(map(str, cases))) == len(cases)


@pytest.mark.parametrize(
    ("limit", "rows"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (4, (1, 4)),
        (64, (1, 4, 16, 64)),
        (65, (1, 4, 16, 64, 65)),
        (2048, (1, 4, 16, 64, 256, 2048)),
    ],
)
def test_the_rows_reach_the_limit(limit: int, rows: tuple[int, ...]) -> None:
    assert rows_up_to(limit) == rows


def test_layers_that_agree_count_together() -> None:
    plan = small_plan()
    program = plan.programs["base"]
    twice = replace(plan, programs={"base": replace(program, instructions=program.instructions[:-1] * 2)})
    counts = {each.case.site: each.num_instructions for each in find_work(twice)}
    assert counts[QKV] == 2
    assert HEAD not in counts


def test_tokens_and_wanted_rows_share_their_cases() -> None:
    plan = small_plan()
    program = plan.programs["base"]
    head = program.instructions[-1]
    on_tokens = replace(head, reads={"x": "normed"}, writes={"out": "qkv"})
    both = replace(plan, programs={"base": replace(program, instructions=(*program.instructions, on_tokens))})
    cases = [each.case.num_rows for each in find_work(both) if each.case.site == HEAD]
    assert cases == [1, 4, 8, 16, 64, 128]


def test_what_is_no_product_has_no_site() -> None:
    plan = small_plan()
    with pytest.raises(InternalError, match="embed is no product"):
        site_of(plan.programs["base"].instructions[0], {}, {})


def test_tactics_are_put_where_their_site_is_in_both_programs() -> None:
    plan = small_plan()
    both = replace(plan, programs={**plan.programs, "adapters": plan.programs["base"]})
    best = {Case(QKV, 1): "direct", Case(QKV, 4): "direct", Case(QKV, 64): "unpacked", Case(QKV, 128): "unpacked"}
    tuned = with_tactics(both, best)
    check_plan(tuned)
    for program in tuned.programs.values():
        tactics = [each.tactic for each in program.instructions]
        assert [place for place, tactic in enumerate(tactics) if tactic] == [3]
        assert tactics[3] == {"kernel": "unpacked", "4": "direct", "16": "auto"}
    assert with_tactics(tuned, {}) == both


def test_cases_of_other_limits_are_not_taken() -> None:
    small = small_plan(limits=Limits(max_num_batched_tokens=16, max_logit_rows=8))
    tuned = with_tactics(small, {Case(QKV, 128): "unpacked"})
    assert tuned == small


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([1, 4, 16, 64, 256, 512]), st.sampled_from(["auto", "direct", "unpacked"])))
def test_a_tactic_says_for_every_number_of_rows_what_was_found(kernels: dict[int, str]) -> None:
    tactic = make_tactic(kernels)
    assert check_tactic(tactic) is None
    instruction = replace(small_plan().programs["base"].instructions[3], tactic=tactic)
    ranges = kernel_ranges(instruction)
    for rows in range(1, 600):
        wanted = next((kernels[limit] for limit in sorted(kernels) if rows <= limit), None)
        expected = wanted or (kernels[max(kernels)] if kernels else "auto")
        assert kernel_for(instruction, rows) == expected
        by_range = next((kernel for limit, kernel in ranges if rows <= limit), None)
        assert by_range in {None, expected}


@pytest.mark.parametrize(
    ("tactic", "text"),
    [
        (None, "rule"),
        ({"kernel": "direct"}, "direct"),
        ({"kernel": "auto", "4": "direct", "64": "unpacked"}, "≤4 direct, ≤64 unpacked, else auto"),
    ],
)
def test_a_tactic_is_shown_by_its_rows(tactic: dict[str, str] | None, text: str) -> None:
    assert tactic_text(replace(small_plan().programs["base"].instructions[3], tactic=tactic)) == text
