"""What is done for programs besides what they say changes no token: with effects on, off, and traced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM
from trivium.lang.effects import Effects
from trivium.lang.settings import global_config

NAMES = [each.name for each in fields(Effects)]
WORDS = st.text(alphabet="abc ", min_size=1, max_size=9)
LEAVES = st.one_of(
    st.tuples(st.just("say"), WORDS),
    st.tuples(st.just("gen"), st.integers(1, 4)),
    st.tuples(st.just("seeded"), st.integers(1, 4)),
    st.tuples(st.just("regex"), st.sampled_from(["[ab]{1,3}", "[c-e]{2}"])),
    st.tuples(st.just("select"), st.lists(WORDS, min_size=2, max_size=3, unique=True)),
    st.tuples(st.just("repeat"), st.integers(0, 1)),
)
STEPS = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=3),
    lambda own: st.lists(
        LEAVES
        | st.tuples(st.just("copy"), own)
        | st.tuples(st.just("fork"), st.lists(own, min_size=2, max_size=3))
        | st.tuples(st.just("read"), own)
        | st.tuples(st.just("if"), own)
        | st.tuples(st.just("scope"), own),
        min_size=1,
        max_size=4,
    ),
    max_leaves=8,
)


class Writer:
    """Writes steps to a state; what it sets is counted, so that names differ."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: dict[Any, list[str]] = {}
        """Per state: variables that it has set to texts."""

    def name(self, s: Any = None) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.texts.setdefault(s, []).append(name)
        return name

    def write(self, s: Any, steps: Any) -> None:
        for kind, what in steps:
            getattr(self, kind)(s, what)

    def say(self, s: Any, text: str) -> None:
        s.append(text)

    def gen(self, s: Any, count: int) -> None:
        s.append(sgl.gen(self.name(s), max_tokens=count, temperature=0.0, ignore_eos=True, regex="[a-z ]+"))

    def seeded(self, s: Any, count: int) -> None:
        s.append(sgl.gen(self.name(s), max_tokens=count, temperature=0.8, seed=7, ignore_eos=True, regex="[a-z ]+"))

    def regex(self, s: Any, pattern: str) -> None:
        s.append(sgl.gen(self.name(s), max_tokens=4, temperature=0.0, regex=pattern))

    def select(self, s: Any, choices: list[str]) -> None:
        s.append(sgl.select(self.name(s), choices))

    def repeat(self, s: Any, back: int) -> None:
        """Say again what was written here last, if it was."""
        known = self.texts.get(s, [])
        if len(known) > back:
            s.append(s[known[-1 - back]])

    def copy(self, s: Any, steps: Any) -> None:
        with s.copy() as own:
            self.write(own, steps)

    def fork(self, s: Any, branches: Any) -> None:
        forks = s.fork(len(branches))
        for own, steps in zip(forks, branches, strict=True):
            self.write(own, steps)
        forks.join("concate_and_append")

    def read(self, s: Any, steps: Any) -> None:
        """Read a branch before it is joined."""
        forks, name = s.fork(1), self.name()
        self.write(forks[0], steps)
        forks[0].append(sgl.gen(name, max_tokens=2, temperature=0.0, ignore_eos=True, regex="[a-z ]+"))
        s.append(forks[0][name])
        forks.join()

    def scope(self, s: Any, steps: Any) -> None:
        name = self.name()
        with s.var_scope(name):
            self.write(s, steps)
        s.append(s[name])

    def branch(self, s: Any, steps: Any) -> None:
        name = self.name()
        s.append(sgl.select(name, ["a", "bc"]))
        s.if_(s[name] == "a", lambda s: Writer().say(s, "!"), lambda s: Writer().say(s, "?"))
        self.write(s, steps)


setattr(Writer, "if", Writer.branch)


def found(state: Any) -> tuple[str, dict[str, Any]]:
    return state.text(), {name: state[name] for name in state._strand.variables}


def check(steps: Any, backend: Any, words: list[str], switches: list[dict[str, bool]]) -> None:
    def own(s: Any, word: str) -> None:
        s += "x" * 64
        s += word
        Writer().write(s, steps)

    program = sgl.function(own)
    outcomes = []
    for values in switches:
        for name, value in values.items():
            setattr(global_config, name, value)
        outcomes.append([found(state) for state in program.run_batch([(word,) for word in words], backend=backend)])
    trace = program.trace(backend=backend)
    outcomes.append([found(state) for state in trace.run_batch([(word,) for word in words])])
    for name in NAMES:
        setattr(global_config, name, True)
    assert all(each == outcomes[0] for each in outcomes)


def every_switch() -> list[dict[str, bool]]:
    alone = [{name: name != off for name in NAMES} for off in NAMES]
    return [dict.fromkeys(NAMES, True), dict.fromkeys(NAMES, False), *alone]


LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@given(steps=STEPS, words=st.lists(WORDS, min_size=1, max_size=3, unique=True))
@settings(LAW, max_examples=40)
def test_the_same_text_from_a_script(steps: Any, words: list[str]) -> None:
    def answer(prompt: str) -> str:
        return "".join(chr(97 + (len(prompt) * 7 + idx * 5) % 5) for idx in range(4))

    backend = sgl.ScriptedBackend(answer, score=lambda before, letter: -((len(before) * ord(letter)) % 7) - 0.5)
    check(steps, backend, words, every_switch())


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


@given(steps=STEPS, words=st.lists(WORDS, min_size=2, max_size=2, unique=True))
@settings(LAW, max_examples=12)
def test_the_same_tokens_from_an_engine(llm: LLM, steps: Any, words: list[str]) -> None:
    check(steps, llm, words, [dict.fromkeys(NAMES, True), dict.fromkeys(NAMES, False)])
    assert llm.shared_loop.call("check") == {"differences": []}
