"""What programs found and could have found, counted beside brute force; equal work for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trivium.lang as sgl
from benchmarks.programs.loads import LOADS
from benchmarks.programs.player import Call, Player, count, play
from benchmarks.programs.report import tables
from benchmarks.programs.ways import IN_PROCESS, NO_SHARING, Result

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=8)
CALLS = st.lists(st.tuples(TOKENS, TOKENS, st.booleans()), min_size=1, max_size=6)
ANSWER_LEN = 5


def common_len(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(CALLS, st.randoms(use_true_random=False))
def test_what_could_be_found_is_the_longest_beginning_of_all_that_came_before(calls: Any, rng: Any) -> None:
    made = [
        Call(tuple(prompt), len(prompt) // 2 if is_score else len(prompt) - 1, list(answer), has_ended=True)
        for prompt, answer, is_score in calls
    ]
    events: list[tuple[str, Call]] = [("asked", call) for call in made]
    for call in made:  # each ends somewhere behind its beginning
        events.insert(rng.randint(events.index(("asked", call)) + 1, len(events)), ("ended", call))
    before: list[tuple[int, ...]] = []
    best = 0
    for what, call in events:
        if what == "asked":
            best += min(max((common_len(call.prompt, each) for each in before), default=0), call.reusable_len)
            before.append(call.prompt)
        else:
            before.append((*call.prompt, *call.answer[:-1]))
    assert count(events).reusable_tokens == best


def test_a_call_that_has_not_ended_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="has not ended"):
        count([("asked", Call((1, 2), 1))])


@sgl.function
def two_turns(s: Any, word: str) -> None:
    s += word + sgl.gen("first", max_tokens=ANSWER_LEN, stop=".") + "and" + sgl.select("second", ["ab", "ac"])


def test_answers_are_as_long_as_they_may_be_and_every_call_is_recorded() -> None:
    backend = sgl.ScriptedBackend(lambda prompt: "on. and on and on")
    player = Player(backend, [ord("#"), ord("!")])
    [state], seconds = play([(two_turns, ("go ",))], player, 2)
    assert state.text() == "go on. aandab"
    assert backend.prompts == ["#!go ", "#!go on. aandab", "#!go on. aandac"]
    assert [params.min_tokens for params in backend.params] == [ANSWER_LEN, 0, 0]
    assert seconds > 0
    counts = count(player.events)
    # The second prompt finds the first one and its answer but the last letter, the third one all before what is scored.
    assert (counts.num_calls, counts.prompt_tokens, counts.output_tokens) == (3, 5 + 15 + 15, ANSWER_LEN)
    assert counts.reusable_tokens == 0 + (5 + ANSWER_LEN - 1) + 12


@pytest.mark.parametrize("name", LOADS)
def test_a_seed_repeats_a_load_and_a_small_one_is_smaller(name: str) -> None:
    def words(seed: int, *, is_small: bool) -> str:
        return str([
            [each for each in args if not callable(each)] for _, args in LOADS[name].runs(seed, is_small=is_small)
        ])

    assert words(1, is_small=False) == words(1, is_small=False) != words(2, is_small=False)
    assert len(words(1, is_small=True)) < len(words(1, is_small=False)) / 2


def test_the_tables_tell_what_sharing_saves_and_who_took_how_long() -> None:
    counts = {"num_calls": 4, "prompt_tokens": 1000, "cached_tokens": 740, "reusable_tokens": 750, "output_tokens": 10}
    results = [
        Result(load="rag", way=IN_PROCESS, seconds=2.0, counts=counts, num_steps=20),
        Result(load="rag", way=NO_SHARING, seconds=8.0, counts={**counts, "cached_tokens": 0}, num_steps=60),
        Result(load="rag", way="vllm", seconds=5.0, counts={**counts, "cached_tokens": 500}),
        Result(load="rag", way="openvino", seconds=0.0, error="constraints are not offered"),
    ]
    told = tables(results)
    assert "| rag | 4 | 1,000 | 740 (74.0 %) | 98.67 % | 20 | 60 | 2.00 | 8.00 |" in told
    assert "| rag | 2.0 | 8.0 (4.00) | 5.0 (2.50), 50 % | - |" in told
