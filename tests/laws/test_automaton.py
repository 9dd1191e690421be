"""Laws of the automaton: the stream is the text up to the first stop, and going back leaves no trace."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from support import tiny_tokenizers
from trivium.base.ids import FinishReason
from trivium.config.sampling import SamplingParams
from trivium.grammar.automaton import OutputAutomaton, Progress
from trivium.tokens.tokenizer import Tokenizer

BYTE_LEVEL, METASPACE = tiny_tokenizers.byte_level(), tiny_tokenizers.metaspace()
LETTERS = "helo w"
stop_texts = st.lists(st.text(st.sampled_from("helo wé\ufffd"), min_size=1, max_size=4), max_size=4)
PATTERNS = ["l+o", "h.*o", "[elo]{3}", "(?:he|el|l o)", r"\s\w", "é", "\ufffd+w", "(l|lo)[^ ]"]
byte_ids = st.one_of(
    st.sampled_from([*map(ord, LETTERS), 256, 257, 258, 259, 260, 261, 0xC3, 0xA9, 0xF0, 0x9F]), st.integers(0, 265)
)
piece_ids = st.one_of(st.integers(259, 280), st.sampled_from([3 + 0xC3, 3 + 0xA9, 3 + 0x20, 0, 1, 2]))
streams = st.one_of(
    st.tuples(st.just(BYTE_LEVEL), st.lists(byte_ids, max_size=24)),
    st.tuples(st.just(METASPACE), st.lists(piece_ids, max_size=24)),
)
params = st.builds(
    SamplingParams,
    stop=stop_texts.map(tuple),
    stop_regex=st.lists(st.sampled_from(PATTERNS), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.sampled_from([259, 264, 2]), max_size=1).map(tuple),
    min_tokens=st.integers(0, 6),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    skip_special_tokens=st.booleans(),
)


@dataclass
class Story:
    """What an automaton said about a stream."""

    texts: list[str]
    last: Progress | None
    num_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.texts)


def run(automaton: OutputAutomaton, ids: list[int]) -> Story:
    texts: list[str] = []
    last = None
    for id_ in ids:
        last = automaton.advance(id_)
        texts.append(last.text)
        if last.finish is not None:
            break
    texts.append(automaton.finish(FinishReason.LENGTH).text)
    return Story(texts, last, automaton.num_tokens)


def by_brute_force(tokenizer: Tokenizer, asked: SamplingParams, ends: set[int], ids: list[int]) -> tuple[str, object]:
    """Text and stop reason by rereading everything after every token."""

    def bytes_of(part: list[int]) -> bytes:
        shown = [i for i in part if not (asked.skip_special_tokens and tokenizer.is_special(i))]
        return b"".join(tokenizer.token_bytes(i) for i in shown)

    may_end = set(asked.stop_token_ids) | (set() if asked.ignore_eos else ends)
    for index, id_ in enumerate(ids):
        if index >= asked.min_tokens and id_ in may_end:
            keeps_token = asked.include_stop_str_in_output and id_ in asked.stop_token_ids
            text = bytes_of(ids[: index + keeps_token]).decode("utf-8", "replace")
            return text, id_ if id_ in asked.stop_token_ids else "end"
        old = codecs.utf_8_decode(bytes_of(ids[:index]), "replace", False)[0]
        new = codecs.utf_8_decode(bytes_of(ids[: index + 1]), "replace", False)[0]
        for end in range(len(old) + 1, len(new) + 1):
            whole = [(len(stop), stop) for stop in asked.stop if new[:end].endswith(stop)]
            whole += [
                (end - start, stop)
                for stop in asked.stop_regex
                for start in range(end)
                if re.compile(stop).fullmatch(new, start, end)
            ]
            if whole and index >= asked.min_tokens:
                length, stop = max(whole, key=lambda each: each[0])
                return new[: end if asked.include_stop_str_in_output else end - length], stop
    return bytes_of(ids).decode("utf-8", "replace"), None


def reason_of(story: Story) -> object:
    if story.last is None or story.last.finish is None:
        return None
    return "end" if story.last.stop_reason is None else story.last.stop_reason


def end_ids_of(tokenizer: Tokenizer) -> set[int]:
    return set(tokenizer.eos_ids)


@given(streams, params)
def test_the_stream_is_the_text_up_to_the_first_stop(
    stream: tuple[Tokenizer, list[int]], asked: SamplingParams
) -> None:
    tokenizer, ids = stream
    ends = end_ids_of(tokenizer)
    story = run(OutputAutomaton(tokenizer, asked, ends), ids)
    assert (story.text, reason_of(story)) == by_brute_force(tokenizer, asked, ends, ids)


@given(streams, params)
def test_text_held_back_always_begins_a_stop_text(stream: tuple[Tokenizer, list[int]], asked: SamplingParams) -> None:
    tokenizer, ids = stream
    automaton = OutputAutomaton(tokenizer, asked, end_ids_of(tokenizer))
    for id_ in ids:
        if automaton.advance(id_).finish is not None:
            assert not automaton.held_text
            break
        held = automaton.held_text
        if not asked.stop_regex:
            assert not held or any(stop.startswith(held) and stop != held for stop in asked.stop)


@given(streams, params, st.data())
def test_going_on_after_a_roll_back_is_never_having_advanced(
    stream: tuple[Tokenizer, list[int]], asked: SamplingParams, data: st.DataObject
) -> None:
    tokenizer, ids = stream
    straight, wandering = (OutputAutomaton(tokenizer, asked, end_ids_of(tokenizer)) for _ in range(2))
    for id_ in ids:
        detour = data.draw(st.lists(byte_ids, max_size=3))
        taken = 0
        for other in detour:
            taken += 1
            if wandering.advance(other).finish is not None:
                break
        if data.draw(st.booleans()) and taken:
            wandering.finish(FinishReason.LENGTH)
        wandering.roll_back(taken)
        assert wandering.snapshot() == straight.snapshot()
        expected = straight.advance(id_)
        assert wandering.advance(id_) == expected
        if expected.finish is not None:
            break


@given(streams, params, st.integers(0, 24))
def test_a_fork_and_a_replay_say_what_the_first_would_have_said(
    stream: tuple[Tokenizer, list[int]], asked: SamplingParams, cut: int
) -> None:
    tokenizer, ids = stream
    whole = run(OutputAutomaton(tokenizer, asked, end_ids_of(tokenizer)), ids)
    cut = min(cut, whole.num_tokens - 1) if whole.last and whole.last.finish else min(cut, len(ids))
    first = OutputAutomaton(tokenizer, asked, end_ids_of(tokenizer))
    replayed = first.replay(ids[:cut])
    rest = run(first.fork(), ids[cut:])
    assert replayed + rest.text == whole.text
    assert first.replay([]) == ""
    assert run(first, ids[cut:]).text == rest.text


@given(st.text(st.sampled_from("ab"), max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_where_an_answer_ends_does_not_depend_on_how_tokens_cut_it(text: str, stops: list[str]) -> None:
    asked = SamplingParams(stop=tuple(stops))
    letter_by_letter = run(OutputAutomaton(BYTE_LEVEL, asked), list(text.encode()))
    ends = [
        text[:end].removesuffix(stop)
        for end in range(1, len(text) + 1)
        for stop in sorted(stops, key=len)[::-1]
        if text[:end].endswith(stop)
    ]
    assert letter_by_letter.text == (ends[0] if ends else text)
