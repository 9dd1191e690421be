"""Every engine meets the same points; names choose them."""

from __future__ import annotations

import pytest

from benchmarks.peers.points import PLAIN_SUITES, POINTS, SUITES, choose, find


def test_names_of_points_are_unique_and_every_suite_has_points() -> None:
    names = [point.name for point in POINTS]
    assert len(set(names)) == len(names)
    assert all(choose([suite]) for suite in SUITES)


def test_no_point_leaves_seats_empty_at_its_end() -> None:
    for point in POINTS:
        if point.shape is None:
            assert point.num_requests % point.concurrency == 0, point.name


def test_points_with_a_shape_leave_room_for_its_longest_prompt_and_answer() -> None:
    shaped = [point for point in POINTS if point.shape is not None]
    assert {point.suite for point in shaped} == {"shared-prefix", "multi-turn", "rag", "mixed", "recorded"}
    assert not {point.suite for point in shaped} & set(PLAIN_SUITES)
    for point in shaped:
        assert point.way == "http"
        assert point.context_len == point.shape.longest_prompt + point.shape.longest_output


def test_a_point_is_found_by_its_whole_name_only() -> None:
    assert find("rag 100").num_requests == 100
    with pytest.raises(ValueError, match="no point '100'"):
        find("100")


def test_points_are_chosen_by_name_or_last_word_within_the_suites() -> None:
    assert [point.name for point in choose(["batch"], ["16", "batch 64"])] == ["batch 16", "batch 64"]
    assert [point.name for point in choose(["online", "prefill"], ["512"])] == ["prefill 512", "HTTP prefill 512"]
    assert choose(SUITES) == list(POINTS)


def test_an_unknown_suite_or_point_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no suite 'offline'.*single, prefill, batch, online"):
        choose(["offline"])
    with pytest.raises(ValueError, match=r"no point '17' in batch.*batch 1, batch 4"):
        choose(["batch"], ["16", "17"])


def test_prefill_counts_prompt_tokens_and_everything_else_output_tokens() -> None:
    units = {point.name: point.unit for point in POINTS}
    assert units["prefill 512"] == "prompt tokens/s"
    assert units["batch 16"] == "output tokens/s"
