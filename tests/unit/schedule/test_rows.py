"""How far a chunk may go with the rows that are left, against counting."""

from __future__ import annotations

import pytest

from support.scheduling import make_request
from trivium.schedule.decision import Entry
from trivium.schedule.rows import limit_by_rows, want_rows


def count_rows(prompt_len: int, target_len: int, first: int | None, start: int, end: int) -> int:
    scored = sum(first is not None and first <= row < prompt_len - 1 for row in range(start, end))
    return scored + (end == target_len)


@pytest.mark.parametrize("first", [None, 0, 3, 9])
@pytest.mark.parametrize("output_len", [0, 2])
def test_a_chunk_goes_as_far_as_its_rows_go(first: int | None, output_len: int) -> None:
    prompt_len = 8
    request = make_request(
        "a", range(prompt_len), prompt_logprobs=None if first is None else 0, prompt_logprob_start=(first or 0) + 1
    )
    request.tokens.extend(range(output_len))
    target = request.target_len
    for start in range(target):
        for num_tokens in range(1, target - start + 1):
            for num_rows in range(5):
                got = limit_by_rows(request, start, num_tokens, num_rows, can_draw=True)
                expected = max(
                    count
                    for count in range(num_tokens + 1)
                    if count == 0 or count_rows(prompt_len, target, first, start, start + count) <= num_rows
                )
                assert got == expected
                if got:
                    entry = Entry(request, start, got)
                    want_rows(entry, can_draw=True)
                    assert entry.num_rows == count_rows(prompt_len, target, first, start, start + got)
                    assert entry.draws == (start + got == target)


def test_only_the_first_choice_scores_the_prompt() -> None:
    request = make_request("a#1", range(8), choice=1, prompt_logprobs=1)
    assert request.first_scored_row is None
    assert request.next_scored_row is None
