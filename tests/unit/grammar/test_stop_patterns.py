"""Stop patterns, case by case: what ends where, what is held back, what is refused."""

from __future__ import annotations

import time

import pytest

from support.tiny_tokenizers import BYTE_EOS, byte_level
from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.base.ids import FinishReason
from trivium.config.sampling import SamplingParams
from trivium.grammar.automaton import OutputAutomaton
from trivium.grammar.pattern_syntax import MAX_INSTRUCTIONS
from trivium.grammar.stop_patterns import MAX_PATTERN_LETTERS, NOWHERE, StopPatterns
from trivium.grammar.stops import StopConditions

TOKENIZER = byte_level()


def end_of(patterns: list[str], text: str) -> tuple[int, int, str] | None:
    """Beginning and end of the first match that is whole, and its pattern."""
    stops = StopConditions((), patterns)
    state = stops.start
    for end, letter in enumerate(text, start=1):
        state = stops.step(state, letter)
        whole = stops.whole(state)
        if whole is not None:
            return end - whole.length, end, whole.stop
    return None


def held_in(pattern: str, text: str) -> list[int]:
    machine, state, held = StopPatterns([pattern]), NOWHERE, []
    for letter in text:
        state = machine.step(state, letter)
        held.append(machine.held(state))
    return held


def streamed(text: str, **fields: object) -> tuple[list[str], object]:
    reader = OutputAutomaton(TOKENIZER, SamplingParams(**fields), (BYTE_EOS,))  # type: ignore[arg-type]
    texts = []
    for token_id in text.encode():
        progress = reader.advance(token_id)
        texts.append(progress.text)
        if progress.finish is not None:
            return texts, progress.stop_reason
    texts.append(reader.finish(FinishReason.LENGTH).text)
    return texts, None


@pytest.mark.parametrize(
    ("patterns", "text", "expected"),
    [
        (["b+"], "aabbb", (2, 3, "b+")),
        ([r"\n\n+"], "one\ntwo\n\n\nthree", (7, 9, r"\n\n+")),
        (["abcd", "bc"], "xabcd", (2, 4, "bc")),
        (["a.*b", "cb"], "xacb", (1, 4, "a.*b")),
        (["cb", "a.*b"], "xacb", (1, 4, "a.*b")),
        (["(ab|b)c"], "abc", (0, 3, "(ab|b)c")),
        (["[0-9]{3}"], "12 345", (3, 6, "[0-9]{3}")),
        (["[0-9]{2,3}x"], "1234x", (1, 5, "[0-9]{2,3}x")),
        (["a{,2}b"], "aaab", (1, 4, "a{,2}b")),
        (["(?i)stop"], "please StOp", (7, 11, "(?i)stop")),
        (["(?s)a.b"], "a\nb", (0, 3, "(?s)a.b")),
        (["a.b"], "a\nb", None),
        ([r"[^\s\d]!"], "1! x!", (3, 5, r"[^\s\d]!")),
        ([r"[]^-]="], "-=", (0, 2, r"[]^-]=")),
        ([r"[[&|~]{2}"], "a[~", (1, 3, r"[[&|~]{2}")),
        ([r"\}\s*\{"], "} \n{", (0, 4, r"\}\s*\{")),
        (["}{"], "a}{", (1, 3, "}{")),
        ([r"\x41\u00e9\U0001F600"], "Aé😀", (0, 3, r"\x41\u00e9\U0001F600")),
        (["(?:a|(?P<name>b))+?c"], "abac", (0, 4, "(?:a|(?P<name>b))+?c")),
        (["(a*)*b"], "aab", (0, 3, "(a*)*b")),
        (["x|"], None, None),
    ],
)  # fmt: skip
def test_the_first_whole_match_counts_from_its_earliest_letter(
    patterns: list[str], text: str | None, expected: object
) -> None:
    if text is None:
        with pytest.raises(InvalidParameterError, match="matches the empty text"):
            StopPatterns(patterns)
    else:
        assert end_of(patterns, text) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "held"),
    [
        ("abc", "xababc", [0, 1, 2, 1, 2, 0]),
        ("<[a-z]*>", "x<ab <c>", [0, 1, 2, 3, 0, 1, 2, 0]),
        ("a.*b", "xaa\nab", [0, 1, 2, 0, 1, 2]),
        ("a+", "baa", [0, 1, 2]),
    ],
)
def test_text_is_held_back_while_a_match_may_still_grow(pattern: str, text: str, held: list[int]) -> None:
    assert held_in(pattern, text) == held


