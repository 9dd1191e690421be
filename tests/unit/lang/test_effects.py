"""What is done besides what a program says: when, and that its switch turns it off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM
from trivium.base.errors import ProgramError
from trivium.lang.effects import Effects, effects
from trivium.lang.settings import global_config

STEM = "You are a patient assistant that answers in one word and in nothing else but one word. "


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    before = effects.copy()
    yield
    for each in fields(Effects):
        setattr(global_config, each.name, getattr(before, each.name))


@sgl.function
def ask(s: Any, word: str) -> None:
    s += STEM
    s += "Word: " + word + ". "
    s += sgl.gen("x", max_tokens=2, temperature=0)


def test_a_batch_computes_its_static_prefix_first_and_once() -> None:
    for wanted in (True, False):
        global_config.enable_precache_with_tracing = wanted
        backend = sgl.ScriptedBackend(lambda prompt: "ok")
        ask.run_batch([{"word": "a"}, {"word": "b"}], backend=backend)
        prefill = [STEM + "Word: "] if wanted else []
        assert backend.prompts[: len(prefill)] == prefill
        assert sorted(backend.prompts[len(prefill) :]) == [STEM + "Word: a. ", STEM + "Word: b. "]
        assert [params.max_tokens for params in backend.params] == [*([0] * wanted), 2, 2]
    for items in ([{"word": "a"}], []):
        backend = sgl.ScriptedBackend(lambda prompt: "ok")
        ask.run_batch(items, backend=backend)
        assert len(backend.prompts) == len(items)


async def test_so_does_a_batch_of_an_event_loop() -> None:
    backend = sgl.ScriptedBackend(lambda prompt: "ok")
    await ask.run_batch_async([{"word": "a"}, {"word": "b"}], backend=backend)
    assert backend.prompts[0] == STEM + "Word: "
    backend = sgl.ScriptedBackend(lambda prompt: "ok")
    ask.cache(backend)
    assert backend.prompts == [STEM + "Word: "]


def test_a_prefix_holds_roles_as_the_template_writes_them_and_stops_at_what_differs() -> None:
    @sgl.function
    def talk(s: Any, word: str) -> None:
        s += sgl.system(STEM)
        s += sgl.user("Word: " + word)
        s += sgl.assistant(sgl.gen("x"))

    @sgl.function
    def formatted(s: Any, word: str) -> None:
        s += STEM + "!"
        s += f"Word: {word}" + sgl.gen("x")

    for function, prefix in ((talk, f"[system]{STEM}\n[user]Word: "), (formatted, STEM + "!")):
        backend = sgl.ScriptedBackend(lambda prompt: "ok")
        function.run_batch([("a",), ("b",)], backend=backend)
        assert backend.prompts[0] == prefix
        assert all(prompt.startswith(prefix) for prompt in backend.prompts)


def test_a_short_prefix_and_one_that_cannot_be_written_are_left_to_the_runs() -> None:
    @sgl.function
    def short(s: Any, word: str) -> None:
        s += "Word: " + word + sgl.gen("x")

    @sgl.function
    def nested(s: Any, word: str) -> None:
        s += sgl.user_begin() + STEM + sgl.system_begin()

    backend = sgl.ScriptedBackend(lambda prompt: "ok")
    short.run_batch([("a",), ("b",)], backend=backend)
    assert len(backend.prompts) == 2
    with pytest.raises(ProgramError, match="system begins inside user"):
        nested.run_batch([("a",), ("b",)], backend=backend)


def test_a_pinned_prefix_is_let_go_after_the_batch() -> None:
    pins: list[tuple[str, Any]] = []

    class Pinning(sgl.ScriptedBackend):
        def pin(self, pin_id: str, prompt_ids: list[int]) -> bool:
            pins.append(("pin", "".join(map(chr, prompt_ids))))
            return True

        def unpin(self, pin_id: str) -> None:
            pins.append(("unpin", len(self.prompts)))

    states = ask.run_batch([("a",), ("b",)], backend=Pinning(lambda prompt: "ok"), generator_style=True)
    next(iter(states))
    assert pins == [("pin", STEM + "Word: ")]
    list(states)
    assert pins[1:] == [("unpin", 3)]


def test_constraints_are_compiled_while_earlier_gens_are_written() -> None:
    expected: list[Any] = []

    class Compiling(sgl.ScriptedBackend):
        def compile_ahead(self, constraint: Any) -> None:
            expected.append((constraint.regex, len(self.prompts)))

    @sgl.function
    def constrained(s: Any) -> None:
        s += "a" + sgl.gen("x") + "b" + sgl.gen("y", regex="[0-9]") + sgl.gen("z", regex="[a-z]")

    constrained.run(backend=Compiling(lambda prompt: "1", delay_s=0.01)).sync()
    assert expected == [("[0-9]", 0), ("[a-z]", 0)]
    expected.clear()
    constrained.run_batch([{}, {}], backend=Compiling(lambda prompt: "1"))
    assert expected[:2] == [("[0-9]", 0), ("[a-z]", 0)]
    expected.clear()
    global_config.enable_compile_ahead = False
    constrained.run_batch([{}, {}], backend=Compiling(lambda prompt: "1"))
    assert expected == []


def copies(temperature: float, count: int = 6, **options: Any) -> tuple[float, Any, sgl.ScriptedBackend]:
    @sgl.function
    def several(s: Any) -> None:
        s += "s"
        for idx in range(count):
            with s.copy() as c:
                c.append(f"{idx}" + sgl.gen(f"x{idx}", temperature=temperature))
        s += "." + sgl.gen("y", temperature=temperature)

    backend = sgl.ScriptedBackend(lambda prompt: prompt[-1] * 10, delay_s=0.01)
    began_s = time.monotonic()
    state = several.run(backend=backend, **options)
    state.sync()
    return time.monotonic() - began_s, state, backend


def test_copies_that_are_independent_run_side_by_side() -> None:
    in_order_s = 7 * 0.1
    took_s, state, backend = copies(0.0)
    assert took_s < in_order_s / 2
    assert state.text() == "s." + "." * 10
    assert [state[f"x{idx}"] for idx in range(6)] == [[f"{idx}" * 10] for idx in range(6)]
    assert sorted(backend.prompts) == ["s.", *(f"s{idx}" for idx in range(6))]
    assert copies(1.0)[0] > in_order_s
    global_config.enable_parallel_branches = False
    took_s, again, backend = copies(0.0)
    assert took_s > in_order_s
    assert (again.text(), backend.prompts) == (state.text(), [*(f"s{idx}" for idx in range(6)), "s."])
    assert [again[f"x{idx}"] for idx in range(6)] == [state[f"x{idx}"] for idx in range(6)]


def test_what_fails_beside_reaches_every_reader() -> None:
    @sgl.function
    def failing(s: Any) -> None:
        s += "s"
        with s.copy() as c:
            c.append("c" + sgl.gen("x", temperature=0))
        s += "." + sgl.gen("y", temperature=0)

    def answer(prompt: str) -> str:
        if prompt == "sc":
            raise ProgramError("no", line="here")
        return "ok"

    state = failing.run(backend=sgl.ScriptedBackend(answer, delay_s=0.005))
    for read in (lambda: state["x"], state.sync, state.text):
        with pytest.raises(ProgramError, match="no"):
            read()
    assert isinstance(state.error(), ProgramError)


def test_a_branch_with_a_tool_is_waited_for() -> None:
    called: list[int] = []

    def note(idx: int) -> None:
        called.append(idx)

    @sgl.function
    def tooled(s: Any) -> None:
        for idx in range(3):
            with s.copy() as c:
                c.append(sgl.gen("x", temperature=0))
                c.append(sgl.tool(note, {"idx": idx}, into=f"t{idx}"))

    tooled.run(backend=sgl.ScriptedBackend(lambda prompt: "a", delay_s=0.005)).sync()
    assert called == [0, 1, 2]


def test_texts_are_read_in_one_step_with_the_gen_behind_them() -> None:
    @sgl.function
    def texts(s: Any) -> None:
        s += "a"
        s += "b"
        s += sgl.gen("x", max_tokens=1) + "c" + "d" + sgl.gen("y", max_tokens=1)

    found = []
    for wanted in (True, False):
        global_config.enable_joined_constants = wanted
        backend = sgl.ScriptedBackend(lambda prompt: "!")
        state = texts.run(backend=backend)
        found.append((state.text(), backend.prompts))
    assert found == [
        ("ab!cd!", ["ab", "ab!cd"]),
        ("ab!cd!", ["a", "ab", "ab", "ab!c", "ab!cd", "ab!cd"]),
    ]


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(AttributeError):
        global_config.enable_magic = True  # type: ignore[attr-defined]


def test_explain_says_what_is_known() -> None:
    @sgl.function
    def own(s: Any, word: str) -> None:
        s += STEM + sgl.gen("x", regex="[a-z]+", max_tokens=3)
        with s.copy() as c:
            c.append(sgl.gen("z", max_tokens=4))
        s.fork(2)
        s += f"{word}"

    text = own.explain(backend=sgl.ScriptedBackend())
    told = {line[:18].strip(): line[18:] for line in text.split("\n\n", 1)[1].splitlines()}
    assert text.startswith("program own(word) {\n")
    assert told["static prefix"].startswith('87 characters of text, 87 tokens with its roles: "You are')
    assert told["compiled ahead"] == 'regex "[a-z]+"'
    assert told["at most"] == "2 gens and selects, 0 tool calls, 3 branches, 7 tokens"
    assert told["not traced"].startswith(f"from {__file__}:{own.func.__code__.co_firstlineno + 6} on: argument 'word'")
    assert "the 2 branches of f1, over one prefix" in text
    assert "f0 and what follows its join" in text
    assert ask.explain().endswith("traced            to its end\n")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


def test_in_process_the_prefix_is_computed_once_and_pinned_meanwhile(llm: LLM) -> None:
    def stats() -> dict[str, Any]:
        return llm.shared_loop.call("stats")

    def pinned() -> int:
        pages: Any = llm.shared_loop.call("cache")["pages"]
        return int(pages["pinned"])

    computed = {}
    for wanted in (True, False):
        global_config.enable_precache_with_tracing = wanted
        llm.shared_loop.call("flush")
        before = stats()
        states = ask.run_batch([(f"{idx}",) for idx in range(8)], backend=llm, generator_style=True)
        state = next(iter(states))
        assert bool(pinned()) == wanted
        list(states)
        assert pinned() == 0
        after = stats()
        prompts = after["prompt_tokens_total"] - before["prompt_tokens_total"]
        computed[wanted] = prompts - after["prefix_hit_tokens_total"] + before["prefix_hit_tokens_total"]
        assert state.get_meta_info("x")["prompt_tokens"] > 87
    assert computed[True] <= computed[False] + 1
    assert llm.shared_loop.call("check") == {"differences": []}


def test_in_process_a_constraint_is_compiled_before_its_request_comes(llm: LLM) -> None:
    compiler = llm.shared_loop._open_loop().compiling.compiler  # type: ignore[union-attr]

    @sgl.function
    def own(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=4) + sgl.gen("y", max_tokens=2, regex="[a-f]{2}")

    before = compiler.stats
    own.run(backend=llm).sync()
    after = compiler.stats
    assert after.compiled_total == before.compiled_total + 1
    assert after.cached_total == before.cached_total + 1  # the request found what had been begun
