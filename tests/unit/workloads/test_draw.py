"""Loads have the lengths and the common parts that their records say, and a seed repeats them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest

from benchmarks.workloads.draw import Ids, draw, single_prompts
from benchmarks.workloads.shapes import Mixed, MultiTurn, Rag, Shape, SharedPrefix

IDS = range(3, 20_000)
RAG = Rag()
CHATS = MultiTurn(chats=3, turns=4, system_len=20, message_len=7, output_len=5)
SHAPES: list[Shape] = [
    SharedPrefix(groups=3, per_group=4, system_len=50, question_len=6, output_len=2),
    CHATS,
    replace(CHATS, own_answers=False),
    RAG,
    Mixed(streams=6, longs=4, longs_open=2),
]


def common(left: Ids, right: Ids) -> int:
    """Length of the common beginning."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_a_seed_repeats_a_load_and_another_shares_no_beginning_with_it(shape: Shape) -> None:
    lanes = draw(shape, IDS, 1, 4)
    assert draw(shape, IDS, 1, 4) == lanes
    first, other = ([turn.added for lane in drawn for s in lane.sessions for turn in s.turns[:1]]
                    for drawn in (lanes, draw(shape, IDS, 2, 4)))  # fmt: skip
    assert max(common(left, right) for left in first for right in other) < 3


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_loads_of_other_seeds_differ_in_their_tokens_only(shape: Shape) -> None:
    """Engines that are measured with seeds of their own get the same work, in the same order."""

    def form(seed: int) -> list[tuple[str, list[int], list[int]]]:
        lanes = draw(shape, IDS, seed, 4)
        texts = [session.turns[0].added for lane in lanes for session in lane.sessions]
        return [
            (
                lane.kind,
                [len(turn.added) for turn in session.turns],
                [common(session.turns[0].added, text) for text in texts],
            )
            for lane in lanes
            for session in lane.sessions
        ]

    assert form(1) == form(2)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_a_load_has_as_many_requests_as_its_record_says_and_no_longer_ones(shape: Shape) -> None:
    lanes = draw(shape, IDS, 1, 4)
    turns = [turn for lane in lanes for session in lane.sessions for turn in session.turns]
    assert len(turns) == shape.num_requests
    assert max(turn.output_len for turn in turns) == shape.longest_output
    assert sum(lane.concurrency for lane in lanes) == 4
    for lane in lanes:
        for session in lane.sessions:
            length = sum(len(turn.added) for turn in session.turns)
            assert length + sum(turn.output_len for turn in session.turns[:-1]) <= shape.longest_prompt


def test_groups_share_their_instructions_and_nothing_else() -> None:
    shape = SHAPES[0]
    prompts = single_prompts(draw(shape, IDS, 1, 4))
    begins = Counter(prompt[:50] for prompt in prompts)
    assert sorted(begins.values()) == [4, 4, 4]
    assert len({prompt[50:] for prompt in prompts}) == 12


def test_chats_share_their_instructions_and_grow_by_answers() -> None:
    [lane] = draw(CHATS, IDS, 1, 4)
    assert len({session.turns[0].added[:20] for session in lane.sessions}) == 1
    assert [len(turn.added) for turn in lane.sessions[0].turns] == [27, 7, 7, 7]
    assert {(turn.answer, len(turn.filler)) for session in lane.sessions for turn in session.turns} == {(None, 5)}
    [fixed] = draw(replace(CHATS, own_answers=False), IDS, 1, 4)
    assert {len(turn.answer or ()) for session in fixed.sessions for turn in session.turns} == {5}


def test_three_fifths_of_the_document_tokens_are_shared_and_the_shared_part_ends_inside_a_page() -> None:
    prompts = list(dict.fromkeys(single_prompts(draw(RAG, IDS, 1, 100))))
    assert len(prompts) == RAG.requests - RAG.repeats
    shared, whole = 0, 0
    for prompt in prompts:
        begin = max(common(prompt, other) for other in prompts if other != prompt)
        assert begin % 16
        shared += begin - RAG.system_len
        whole += len(prompt) - RAG.system_len - RAG.question_len
    assert shared / whole == pytest.approx(RAG.shared, abs=0.001)
    topics = {prompt[: max(common(prompt, other) for other in prompts if other != prompt)] for prompt in prompts}
    assert len(topics) == RAG.topics


def test_some_questions_are_asked_again_to_the_last_token() -> None:
    counts = Counter(single_prompts(draw(RAG, IDS, 1, 100)))
    assert sorted(counts.values()) == [1] * (RAG.requests - 2 * RAG.repeats) + [2] * RAG.repeats


def test_streams_and_long_prompts_have_lanes_of_their_own() -> None:
    streams, longs = draw(SHAPES[-1], IDS, 1, 8)
    assert (streams.kind, streams.concurrency, longs.kind, longs.concurrency) == ("stream", 6, "long", 2)
    assert all(1536 <= len(session.turns[0].added) <= 3072 for session in longs.sessions)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="no token ids"):
        draw(RAG, [], 1, 4)
    with pytest.raises(ValueError, match=r"3 documents make 1 topics of 3.*and 8 are wanted"):
        draw(replace(RAG, pool=3), IDS, 1, 4)