def test_a_match_never_leaks_into_the_stream() -> None:
    assert streamed("one <b>two", stop_regex=("<[a-z]>",)) == (["o", "n", "e", " ", "", "", ""], "<[a-z]>")
    assert streamed("one <b two", stop_regex=("<[a-z]>",))[0][4:] == ["", "", "<b ", "t", "w", "o", ""]


def test_a_match_that_is_included_stays() -> None:
    texts, reason = streamed("say 42!", stop_regex=("[0-9]+!",), include_stop_str_in_output=True)
    assert ("".join(texts), reason) == ("say 42!", "[0-9]+!")


def test_texts_and_patterns_end_together() -> None:
    assert streamed("ab12", stop=("12",), stop_regex=("[0-9]",))[1] == "[0-9]"
    assert streamed("ab12", stop=("b1",), stop_regex=("[0-9]",)) == (["a", "", ""], "b1")
    assert streamed("ab12", stop=("1",), stop_regex=("[0-9]",))[1] == "1"


def test_a_match_among_the_first_tokens_does_not_end_but_what_grows_from_it_does() -> None:
    texts, reason = streamed("aaab", stop_regex=("a+",), min_tokens=2)
    assert ("".join(texts), reason) == ("", "a+")


def test_what_is_held_back_is_bounded() -> None:
    long = "x" * (MAX_PATTERN_LETTERS + 100)
    machine, state = StopPatterns(["<.*>"]), NOWHERE
    for letter in "<" + long:
        state = machine.step(state, letter)
    assert machine.held(state) == MAX_PATTERN_LETTERS
    state = machine.step(state, ">")
    assert state.whole is not None
    assert state.whole.length == MAX_PATTERN_LETTERS


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("^a", r"'\^'"), ("a$", r"'\$'"), (r"\bfoo", r"'\\b'"), (r"a\Z", r"'\\Z'"), (r"(a)\1", "reference to a group"),
        ("a(?=b)", "looking ahead"), ("a(?!b)", "looking ahead"), ("(?<=a)b", "looking behind"),
        ("(?<!a)b", "looking behind"), ("(?P<n>a)(?P=n)", "reference to a group"), ("(?>a)b", "atomic"),
        ("a++b", "possessive"), ("(?x)a", "the flag 'x'"), ("(?m)a", "the flag 'm'"), ("(a)(?(1)b)", "a condition"),
        ("a(?#b)", "a comment"), ("a(?i:b)", r"'\(\?'"),
    ],
)  # fmt: skip
def test_what_needs_more_than_the_match_is_refused_by_name(pattern: str, what: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=what) as caught:
        StopPatterns([pattern])
    assert caught.value.param == "stop_regex"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "group is not closed"), ("a)", "closes nothing"), ("[a", "class is not closed"), ("[]", "not closed"),
        ("*a", "nothing to repeat"), ("a**", "repeated"), ("a{3}{4}", "repeated"), ("a{4,3}", "more often"),
        (r"\q", "means nothing"), ("a\\", "means nothing"), (r"\x4", "hexadecimal"), (r"\UFFFFFFFF", "hexadecimal"),
        ("[z-a]", "bad character range"), (r"[+--]", "sure meaning"), ("(" * 99 + "a" + ")" * 99, "nest deeper"),
        ("a{501}", "more than 500 repetitions"), ("a{99999999999}", "more than 500 repetitions"),
        ("((a{100}){100}){100}", f"more than {MAX_INSTRUCTIONS} parts"), ("a" * 5000, "at most 4096"),
        ("a*", "empty text"), ("", "empty text"), ("(((){400}){400}){400}", "empty text"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(InvalidParameterError, match=why) as caught:
        StopPatterns([pattern])
    assert caught.value.param == "stop_regex"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+b", "a" * 20_000),
        ("(a|aa)+b", "a" * 20_000),
        ("(.*)(.*)(.*)(.*)(.*)x", "y" * 20_000),
        ("(a?){150}a{150}b", "a" * 5_000),
        ("((a*)*)*b", "a" * 20_000),
        ("(a|b)*a[ab]{400}c", "ab" * 2_500),
    ],
)
def test_no_pattern_is_slow(pattern: str, text: str) -> None:
    began = time.thread_time()
    assert end_of([pattern], text) is None
    per_letter = (time.thread_time() - began) / len(text)
    assert per_letter < 1e-3  # some 100 us here for the worst of them; going back would take years
