"""The machine for stop texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.base.errors import InvalidParameterError
from trivium.grammar.stops import MAX_STOP_LETTERS, START, StopTexts

stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def state_after(stops: StopTexts, text: str) -> int:
    state = START
    for letter in text:
        state = stops.step(state, letter)
    return state


@given(stop_lists, st.text("ab", max_size=20))
def test_the_longest_stop_text_that_ends_here_is_known(texts: list[str], text: str) -> None:
    stops = StopTexts(texts)
    ending = [stop for stop in texts if text.endswith(stop)]
    assert stops.whole(state_after(stops, text)) == (max(ending, key=len) if ending else None)


@given(stop_lists, st.text("ab", max_size=20))
def test_held_letters_are_the_longest_ending_that_begins_a_longer_stop_text(texts: list[str], text: str) -> None:
    stops = StopTexts(texts)
    lengths = [size for stop in texts for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])]
    assert stops.held(state_after(stops, text)) == max(lengths, default=0)


def test_an_empty_stop_text_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="empty") as caught:
        StopTexts(["x", ""])
    assert caught.value.param == "stop"


def test_stop_texts_that_are_too_long_together_are_refused_with_the_limit() -> None:
    with pytest.raises(InvalidParameterError, match=f"{MAX_STOP_LETTERS + 1} letters in all; at most"):
        StopTexts(["a" * MAX_STOP_LETTERS, "b"])


def test_the_largest_allowed_machine_takes_one_step_per_letter() -> None:
    stops = StopTexts(["a" * (MAX_STOP_LETTERS - 1) + "b"])
    assert stops.held(state_after(stops, "a" * 1000)) == 1000
    assert stops.step(state_after(stops, "a" * 1000), "c") == START
