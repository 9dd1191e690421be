"""Programs mean what a plain reading of them says: text, variables and messages, however they are run.

The reading below knows neither queues nor tokens: a state is a text, a mapping and a list. The model is a script whose
answers depend on all that precedes them, so whatever is out of order shows.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import trivium.lang as sgl
from trivium.lang import ScriptedBackend

LETTERS = "ab. "
TEXTS = st.text(alphabet="xyz <", min_size=1, max_size=5)
NAMES = st.sampled_from(["u", "v", "w"])
GENS = st.tuples(
    st.just("gen"), NAMES, st.sampled_from([None, ".", "b"]), st.sampled_from([None, "a+b"]), st.integers(1, 9)
)
SELECTS = st.tuples(
    st.just("select"),
    NAMES,
    st.lists(TEXTS, min_size=1, max_size=3, unique=True),
    st.sampled_from(["token_length_normalized", "joint_probability", "greedy_token_selection"]),
)
SAYS = st.tuples(st.just("say"), TEXTS)
PLAIN = st.lists(st.one_of(SAYS, GENS, SELECTS), max_size=3)
ROLES = st.tuples(st.just("role"), st.sampled_from(["system", "user", "assistant"]), PLAIN)


def blocks(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    steps = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("scope"), st.sampled_from(["s1", "s2"]), steps),
        st.tuples(st.just("fork"), st.lists(steps, min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("set"), NAMES, TEXTS),
    )


STEPS = st.lists(st.recursive(st.one_of(SAYS, GENS, SELECTS, ROLES), blocks, max_leaves=5), max_size=5)


def answer(prompt: str) -> str:
    digest = hashlib.blake2b(prompt.encode(), digest_size=9).digest()
    return "".join(LETTERS[byte % len(LETTERS)] for byte in digest)


def score(before: str, letter: str) -> float:
    return -1.0 - hashlib.blake2b((before + letter).encode(), digest_size=1).digest()[0] % 5


@dataclass
class Reading:
    """A state, as it is read."""

    text: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def do(self, steps: list[Any]) -> None:
        for kind, *what in steps:
            getattr(self, f"_{kind}")(*what)

    def _say(self, text: str) -> None:
        self.text += text

    def _gen(self, name: str, stop: str | None, pattern: str | None, most: int) -> None:
        import re  # noqa: PLC0415

        written = answer(self.text)
        ends = [] if stop is None or stop not in written else [(written.index(stop) + 1, written.index(stop))]
        for end in range(1, len(written) + 1) if pattern else ():
            starts = [start for start in range(end) if re.fullmatch(pattern or "", written[start:end])]
            if starts:
                ends.append((end, starts[0]))
                break
        self.variables[name] = written[: min(ends)[1] if ends else None][:most]
        self.text += self.variables[name]

    def _select(self, name: str, choices: list[str], method: str) -> None:
        rows = [[score(self.text + each[:idx], each[idx]) for idx in range(len(each))] for each in choices]
        means = [sum(row) / len(row) for row in rows]
        if method == "greedy_token_selection":
            longest = max(map(len, rows))
            measures: list[Any] = [row + [mean] * (longest - len(row)) for row, mean in zip(rows, means, strict=True)]
        else:
            measures = means if method == "token_length_normalized" else [sum(row) for row in rows]
        self.variables[name] = choices[measures.index(max(measures))]
        self.text += self.variables[name]

    def _role(self, role: str, steps: list[Any]) -> None:
        self.text += f"[{role}]"
        start = len(self.text)
        self.do(steps)
        self.messages.append({"role": role, "content": self.text[start:].lstrip()})
        self.text += "\n"

    def _scope(self, name: str, steps: list[Any]) -> None:
        start = len(self.text)
        self.do(steps)
        self.variables[name] = self.text[start:]

    def _set(self, name: str, value: str) -> None:
        self.variables[name] = value

    def _fork(self, branches: list[list[Any]], appends: bool) -> None:
        children = [replace(self, variables=dict(self.variables), messages=list(self.messages)) for _ in branches]
        for child, steps in zip(children, branches, strict=True):
            child.do(steps)
        if appends:
            self.text += "".join(child.text[len(self.text) :] for child in children)
            return
        names = {name for child in children for name in child.variables if name not in self.variables}
        self.variables |= {name: [c.variables[name] for c in children if name in c.variables] for name in names}


def write(s: Any, steps: list[Any]) -> None:
    for kind, *what in steps:
        if kind == "say":
            s += what[0]
        elif kind == "gen":
            name, stop, pattern, most = what
            s += sgl.gen(name, stop=stop, stop_regex=pattern, max_tokens=most)
        elif kind == "select":
            s += sgl.select(what[0], what[1], choices_method=what[2])
        elif kind == "set":
            s.sync()  # a value that is set is there at once, before what was appended is done
            s[what[0]] = what[1]
        elif kind == "fork":
            forks = s.fork(len(what[0]))
            for fork, own in zip(forks, what[0], strict=True):
                write(fork, own)
            forks.join("concate_and_append" if what[1] else "gather_variable")
        else:
            scope = s.var_scope(what[0]) if kind == "scope" else getattr(s, what[0])()
            with scope:
                write(s, what[1])


def found(state: Any, names: Any) -> Any:
    return state.text(), {name: state[name] for name in names}, state.messages()


@given(STEPS)
@settings(deadline=None)
def test_a_program_means_what_a_plain_reading_of_it_says(steps: list[Any]) -> None:
    reading = Reading("go ")
    reading.do(steps)
    expected = (reading.text, reading.variables, reading.messages)

    def program(s: Any, first: str) -> None:
        s += first
        write(s, steps)

    own, backend = sgl.function(program), ScriptedBackend(answer, score=score)
    for options in ({}, {"stream": True}, {"use_thread": False}):
        state = own.run("go ", backend=backend, **options)
        assert found(state, reading.variables) == expected
        assert "".join(state.text_iter()) == reading.text
        assert all(name in state for name in reading.variables)
    alike: Any = own.run_batch([{"first": "go "}, ("go ",), {"first": "go "}], backend=backend)
    assert [found(state, reading.variables) for state in alike] == [expected] * 3
    assert found(asyncio.run(own.run_async("go ", backend=backend)), reading.variables) == expected
    assert backend.num_open == 0
