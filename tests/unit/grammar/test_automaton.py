"""Text, stops and end of one answer, case by case."""

from __future__ import annotations

import pytest

from support.tiny_tokenizers import BYTE_EOS, BYTE_THINK, byte_level, metaspace
from trivium.base.errors import InternalError
from trivium.base.ids import FinishReason
from trivium.config.sampling import SamplingParams
from trivium.grammar.automaton import MAX_ROLL_BACK, OutputAutomaton, Progress

TOKENIZER = byte_level()
HELLO = 259
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def automaton(*, ends: tuple[int, ...] = (BYTE_EOS,), **fields: object) -> OutputAutomaton:
    return OutputAutomaton(TOKENIZER, SamplingParams(**fields), ends)  # type: ignore[arg-type]


def run(reader: OutputAutomaton, ids: list[int]) -> list[Progress]:
    progress: list[Progress] = []
    for id_ in ids:
        progress.append(reader.advance(id_))
        if progress[-1].finish is not None:
            break
    return progress


@pytest.mark.parametrize(("start", "end"), [(i, j) for i in range(0, 24, 3) for j in range(i + 2, min(i + 13, 27), 4)])
def test_a_stop_across_tokens_never_leaks(start: int, end: int) -> None:
    progress = run(automaton(stop=(ALPHABET[start:end],)), list(ALPHABET.encode()))
    assert "".join(p.text for p in progress) == ALPHABET[:start]
    assert progress[-1] == Progress("", FinishReason.STOP, ALPHABET[start:end])


def test_an_included_stop_text_stays() -> None:
    progress = run(automaton(stop=("cd",), include_stop_str_in_output=True), list(b"abcdef"))
    assert [p.text for p in progress] == ["a", "b", "", "cd"]


def test_a_stop_that_never_becomes_whole_is_given_out_at_the_end() -> None:
    reader = automaton(stop=("xyz\u0007",))
    given_out = "".join(p.text for p in run(reader, list(ALPHABET.encode())))
    assert given_out == ALPHABET[:-3]
    assert reader.finish(FinishReason.LENGTH).text == "xyz"
    assert reader.finish(FinishReason.LENGTH).text == ""


def test_text_behind_a_stop_inside_one_token_is_dropped_and_the_token_counts() -> None:
    reader = automaton(stop=("el",))
    assert reader.advance(HELLO) == Progress("h", FinishReason.STOP, "el")
    assert reader.num_tokens == 1


def test_the_stop_text_that_is_whole_first_wins() -> None:
    assert run(automaton(stop=("bcde", "cd")), list(b"abcdef"))[-1].stop_reason == "cd"
    assert automaton(stop=("hello", "l")).advance(HELLO) == Progress("he", FinishReason.STOP, "l")


def test_of_stop_texts_that_end_together_the_longest_counts() -> None:
    progress = run(automaton(stop=("d", "bcd")), list(b"abcdef"))
    assert ("".join(p.text for p in progress), progress[-1].stop_reason) == ("a", "bcd")


def test_end_tokens_end_without_their_text() -> None:
    reader = automaton(skip_special_tokens=False)
    assert run(reader, [HELLO, BYTE_EOS]) == [Progress("hello"), Progress("", FinishReason.STOP, None)]


def test_a_stop_token_is_named_and_its_text_left_out_unless_included() -> None:
    assert automaton(stop_token_ids=(HELLO,)).advance(HELLO) == Progress("", FinishReason.STOP, HELLO)
    included = automaton(stop_token_ids=(HELLO,), include_stop_str_in_output=True)
    assert included.advance(HELLO) == Progress("hello", FinishReason.STOP, HELLO)


def test_ignored_end_tokens_are_ordinary_but_stop_tokens_are_not() -> None:
    reader = automaton(ignore_eos=True, stop_token_ids=(HELLO,), skip_special_tokens=False)
    assert run(reader, [BYTE_EOS, HELLO]) == [Progress("</s>"), Progress("", FinishReason.STOP, HELLO)]


