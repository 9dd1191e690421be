"""The known faults of SGLang's language (0.5.23), each with what is right instead, tried on the tiny model.

| fault there | here | tested by |
|---|---|---|
| a stream loses text when the server sends pieces instead of the text so far | pieces make up the text, whatever their sizes | `test_a_stream_loses_nothing` |
| two of three choice methods fail on a first token without a logprob, the third counts the prompt's last token | all four score a choice's tokens only (with K01: as a brute-force sum of prompt logprobs does) | `test_every_measure_scores_the_choices_tokens_alone` |
| a primitive that failed leaves readers of later variables waiting for ever | every reader is told, in the thread, the event loop and the stream | `test_nobody_waits_for_what_will_never_come` |
| `join("concate_and_append")` asks for a route that no server has, and then waits for ever | texts are appended in the order of the branches | `test_branches_are_appended` |
| `gen(n=2)` raises a `TypeError` inside, and a `KeyError` when it is read | the variable is a list | `test_several_answers_are_a_list` |
| whether a fork's prefix is computed once depends on how far the worker has come | it is computed once, however late it was written | `test_a_forks_prefix_is_computed_once_however_late_it_was_written` |
| `bind` loses `num_api_spec_tokens`, a copy of parameters their type and regex | both are kept | `test_bound_programs_keep_their_settings` |
| errors are warnings, and `run_batch` does not raise | they are raised, with the author's line, or returned on demand | `test_a_batch_raises` |
| unnamed `gen`s share one variable named `None` | they have none | `test_unnamed_gens_set_nothing` |
| a thread per state and fork | one thread for all | `test_states_share_a_thread` |
| no cancellation | requests, pages and threads are given back, 200 times | `test_nothing_is_left_of_many_cancelled_programs` |
| no interpreter for event loops | coroutine programs and readers | `test_programs_may_be_coroutines` |
| importing it imports the server | it does not | `test_importing_the_language_imports_no_server` |
"""  # noqa: E501  (a table)

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams
from trivium.base.errors import ProgramError
from trivium.lang.choices import METHODS
from trivium.lang.driver import driver

LIMIT_S = 30
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
LETTERS = "[a-z ]+"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


@pytest.fixture(autouse=True)
def default(llm: LLM) -> Iterator[None]:
    sgl.set_default_backend(llm)
    yield
    sgl.set_default_backend(None)
    wait_until(lambda: not stats(llm)["num_running"] and not stats(llm)["num_waiting"])
    assert llm.shared_loop.call("check") == {"differences": []}


def stats(llm: LLM) -> dict[str, Any]:
    return llm.shared_loop.call("stats")


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def within_limit(action: Callable[[], Any]) -> Any:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(action).result(LIMIT_S)
    finally:
        pool.shutdown(wait=False)


def run(write: Callable[[Any], Any], **options: Any) -> Any:
    def program(s: Any) -> Any:
        return write(s)

    return within_limit(lambda: sgl.function(program).run(**{**GREEDY, **options}))


def test_a_stream_loses_nothing() -> None:
    def write(s: Any) -> None:
        s += "hello" + sgl.gen("x", regex=LETTERS) + "|" + sgl.gen("y", regex=LETTERS)

    state = run(write, stream=True)
    whole = within_limit(lambda: "".join(state.text_iter()))
    assert whole == state.text() == f"hello{state['x']}|{state['y']}"
    assert "".join(state.text_iter("y")) == state["y"] != ""

    async def read() -> str:
        return "".join([text async for text in state.text_async_iter()])

    assert asyncio.run(read()) == whole


@pytest.mark.parametrize("prefix", ["It is ", "It is", "  "])
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(
    "choices", [[" YES", " NO"], ["Hello", "Goodbye", "^*B^&A"], ["a b", "a c"], ["same", "same as before"]]
)
def test_every_measure_scores_the_choices_tokens_alone(llm: LLM, prefix: str, method: str, choices: list[str]) -> None:
    state = run(lambda s: s.append(prefix + sgl.select("x", choices, choices_method=method)))
    meta = state.get_meta_info("x")
    cut = llm.get_tokenizer().encode
    for choice, row in zip(choices, meta["input_token_logprobs"], strict=True):
        ids = cut(prefix + choice, add_special_tokens=False)
        [plain] = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=0))
        logprobs = [each.logprob for each in (plain.prompt_logprobs or [])[-len(row) :] if each is not None]
        assert [logprob for logprob, _, _ in row] == pytest.approx(logprobs, abs=1e-3)
        assert "".join(text or "" for _, _, text in row).endswith(choice)
    means = [sum(each[0] for each in row) / len(row) for row in meta["input_token_logprobs"]]
    assert meta["normalized_prompt_logprobs"] == pytest.approx(means)
    if method == "token_length_normalized":
        assert state["x"] == choices[means.index(max(means))]


