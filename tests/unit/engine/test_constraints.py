"""Requests under a grammar in a real loop: they wait for it beside the loop, and nobody else notices."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.tiny_engine import run_alone, tiny_loop
from trivium.api import Answers
from trivium.base.errors import CapacityError, InvalidParameterError, UnsupportedFeatureError
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.engine.compiling import Compiling
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Delivered, Delta, Submit
from trivium.grammar.compiler import GrammarCompiler
from trivium.grammar.library import Vocabulary
from trivium.grammar.matcher import Matcher

PROMPT = (40, 41, 42)
DRAWN = SamplingParams(temperature=1.0, seed=5, max_tokens=40)
PAIRS = StructuredOutputs(regex="([a-f]{2} ){1,6}end")


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    own = tiny_loop()
    yield own
    assert own.check() == []
    own.close()


class HeldVocabulary:
    """Compiles when it is told to."""

    def __init__(self, loop: EngineLoop) -> None:
        self.inner = Vocabulary(loop._tokenizer, loop.limits.end_ids, vocab_size=loop.limits.vocab_size)
        self.may_go = threading.Event()

    def compile(self, wanted: StructuredOutputs) -> Any:
        assert self.may_go.wait(10)
        return self.inner.compile(wanted)


@pytest.fixture
def held(loop: EngineLoop) -> Iterator[HeldVocabulary]:
    own = HeldVocabulary(loop)
    loop.compiling = Compiling(GrammarCompiler(lambda: own))  # type: ignore[arg-type,return-value]
    yield own
    own.may_go.set()


def submit(loop: EngineLoop, name: str, params: SamplingParams, **fields: Any) -> Answers:
    loop.submit(Submit(request_id=name, prompt_ids=list(PROMPT), params=params, **fields))
    return Answers(name, list(PROMPT), list(PROMPT), params)


def run(loop: EngineLoop, *answers: Answers) -> list[Delta]:
    by_name = {each.output.request_id: each for each in answers}
    news = []
    while loop.has_work:
        for delta in loop.step():
            news.append(delta)
            by_name[delta.request_id].add(delta)
    return news


def texts(answers: Answers) -> Sequence[str]:
    return [each.text for each in answers.output.outputs]


def test_answers_are_sentences_of_their_grammars(loop: EngineLoop) -> None:
    schema = {"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 4}
    pairs = submit(loop, "pairs", replace(DRAWN, n=3, structured_outputs=PAIRS))
    listed = submit(loop, "list", replace(DRAWN, structured_outputs=StructuredOutputs(json=schema)))
    run(loop, pairs, listed)
    assert len(set(texts(pairs))) > 1
    assert all(re.fullmatch(PAIRS.regex or "", text) for text in texts(pairs))
    assert set(json.loads(texts(listed)[0])) <= {"a", 1, None}
    assert {each.finish_reason for each in (*pairs.output.outputs, *listed.output.outputs)} == {"stop"}


def test_neighbours_have_the_bits_that_they_have_alone(loop: EngineLoop) -> None:
    alone = run_alone(loop, PROMPT, DRAWN)
    free = submit(loop, "free", DRAWN)
    bound = submit(loop, "bound", replace(DRAWN, structured_outputs=PAIRS))
    greedy = submit(loop, "greedy", replace(DRAWN, temperature=0.0, logprobs=2, structured_outputs=PAIRS))
    run(loop, free, bound, greedy)
    assert free.output.outputs == alone.outputs


def test_an_answer_that_is_whole_ends_whatever_else_was_asked(loop: EngineLoop) -> None:
    for changes in ({"ignore_eos": True}, {"min_tokens": 30}, {}):
        bound = submit(loop, "bound", replace(DRAWN, structured_outputs=StructuredOutputs(choice=("ab",)), **changes))
        run(loop, bound)
        assert texts(bound) == ["ab"]
        assert bound.output.outputs[0].finish_reason == "stop"


def test_an_answer_that_is_cut_ends_by_length(loop: EngineLoop) -> None:
    bound = submit(loop, "bound", replace(DRAWN, max_tokens=3, structured_outputs=PAIRS))
    run(loop, bound)
    assert bound.output.outputs[0].finish_reason == "length"


def test_processed_logprobs_of_what_is_forced_are_zero(loop: EngineLoop) -> None:
    wanted = replace(DRAWN, logprobs=0, logprobs_mode="processed", structured_outputs=StructuredOutputs(choice=("ab",)))
    bound = submit(loop, "bound", wanted)
    run(loop, bound)
    assert [each.logprob for each in bound.output.outputs[0].logprobs or ()] == [0.0, 0.0]


def test_what_is_forced_is_taken_in_one_step_and_counted(loop: EngineLoop) -> None:
    wanted = replace(
        DRAWN, structured_outputs=StructuredOutputs(regex="the key is [ab], and so on (x|y)"), stop=("on x",)
    )
    counts = []
    for params in (
        wanted,
        replace(wanted, logprobs=0),
        replace(wanted, stop=(", and",)),
        replace(wanted, max_tokens=5),
    ):
        before = loop.stats()
        bound = submit(loop, "bound", params)
        run(loop, bound)
        after, (output,) = loop.stats(), bound.output.outputs
        generated, forced = (
            int(str(after[name])) - int(str(before[name]))
            for name in ("generation_tokens_total", "forced_tokens_total")
        )
        assert generated == len(output.token_ids)
        counts.append((forced, output.text, output.finish_reason))
    jumped, drawn, stopped, cut = counts
    assert jumped[0] == len("the key is , and so on ")
    assert drawn == (0, *jumped[1:])
    assert stopped[1:] == (jumped[1][:12], "stop")
    assert cut[1:] == ("the k", "length")


def test_others_run_while_a_grammar_is_compiled(loop: EngineLoop, held: HeldVocabulary) -> None:
    bound = submit(loop, "bound", replace(DRAWN, structured_outputs=PAIRS))
    free = submit(loop, "free", DRAWN)
    news = []
    while not free.output.finished:
        for delta in loop.step():
            news.append(delta.request_id)
            free.add(delta)
    assert set(news) == {"free"}
    assert loop.has_work
    assert loop.open_requests == ("bound",)
    assert loop.stats()["grammars_waiting"] == 1
    held.may_go.set()
    run(loop, bound)
    assert re.fullmatch(PAIRS.regex or "", texts(bound)[0])
    stats = loop.stats()
    assert (stats["grammars_waiting"], stats["grammars_compiled_total"]) == (0, 1)


def test_a_constraint_that_cannot_be_compiled_is_refused_and_nobody_else(loop: EngineLoop) -> None:
    free = submit(loop, "free", DRAWN)
    submit(loop, "bound", replace(DRAWN, structured_outputs=StructuredOutputs(regex="(a")))
    run(loop, free)
    ((name, error),) = loop.take_refusals()
    assert name == "bound"
    assert isinstance(error, InvalidParameterError)
    assert "unclosed group" in str(error)
    assert loop.open_requests == ()
    with pytest.raises(InvalidParameterError, match="unclosed group"):
        loop.refuse_early(PROMPT, replace(DRAWN, structured_outputs=StructuredOutputs(regex="(a")))


def test_what_waits_for_its_grammar_can_be_left_and_runs_late(loop: EngineLoop, held: HeldVocabulary) -> None:
    wanted = replace(DRAWN, structured_outputs=PAIRS)
    submit(loop, "left", wanted)
    submit(loop, "late", wanted, deadline_s=1.0, waited_s=2.0)
    loop.abort(["left"])
    loop.step()
    ((name, error),) = loop.take_refusals()
    assert name == "late"
    assert "deadline passed" in str(error)
    assert not loop.has_work


def test_those_that_wait_for_grammars_are_handed_back_unless_they_had_begun(
    loop: EngineLoop, held: HeldVocabulary
) -> None:
    wanted = replace(DRAWN, structured_outputs=PAIRS)
    submit(loop, "new", wanted)
    submit(loop, "begun", wanted, delivered=[Delivered(token_ids=[100])], was_accepted=True)
    assert loop.queued_requests() == ["new"]
    loop.abort(["new", "begun"])


def test_those_that_wait_for_grammars_fill_the_queue(held: HeldVocabulary) -> None:
    loop = tiny_loop(max_queue=2, max_num_seqs=1)
    loop.compiling = Compiling(GrammarCompiler(lambda: held))  # type: ignore[arg-type,return-value]
    wanted = replace(DRAWN, structured_outputs=PAIRS)
    answers = [submit(loop, f"r{idx}", wanted) for idx in range(3)]
    with pytest.raises(CapacityError):
        submit(loop, "one too many", wanted)
    held.may_go.set()
    run(loop, *answers)
    assert loop.take_refusals() == []
    assert all(re.fullmatch(PAIRS.regex or "", texts(each)[0]) for each in answers)
    loop.close()


LATE = StructuredOutputs(regex="[0-9]{70}((a{0,50}){0,50}){0,50}")
"""Outgrows its limits in the middle of an answer."""


def test_a_constraint_that_outgrows_its_limits_ends_its_answer_alone_by_name(loop: EngineLoop) -> None:
    alone = run_alone(loop, PROMPT, DRAWN)
    late = submit(loop, "late", replace(DRAWN, max_tokens=400, min_tokens=400, structured_outputs=LATE))
    free = submit(loop, "free", DRAWN)
    news = run(loop, late, free)
    assert "the constraint grew beyond its limits after" in (late.output.error or "")
    assert {each.error_code for each in news if each.error} == {"constraint_failed"}
    assert free.output.outputs == alone.outputs
    assert loop.stats()["step_errors_total"] == 0


def test_who_waits_too_long_for_a_grammar_is_told_so() -> None:
    loop = tiny_loop(grammar_timeout_s=0.2)
    held = HeldVocabulary(loop)
    loop.compiling = Compiling(GrammarCompiler(lambda: held), 0.2)  # type: ignore[arg-type,return-value]
    slow = submit(loop, "slow", replace(DRAWN, structured_outputs=PAIRS))
    behind = submit(loop, "behind", replace(DRAWN, structured_outputs=StructuredOutputs(regex="a")))
    assert not slow.output.finished
    assert not behind.output.finished
    refusals: dict[str, Any] = {}
    while len(refusals) < 2:
        loop.step()
        refusals |= {each.request_id: each.error for each in loop.take_refusals()}
    assert isinstance(refusals["slow"], InvalidParameterError)
    assert re.search(r"regex could not be compiled within 0.2 s \(grammar_timeout_s\)", str(refusals["slow"]))
    assert refusals["slow"].param == "regex"
    assert isinstance(refusals["behind"], CapacityError)
    with pytest.raises(InvalidParameterError, match=r"within 0\.2 s"):
        loop.refuse_early(PROMPT, replace(DRAWN, structured_outputs=PAIRS))
    assert loop.stats()["grammars_timed_out_total"] == 3
    held.may_go.set()
    loop.refuse_early(PROMPT, replace(DRAWN, structured_outputs=PAIRS))  # it was compiled on, and is kept
    assert loop.stats()["grammars_compiled_total"] == 1
    assert not loop.has_work
    loop.close()


def test_a_grammar_that_fails_ends_its_answer_alone(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, calls = Matcher.fill, []

    def failing(self: Matcher, mask: Any) -> None:
        calls.append(self)
        if len(calls) == 6:
            self._inner.consume_token(0)  # against the grammar: it is in an error from now on
        fill(self, mask)

    wanted = replace(DRAWN, structured_outputs=PAIRS)
    loop.refuse_early(PROMPT, wanted)  # compiles it
    monkeypatch.setattr(Matcher, "fill", failing)
    alone = run_alone(loop, PROMPT, DRAWN)
    bound = submit(loop, "bound", wanted)
    free = submit(loop, "free", DRAWN)
    run(loop, bound, free)
    assert "there is no mask" in (bound.output.error or "")
    assert free.output.outputs == alone.outputs


def test_without_a_compiler_constraints_are_refused_by_name(loop: EngineLoop) -> None:
    loop.compiling = None
    with pytest.raises(UnsupportedFeatureError, match="structured_outputs needs a tokenizer with an end token"):
        submit(loop, "bound", replace(DRAWN, structured_outputs=PAIRS))
    assert not loop.has_work