@pytest.mark.parametrize("fields", [{"stop": (".",)}, {"stop_token_ids": (ord("."),)}, {}])
def test_nothing_ends_the_answer_among_the_first_min_tokens(fields: dict[str, object]) -> None:
    reader = automaton(ends=(ord("."), BYTE_EOS), min_tokens=20, **fields)
    progress = run(reader, list(b"." * 40))
    assert len(progress) == 21
    assert "".join(p.text for p in progress) == "." * 20


def test_a_stop_text_may_begin_among_the_first_min_tokens() -> None:
    progress = run(automaton(stop=("bcd",), min_tokens=3), list(b"abcdef"))
    assert "".join(p.text for p in progress) == "a"


def test_all_end_tokens_are_held_back_until_min_tokens_came() -> None:
    reader = automaton(min_tokens=1, stop_token_ids=(5,))
    assert reader.held_back_at(0) == (5, BYTE_EOS)
    assert reader.held_back_at(1) == ()


def test_which_token_would_end_the_answer_is_known_before_it_is_read() -> None:
    reader = automaton(min_tokens=1, stop_token_ids=(5,))
    assert not reader.ends_at(5)
    reader.advance(HELLO)
    assert [reader.ends_at(token) for token in (5, BYTE_EOS, HELLO)] == [True, True, False]
    assert not automaton(ignore_eos=True).ends_at(BYTE_EOS)


def test_a_character_cut_by_the_end_becomes_one_replacement_character() -> None:
    reader = automaton()
    assert [p.text for p in run(reader, list("日".encode()[:2]))] == ["", ""]
    assert reader.finish(FinishReason.LENGTH).text == "\ufffd"


def test_a_character_cut_by_an_end_token_becomes_one_replacement_character() -> None:
    assert run(automaton(), [0xE6, BYTE_EOS])[-1] == Progress("\ufffd", FinishReason.STOP, None)


def test_lone_continuation_bytes_are_given_out_one_by_one() -> None:
    assert [p.text for p in run(automaton(), [0x80] * 5)] == ["\ufffd"] * 5


def test_user_defined_tokens_are_text_even_when_special_ones_are_skipped() -> None:
    assert automaton().advance(BYTE_THINK).text == "<think>"


def test_an_answer_that_continues_a_prompt_keeps_its_first_space() -> None:
    spaced = metaspace()
    hello = spaced.encode("hello", add_special_tokens=False)
    whole = OutputAutomaton(spaced, SamplingParams(), (), continues=False)
    assert OutputAutomaton(spaced, SamplingParams()).replay(hello) == " hello"
    assert whole.replay(hello) == "hello"


def test_a_token_after_the_end_is_an_error_of_ours() -> None:
    reader = automaton()
    reader.advance(BYTE_EOS)
    with pytest.raises(InternalError, match="after the answer had ended"):
        reader.advance(HELLO)


def test_rolling_back_the_end_makes_the_answer_go_on() -> None:
    reader = automaton(stop=("ab",))
    run(reader, list(b"xab"))
    reader.roll_back(1)
    assert not reader.is_finished
    assert reader.held_text == "a"
    assert run(reader, list(b"c")) == [Progress("ac")]


def test_no_more_tokens_are_taken_back_than_were_read_or_are_remembered() -> None:
    with pytest.raises(InternalError, match="cannot take back 1 tokens"):
        automaton().roll_back(1)
    reader = automaton()
    run(reader, [HELLO] * (MAX_ROLL_BACK + 5))
    with pytest.raises(InternalError, match="cannot take back"):
        reader.roll_back(MAX_ROLL_BACK + 5)


def test_a_snapshot_leads_back_however_far() -> None:
    reader = automaton(stop=("ell",))
    start = reader.snapshot()
    run(reader, [ord("h"), ord("e"), ord("l"), ord("p")])
    reader.restore(start)
    assert (reader.num_tokens, reader.replay([ord("h")])) == (0, "h")


def test_forks_go_their_own_ways() -> None:
    reader = automaton(stop=("ab",))
    reader.advance(ord("a"))
    twin = reader.fork()
    assert twin.advance(ord("b")).finish is FinishReason.STOP
    assert reader.advance(ord("c")) == Progress("ac")
