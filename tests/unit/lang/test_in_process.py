"""Programs on the tiny model: the same tokens as the plain API's, prefixes computed once, nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM, AsyncLLM, SamplingParams
from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.backends import pump
from trivium.lang.choices import METHODS
from trivium.lang.driver import driver

LIMIT_S = 20


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        sgl.set_default_backend(own)
        yield own
        wait_until(lambda: not stats(own)["num_running"] and not stats(own)["num_waiting"])
        assert own.shared_loop.call("check") == {"differences": []}
        sgl.set_default_backend(None)


def stats(llm: LLM) -> dict[str, Any]:
    return llm.shared_loop.call("stats")


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def program(write: Callable[[Any], Any], **options: Any) -> Any:
    def own(s: Any) -> Any:
        return write(s)

    state = sgl.function(own).run(**{"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, **options})
    state.sync()
    return state


def test_a_gen_is_what_generate_answers(llm: LLM) -> None:
    state = program(lambda s: s.append("hello" + sgl.gen("x")))
    [expected] = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert state["x"] == expected.outputs[0].text
    assert state.get_meta_info("x")["completion_tokens"] == 8


def test_roles_are_the_models_own(llm: LLM) -> None:
    def talk(s: Any) -> None:
        s += sgl.system("be brief")
        s += sgl.user("hello")
        s += sgl.assistant(sgl.gen("x"))

    state = program(talk)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    [expected] = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert expected.prompt is not None
    assert state.text() == expected.prompt + state["x"] + "<|im_end|>\n"
    assert state["x"] == expected.outputs[0].text


def test_a_fork_never_prefills_twice(llm: LLM) -> None:
    stem = "a rather long beginning that all of the branches share, "

    def branch(s: Any) -> None:
        s += stem
        forks = s.fork(6)
        forks += lambda i: f"{i}{i}" + sgl.gen("x")
        forks.join()

    before = stats(llm)
    state = program(branch, max_new_tokens=1)
    after = stats(llm)
    assert len(state["x"]) == 6
    prompts = 6 * (len(stem) + 2)
    computed = prompts - (after["prefix_hit_tokens_total"] - before["prefix_hit_tokens_total"])
    assert computed == len(stem) + 6 * 2  # the tiny tokenizer has one token per letter


def test_a_conversation_computes_each_turn_once(llm: LLM) -> None:
    def talk(s: Any) -> None:
        for turn in range(3):
            s += sgl.user(f"question {turn}")
            s += sgl.assistant(sgl.gen(f"x{turn}"))

    state = program(talk)
    metas = [state.get_meta_info(f"x{turn}") for turn in range(3)]
    for earlier, later in pairwise(metas):  # all but the last token of what was written has its KV
        assert later["cached_tokens"] == earlier["prompt_tokens"] + earlier["completion_tokens"] - 1


def test_programs_of_a_batch_run_together(llm: LLM) -> None:
    def own(s: Any, text: str) -> None:
        s += text + sgl.gen("x", temperature=0.0, max_tokens=16, ignore_eos=True)

    before = stats(llm)["steps_total"]
    states = sgl.function(own).run_batch([(f"text {i}",) for i in range(8)])
    assert stats(llm)["steps_total"] - before < 8 * 16 / 2
    expected = llm.generate(
        [f"text {i}" for i in range(8)], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    )
    assert [state["x"] for state in states] == [output.outputs[0].text for output in expected]


CHOICES = [
    ("The answer is", [" YES", " NO"]),
    ("The answer is ", ["YES", "NO"]),
    ("say: ", ["Hello", "Goodbye", "^*B^&A"]),
    ("x", ["abc", "abd", "ab"]),
    ("x", ["ab", "abab"]),
]


def brute_force(llm: LLM, text: str, choice: str) -> list[float]:
    """Logprobs of exactly the choice's tokens, one per letter here."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    [output] = llm.generate(text + choice, params)
    found = output.prompt_logprobs or []
    return [entry.logprob for entry in found[len(text) :] if entry is not None]