def test_nobody_waits_for_what_will_never_come() -> None:
    def write(s: Any) -> None:
        s += sgl.gen("broken", max_tokens=10**9) + sgl.gen("later", max_tokens=1)
        s.fork(2).join()
        with s.var_scope("scope"):
            s += "more"

    state = run(write)
    readers = [
        lambda: state["broken"], lambda: state["later"], lambda: state["scope"], state.text, state.sync, state.messages,
        lambda: list(state.text_iter()), lambda: list(state.text_iter("later")), lambda: state.get_meta_info("later"),
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(ProgramError, match=r"test_sglang_faults\.py:\d+: gen 'broken' failed"):
            within_limit(read)
    with pytest.raises(ProgramError):
        asyncio.run(asyncio.wait_for(state.get_var_async("later"), LIMIT_S))


def test_branches_are_appended() -> None:
    def write(s: Any) -> None:
        s += "a"
        forks = s.fork(3)
        forks += lambda idx: f"<{idx}" + sgl.gen("x", max_tokens=2, regex=LETTERS) + ">"
        forks.join("concate_and_append")
        s += sgl.gen("y", max_tokens=2, regex=LETTERS)

    state = run(write)
    text = within_limit(state.text)
    assert [text[1:].index(f"<{idx}") for idx in range(3)] == sorted(text[1:].index(f"<{idx}") for idx in range(3))
    assert text.endswith(">" + state["y"])


def test_several_answers_are_a_list() -> None:
    state = run(lambda s: s.append("a" + sgl.gen("x", n=2, regex=LETTERS)), temperature=1.0)
    assert len(within_limit(lambda: state["x"])) == 2
    assert state.text() == "a" + state["x"][0]


@pytest.mark.parametrize("waits", [False, True])
def test_a_forks_prefix_is_computed_once_however_late_it_was_written(llm: LLM, waits: bool) -> None:
    llm.shared_loop.call("flush")
    stem = "a beginning that all branches share, " * 3

    def write(s: Any) -> None:
        s += stem
        if waits:
            s.sync()
        forks = s.fork(4)
        forks += lambda idx: f"{idx}{idx}" + sgl.gen("x", max_tokens=1)
        forks.join()

    before = stats(llm)
    state = run(write)
    assert len(within_limit(lambda: state["x"])) == 4
    hits = stats(llm)["prefix_hit_tokens_total"] - before["prefix_hit_tokens_total"]
    assert 4 * (len(stem) + 2) - hits == len(stem) + 4 * 2  # the tiny tokenizer has one token per letter


def test_bound_programs_keep_their_settings() -> None:
    own = sgl.function(num_api_spec_tokens=5)(
        lambda s, a: s.append(a + sgl.gen("x", dtype=bool) + sgl.gen("y", regex="b"))
    )
    bound = own.bind(a="say ")
    assert bound.num_api_spec_tokens == 5
    state = bound.run(**GREEDY)
    assert state["x"] in {"True", "False"}
    assert state["y"] == "b"


def test_a_batch_raises() -> None:
    def write(s: Any, most: int) -> None:
        s += "a" + sgl.gen("x", max_tokens=most)

    program, items = sgl.function(write), [{"most": 2}, {"most": 10**9}, {"most": 3}]
    with pytest.raises(ProgramError, match="max_tokens") as caught:
        program.run_batch(items, **GREEDY)
    assert "1 of 3 programs failed" in "".join(caught.value.__notes__)
    states = program.run_batch(items, return_errors=True, **GREEDY)
    assert [state.error() is None for state in states] == [True, False, True]  # type: ignore[union-attr]


def test_unnamed_gens_set_nothing() -> None:
    state = run(lambda s: s.append("a" + sgl.gen(max_tokens=1) + sgl.gen(max_tokens=2) + sgl.gen("x", max_tokens=1)))
    assert None not in state
    assert "x" in state
    assert state.text().startswith("a")


def test_states_share_a_thread() -> None:
    def write(s: Any) -> None:
        forks = s.fork(64)
        forks += lambda idx: f"{idx}" + sgl.gen("x", max_tokens=1)
        forks.join()

    before = threading.active_count()
    state = run(write)
    assert len(state["x"]) == 64
    assert threading.active_count() <= before + 3  # the driver, the pump, the test's own


def test_nothing_is_left_of_many_cancelled_programs(llm: LLM) -> None:
    def write(s: Any, idx: int) -> None:
        s += f"program {idx} " * 3
        forks = s.fork(3)
        forks += sgl.gen("x", max_tokens=400) + sgl.select("y", ["a", "b"])
        forks.join()
        s += sgl.gen("z", max_tokens=400)

    program = sgl.function(write)
    program.run(idx=0, **{**GREEDY, "max_new_tokens": 1}, timeout=0.05).error()  # threads that stay are there now
    wait_until(lambda: not stats(llm)["num_running"])
    threads, tasks = threading.active_count(), len(driver._tasks)
    for idx in range(200):
        state = program.run(idx=idx, timeout=0.01 if idx % 4 == 1 else None, **GREEDY)
        if idx % 4 == 2:
            wait_until(lambda: stats(llm)["num_running"] > 0)
        if idx % 4 == 3:
            with pytest.raises(ZeroDivisionError):
                sgl.function(_broken).run(**GREEDY)
        if idx % 4 != 1:
            state.cancel()
        error = within_limit(state.error)
        assert isinstance(error, ProgramError)
    wait_until(lambda: not stats(llm)["num_running"] and not stats(llm)["num_waiting"])
    wait_until(lambda: len(driver._tasks) <= tasks)
    wait_until(lambda: threading.active_count() <= threads)
    assert llm.shared_loop.call("check") == {"differences": []}
    [after] = llm.generate(
        ["still here"], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True), use_tqdm=False
    )
    assert len(after.outputs[0].token_ids) == 4


def _broken(s: Any) -> None:
    s += "a" + sgl.gen("x", max_tokens=400)
    s["y"] = 1 / 0


async def test_programs_may_be_coroutines() -> None:
    @sgl.function
    async def program(s: Any, word: str) -> str:
        s += word + sgl.gen("x", regex=LETTERS)
        return await s.get_var_async("x") + "!"

    states = await program.run_batch_async([{"word": "a"}, {"word": "b"}], temperature=0.0, max_new_tokens=4)
    assert [state.ret_value for state in states] == [state["x"] + "!" for state in states]


def test_importing_the_language_imports_no_server() -> None:
    names = {"uvicorn", "starlette", "torch", "openai", "anthropic", "transformers", "trivium.server"}
    code = f"import sys, trivium.lang; print(sorted({names!r} & set(sys.modules)))"
    found = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert found.stdout.strip() == "[]"
