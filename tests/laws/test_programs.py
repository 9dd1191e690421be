"""A program is nothing but its requests: constants, gens, forks and selects in any order answer as plain calls do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams, StructuredOutputs

LETTERS = "[a-z ]+"
"""What the tiny model writes otherwise is often no text."""
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "max_tokens": 5,
    "ignore_eos": True,
    "structured_outputs": StructuredOutputs(regex=LETTERS),
}
WORDS = st.text(alphabet="abc ", min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), WORDS),
        st.tuples(st.just("gen"), st.integers(1, 5)),
        st.tuples(st.just("select"), st.lists(WORDS, min_size=1, max_size=3, unique=True)),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


def plainly(llm: LLM, ids: list[int], steps: list[tuple[str, Any]]) -> list[int]:
    """Do the same with `generate`, on tokens (one per letter, for letters of ASCII)."""
    for kind, what in steps:
        if kind == "say":
            ids = ids + llm.get_tokenizer().encode(what, add_special_tokens=False)
        elif kind == "gen":
            [output] = llm.generate([ids], SamplingParams(**{**GREEDY, "max_tokens": what}), use_tqdm=False)
            written = output.outputs[0].token_ids
            ids = ids + [each for each in written if not llm.get_tokenizer().is_special(each)]
        else:
            ids = ids + max(
                (llm.get_tokenizer().encode(each, add_special_tokens=False) for each in what),
                key=lambda own: mean(llm, ids, own),
            )
    return ids


def mean(llm: LLM, ids: list[int], own: list[int]) -> float:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprob_start=len(ids))
    [output] = llm.generate([ids + own], params, use_tqdm=False)
    return sum(entry.logprob for entry in output.prompt_logprobs or [] if entry is not None) / len(own)


def write(state: Any, steps: list[tuple[str, Any]]) -> None:
    for kind, what in steps:
        if kind == "say":
            state.append(what)
        elif kind == "gen":
            state.append(sgl.gen(max_tokens=what, temperature=0.0, ignore_eos=True, regex=LETTERS))
        else:
            state.append(sgl.select(choices=what))


@given(first=WORDS, trunk=STEPS, branches=st.lists(STEPS, max_size=3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_program_answers_as_plain_calls_do(llm: LLM, first: str, trunk: Any, branches: Any) -> None:
    found: list[str] = []

    def program(s: Any) -> None:
        s += first
        write(s, trunk)
        if branches:
            forks = s.fork(len(branches))
            for fork, steps in zip(forks, branches, strict=True):
                write(fork, steps)
            found.extend(fork.text() for fork in forks)

    state = sgl.function(program).run(backend=llm)
    decode = llm.get_tokenizer().decode
    ids = plainly(llm, llm.get_tokenizer().encode(first, add_special_tokens=True), trunk)
    assert state.text() == decode(ids)
    assert found == [decode(plainly(llm, ids, steps)) for steps in branches]
    assert llm.shared_loop.call("check") == {"differences": []}


@given(first=WORDS, trunk=STEPS, num=st.integers(2, 4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_program_says_the_same_alone_in_a_batch_in_forks_and_streamed(
    llm: LLM, first: str, trunk: Any, num: int
) -> None:
    def program(s: Any) -> None:
        s += first
        write(s, trunk)

    def forked(s: Any) -> None:
        s += first
        forks = s.fork(num)
        for fork in forks:
            write(fork, trunk)
        branches.extend(fork.text() for fork in forks)

    branches: list[str] = []
    own = sgl.function(program)
    alone = own.run(backend=llm).text()
    streamed = own.run(backend=llm, stream=True)
    assert "".join(streamed.text_iter()) == alone == streamed.text()
    together: Any = own.run_batch([{}] * num, backend=llm)
    assert [state.text() for state in together] == [alone] * num
    sgl.function(forked).run(backend=llm)
    assert branches == [alone] * num


@given(first=WORDS, most=st.integers(1, 6), n=st.integers(2, 4), seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_several_answers_begin_with_the_one_of_a_single_draw(
    llm: LLM, first: str, most: int, n: int, seed: int
) -> None:
    def program(s: Any, num: int) -> None:
        s += first + sgl.gen("x", n=num, max_tokens=most, seed=seed, ignore_eos=True, regex=LETTERS)

    own = sgl.function(program)
    several = own.run(num=n, backend=llm)
    drawn = several["x"]
    assert len(drawn) == n
    assert drawn == own.run(num=n, backend=llm, stream=True)["x"]
    assert drawn[0] == own.run(num=1, backend=llm)["x"]
    assert several.text() == first + drawn[0]