@pytest.mark.parametrize(("text", "choices"), CHOICES)
@pytest.mark.parametrize("method", ["token_length_normalized", "joint_probability", "greedy_token_selection"])
def test_select_agrees_with_brute_force(llm: LLM, text: str, choices: list[str], method: str) -> None:
    state = program(lambda s: s.append(text + sgl.select("x", choices, choices_method=METHODS[method])))
    rows = [brute_force(llm, text, choice) for choice in choices]
    scores: list[Any] = {
        "token_length_normalized": [sum(row) / len(row) for row in rows],
        "joint_probability": [sum(row) for row in rows],
        "greedy_token_selection": [row + [sum(row) / len(row)] * (10 - len(row)) for row in rows],
    }[method]
    assert state["x"] == choices[max(range(len(choices)), key=scores.__getitem__)]
    assert state.text() == text + state["x"]
    found = [[logprob for logprob, _, _ in row] for row in state.get_meta_info("x")["input_token_logprobs"]]
    assert found == [pytest.approx(row, abs=1e-3) for row in rows]


def test_select_as_the_first_words_of_an_answer(llm: LLM) -> None:
    def own(s: Any) -> None:
        s += sgl.user("yes or no?")
        s += sgl.assistant(sgl.select("x", ["yes", "no"]))

    state = program(own)
    prompt = "<|im_start|>user\nyes or no?<|im_end|>\n<|im_start|>assistant\n"
    stem = len(llm.get_tokenizer().encode(prompt, add_special_tokens=False))
    rows = []
    for choice in ("yes", "no"):
        ids = llm.get_tokenizer().encode(prompt + choice, add_special_tokens=False)
        [output] = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprob_start=stem))
        rows.append([entry.logprob for entry in output.prompt_logprobs or [] if entry is not None])
    found = [[logprob for logprob, _, _ in row] for row in state.get_meta_info("x")["input_token_logprobs"]]
    assert found == [pytest.approx(row, abs=1e-3) for row in rows]
    assert state.text() == f"{prompt}{state['x']}<|im_end|>\n"


def test_the_unconditional_measure_subtracts_what_a_choice_is_by_itself(llm: LLM) -> None:
    choices = ["abc", "zzz", "q"]
    method = sgl.unconditional_likelihood_normalized
    state = program(lambda s: s.append("hello " + sgl.select("x", choices, choices_method=method)))
    means = []
    for choice in choices:
        own, alone = brute_force(llm, "hello ", choice), [0.0, *brute_force(llm, "", choice)]
        means.append(sum(a - b for a, b in zip(own, alone, strict=True)) / len(own))
    assert state.get_meta_info("x")["normalized_unconditional_prompt_logprobs"] == pytest.approx(means, abs=1e-3)
    assert state["x"] == choices[means.index(max(means))]


def test_select_with_nothing_before_it_says_so(llm: LLM) -> None:
    def own(s: Any) -> None:
        s += sgl.select("x", ["a", "b"])

    with pytest.raises(ProgramError, match="write a text before it"):
        sgl.function(own).run().sync()


def test_a_form_is_kept(llm: LLM) -> None:
    state = program(lambda s: s.append("n: " + sgl.gen("n", dtype=int) + "; " + sgl.gen("w", regex="[ab]{3}")))
    assert isinstance(state.get_parsed("n"), int)
    assert set(state["w"]) <= set("ab")


def test_what_the_engine_refuses_cites_the_line(llm: LLM) -> None:
    for bad in (sgl.gen("x", temperature=-1.0), sgl.gen("x", ebnf="no grammar ("), sgl.gen("x", top_k=-5)):
        with pytest.raises(ProgramError, match=r"test_in_process\.py:\d+: gen 'x' failed"):
            program(lambda s, bad=bad: s.append("a" + bad))


def test_cancelling_gives_all_pages_back(llm: LLM) -> None:
    def own(s: Any) -> None:
        s += "hello"
        forks = s.fork(4)
        forks += sgl.gen("x", max_tokens=400, ignore_eos=True)

    state = sgl.function(own).run()
    wait_until(lambda: stats(llm)["num_running"] > 0)
    state.cancel()
    wait_until(lambda: not stats(llm)["num_running"])


