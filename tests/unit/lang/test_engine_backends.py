"""Programs on the tiny model, here and behind a server: the same tokens as the plain API's, prefixes computed once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import trivium.lang as sgl
from support.grounds import Ground, wait_until
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams
from trivium.base.errors import DeadlineExceededError, ProgramError
from trivium.lang.choices import METHODS


def program(write: Callable[[Any], Any], **options: Any) -> Any:
    def own(s: Any) -> Any:
        return write(s)

    state = sgl.function(own).run(**{"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, **options})
    state.sync()
    return state


def test_a_gen_is_what_generate_answers(ground: Ground, llm: LLM) -> None:
    state = program(lambda s: s.append("hello" + sgl.gen("x")))
    [expected] = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert state["x"] == expected.outputs[0].text
    assert state.get_meta_info("x")["completion_tokens"] == 8


def test_roles_are_the_models_own(ground: Ground, llm: LLM) -> None:
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


def test_a_fork_never_prefills_twice(ground: Ground, llm: LLM) -> None:
    stem = "a rather long beginning that all of the branches share, "

    def branch(s: Any) -> None:
        s += stem
        forks = s.fork(6)
        forks += lambda i: f"{i}{i}" + sgl.gen("x")
        forks.join()

    before = ground.stats()
    state = program(branch, max_new_tokens=1)
    after = ground.stats()
    assert len(state["x"]) == 6
    prompts = 6 * (len(stem) + 2)
    computed = prompts - (after["prefix_hit_tokens_total"] - before["prefix_hit_tokens_total"])
    assert computed == len(stem) + 6 * 2  # the tiny tokenizer has one token per letter


def test_a_conversation_computes_each_turn_once(ground: Ground, llm: LLM) -> None:
    def talk(s: Any) -> None:
        for turn in range(3):
            s += sgl.user(f"question {turn}")
            s += sgl.assistant(sgl.gen(f"x{turn}"))

    state = program(talk)
    metas = [state.get_meta_info(f"x{turn}") for turn in range(3)]
    for earlier, later in pairwise(metas):  # all but the last token of what was written has its KV
        assert later["cached_tokens"] == earlier["prompt_tokens"] + earlier["completion_tokens"] - 1


def test_programs_of_a_batch_run_together(ground: Ground, llm: LLM) -> None:
    def own(s: Any, text: str) -> None:
        s += text + sgl.gen("x", temperature=0.0, max_tokens=64, ignore_eos=True)

    before = ground.stats()["steps_total"]
    states = sgl.function(own).run_batch([(f"text {i}",) for i in range(8)])
    assert ground.stats()["steps_total"] - before < 8 * 64 / 2
    expected = llm.generate(
        [f"text {i}" for i in range(8)], SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
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
def test_select_agrees_with_brute_force(ground: Ground, llm: LLM, text: str, choices: list[str], method: str) -> None:
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


def test_select_as_the_first_words_of_an_answer(ground: Ground, llm: LLM) -> None:
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


def test_the_unconditional_measure_subtracts_what_a_choice_is_by_itself(ground: Ground, llm: LLM) -> None:
    choices = ["abc", "zzz", "q"]
    method = sgl.unconditional_likelihood_normalized
    state = program(lambda s: s.append("hello " + sgl.select("x", choices, choices_method=method)))
    means = []
    for choice in choices:
        own, alone = brute_force(llm, "hello ", choice), [0.0, *brute_force(llm, "", choice)]
        means.append(sum(a - b for a, b in zip(own, alone, strict=True)) / len(own))
    assert state.get_meta_info("x")["normalized_unconditional_prompt_logprobs"] == pytest.approx(means, abs=1e-3)
    assert state["x"] == choices[means.index(max(means))]


def test_select_with_nothing_before_it_says_so(ground: Ground, llm: LLM) -> None:
    def own(s: Any) -> None:
        s += sgl.select("x", ["a", "b"])

    with pytest.raises(ProgramError, match="write a text before it"):
        sgl.function(own).run().sync()


def test_a_form_is_kept(ground: Ground, llm: LLM) -> None:
    state = program(lambda s: s.append("n: " + sgl.gen("n", dtype=int) + "; " + sgl.gen("w", regex="[ab]{3}")))
    assert isinstance(state.get_parsed("n"), int)
    assert set(state["w"]) <= set("ab")


def test_what_the_engine_refuses_cites_the_line(ground: Ground, llm: LLM) -> None:
    for bad in (sgl.gen("x", temperature=-1.0), sgl.gen("x", ebnf="no grammar ("), sgl.gen("x", top_k=-5)):
        with pytest.raises(ProgramError, match=r"test_engine_backends\.py:\d+: gen 'x' failed"):
            program(lambda s, bad=bad: s.append("a" + bad))


def test_cancelling_gives_all_pages_back(ground: Ground, llm: LLM) -> None:
    def own(s: Any) -> None:
        s += "hello"
        forks = s.fork(4)
        forks += sgl.gen("x", max_tokens=400, ignore_eos=True)

    state = sgl.function(own).run()
    wait_until(lambda: ground.stats()["num_running"] > 0)
    state.cancel()
    wait_until(lambda: not ground.stats()["num_running"])


def test_a_gen_has_a_time_limit(ground: Ground) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=400, ignore_eos=True, timeout=0.01)

    error = sgl.function(own).run().error()
    assert isinstance(error, ProgramError)
    assert isinstance(error.__cause__, DeadlineExceededError)
    wait_until(ground.is_idle)


def test_text_comes_while_it_is_written(ground: Ground) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=200, ignore_eos=True, temperature=0.0)

    state = sgl.function(own).run()
    pieces = list(state.text_iter("x"))
    assert len(pieces) > 20
    assert "".join(pieces) == state["x"]
    assert "".join(state.text_iter()) == "hello" + state["x"]


REASONINGS = ["hello<think>", "hello"]


@pytest.mark.parametrize("text", REASONINGS)
def test_reasoning_is_kept_apart(ground: Ground, llm: LLM, text: str) -> None:
    def own(s: Any) -> None:
        s += text
        s += sgl.separate_reasoning(sgl.gen("x", regex="[a-c]{3}", temperature=0.0, max_tokens=40), model_type="qwen3")

    state, expected = sgl.function(own).run(), sgl.function(own).run(backend=llm)
    assert state["x"] == expected["x"]
    assert state["x_reasoning_content"] == expected["x_reasoning_content"]
    assert bool(state["x_reasoning_content"]) == text.endswith("<think>")
    assert state.text() == text + state["x"]


def test_programs_and_generate_share_the_engine(ground: Ground, llm: LLM) -> None:
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


def test_several_answers_and_streams(ground: Ground, llm: LLM) -> None:
    state = program(lambda s: s.append("hello" + sgl.gen("x", n=3, temperature=1.0, seed=1)))
    assert len(state["x"]) == 3
    assert state.text() == "hello" + state["x"][0]
    assert "".join(state.text_iter()) == state.text()
    sgl.flush_cache()
    assert sgl.get_server_info()


LEAVING = """
import sys, trivium.lang as sgl
from trivium import LLM

given = sys.argv[1]
sgl.set_default_backend(given if given.startswith("http") else LLM(given, kv_cache_memory="1MiB", threads=1))

@sgl.function
def endless(s):
    s += "hello" + sgl.gen("x", max_tokens=400, ignore_eos=True)

state = endless.run()
next(state.text_iter("x"))
endless.run(stream=True)
print("left")
"""


def test_a_program_that_nobody_waits_for_keeps_no_process(ground: Ground, server: ServerProcess) -> None:
    given = str(tiny_model()) if ground.kind == "in_process" else server.url
    done = subprocess.run(  # noqa: S603  (our own program)
        [sys.executable, "-W", "error", "-c", LEAVING, given], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    for word in ("leaked", "Traceback", "unclosed", "Exception"):
        assert word not in done.stderr
