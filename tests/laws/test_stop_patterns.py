"""Stop patterns find what Python's `re` finds when it tries every beginning and every end."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trivium.grammar.stop_patterns import MAX_PATTERN_LETTERS, NOWHERE, StopPatterns, Whole

ATOMS = st.sampled_from([
    "a",
    "b",
    "c",
    ".",
    "[ab]",
    "[^a]",
    r"\w",
    r"\s",
    r"\d",
    r"[\d-]",
    r"\W",
    "[a-c]",
    r"\.",
    "[^-a]",
    "é",
    r"\n",
])
REPEATS = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{,2}", "{1,3}", "*?", "+?", "??", "{1,2}?"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)
FLAGS = st.sampled_from(["", "", "(?i)", "(?s)", "(?is)"])
TEXTS = st.text(alphabet="abcA.-é1 \n", max_size=14)


def by_trying(pattern: str, text: str) -> Whole | None:
    """The longest match that ends where the text does, if there is one."""
    compiled = re.compile(pattern)
    for start in range(len(text)):
        if compiled.fullmatch(text, start):
            return Whole(len(text) - start, pattern)
    return None


def may_grow(pattern: str, text: str, more: str) -> bool:
    return any(re.compile(pattern).fullmatch(text + more[:end]) for end in range(1, len(more) + 1))


@given(FLAGS, PATTERNS, TEXTS)
def test_every_end_of_a_match_is_found_with_its_earliest_beginning(flags: str, body: str, text: str) -> None:
    pattern = flags + body
    if re.fullmatch(pattern, ""):
        return
    machine, state = StopPatterns([pattern]), NOWHERE
    for end, letter in enumerate(text, start=1):
        state = machine.step(state, letter)
        assert state.whole == by_trying(pattern, text[:end])


@given(PATTERNS, TEXTS, TEXTS)
def test_whatever_may_become_a_match_is_held_back(pattern: str, text: str, more: str) -> None:
    if re.fullmatch(pattern, ""):
        return
    machine, state = StopPatterns([pattern]), NOWHERE
    for letter in text:
        state = machine.step(state, letter)
    growing = [start for start in range(len(text)) if may_grow(pattern, text[start:], more)]
    assert machine.held(state) >= (len(text) - growing[0] if growing else 0)
    assert machine.held(state) <= min(len(text), MAX_PATTERN_LETTERS)
    if machine.begins_nowhere_in(text):
        assert state == NOWHERE