def test_programs_and_generate_share_the_engine(llm: LLM) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=50, ignore_eos=True, temperature=0.0)

    state = sgl.function(own).run()
    [answer] = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
    assert state["x"] == answer.outputs[0].text


def test_closing_the_model_ends_its_programs() -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=400, ignore_eos=True)

    llm = LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1)
    state = sgl.function(own).run(backend=llm)
    llm.close()
    assert "closed" in str(state.error())
    assert "closed" in str(sgl.function(own).run(backend=llm).error())


def test_several_answers_and_streams(llm: LLM) -> None:
    state = program(lambda s: s.append("hello" + sgl.gen("x", n=3, temperature=1.0, seed=1)))
    assert len(state["x"]) == 3
    assert state.text() == "hello" + state["x"][0]
    assert "".join(state.text_iter()) == state.text()
    sgl.flush_cache()
    assert sgl.get_server_info()


LEAVING = """
import sys, trivium.lang as sgl
from trivium import LLM

sgl.set_default_backend(LLM(sys.argv[1], kv_cache_memory="1MiB", threads=1))

@sgl.function
def endless(s):
    s += "hello" + sgl.gen("x", max_tokens=400, ignore_eos=True)

state = endless.run()
next(state.text_iter("x"))
endless.run(stream=True)
print("left")
"""


def test_a_program_that_nobody_waits_for_keeps_no_process() -> None:
    done = subprocess.run(  # noqa: S603  (our own program)
        [sys.executable, "-c", LEAVING, str(tiny_model())], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "left\n")
    assert "leaked" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_event_loop_wakes_once_per_step_however_many_answers_grow(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(s: Any, idx: int) -> None:
        s += f"hello {idx}" + sgl.gen("x")

    run = sgl.function(write).run_batch
    run([{"idx": 0}], max_new_tokens=1)
    wakes: list[Any] = []
    loop = driver._begun()
    plainly = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda action, *args: wakes.append(action) or plainly(action, *args)
    )
    run([{"idx": idx} for idx in range(8)], max_new_tokens=24, ignore_eos=True)
    news = [action for action in wakes if action is pump._tell_all]
    assert 24 <= len(news) <= 24 + 2 * 8  # as many as steps, of which there are more while programs begin; not 8 * 24


async def test_an_async_model_runs_programs_beside_its_own_answers() -> None:
    def write(s: Any, first: str) -> None:
        s += first + sgl.gen("x", regex="[a-z ]+") + sgl.select("y", ["yes", "no"])
        forks = s.fork(2)
        forks += sgl.gen("z", regex="[a-z ]+")
        forks.join()

    program, greedy = sgl.function(write), {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
    options: Any = {"kv_cache_memory": "1MiB", "threads": 1, "seed": 0}
    with LLM(str(tiny_model()), **options) as own:
        expected = program.run("hello", backend=own, **greedy)
        names = ("x", "y", "z")
        values = [expected[name] for name in names]
    asynchronous = AsyncLLM(str(tiny_model()), **options)
    with pytest.raises(InvalidParameterError, match="not started"):
        program.run("hello", backend=asynchronous)
    async with asynchronous:
        own_answer = asyncio.ensure_future(_text_of(asynchronous))
        state = await program.run_async("hello", backend=asynchronous, **greedy)
        assert [await state.get_var_async(name) for name in names] == values
        blocking = program.run("hello", backend=asynchronous, **greedy)  # in the loop's own thread, which then waits
        assert [blocking[name] for name in names] == values
        assert len(await own_answer) == 6
        sgl.flush_cache(asynchronous)
        assert sgl.get_server_info(asynchronous)["model"]
        state = program.run("hello", backend=asynchronous, max_new_tokens=400)
        state.cancel()
        endless = program.run("hello", backend=asynchronous, max_new_tokens=400, ignore_eos=True)
    with pytest.raises(ProgramError):
        await endless.sync_async()


async def _text_of(llm: AsyncLLM) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return [token async for news in llm.generate("hello", params) for token in news.token_ids]
