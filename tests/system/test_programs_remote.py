"""The backend `OpenAI` on a server of ours: a program says there what it says on the same model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import trivium.lang as sgl
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium import LLM

FLAGS = ("--served-model-name", "tiny", "--kv-cache-memory", "1MiB", "--threads", "1")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess(tiny_model(), *FLAGS) as running:
        yield f"{running.url}/v1"


def remote(url: str, **options: Any) -> sgl.OpenAI:
    return sgl.OpenAI("tiny", base_url=url, api_key="none", max_retries=0, **options)


def write(s: Any) -> None:
    s += "hello" + sgl.gen("free", regex="[a-z ]+") + " and" + sgl.select("choice", [" yes", " no", " perhaps"])
    s += sgl.gen("stopped", regex="[ab]+", stop_regex="ab") + sgl.gen("json", json_schema={"type": "integer"})
    forks = s.fork(3)
    forks += lambda idx: f" {idx}:" + sgl.gen("branch", regex="[a-f]+")
    forks.join()


NAMES = ("free", "choice", "stopped", "json", "branch")


def test_a_completion_model_says_what_it_says_in_process(llm: LLM, url: str) -> None:
    program = sgl.function(write)
    here = program.run(backend=llm, **GREEDY)
    backend = remote(url, is_chat_model=False)
    there = program.run(backend=backend, **GREEDY)
    assert {name: there[name] for name in NAMES} == {name: here[name] for name in NAMES}
    assert there.text() == here.text()
    logprobs = [
        [[logprob for logprob, _, _ in row] for row in state.get_meta_info("choice")["input_token_logprobs"]]
        for state in (here, there)
    ]
    assert logprobs[0] == [pytest.approx(row, abs=1e-3) for row in logprobs[1]]
    assert there.get_meta_info("free")["completion_tokens"] == 8
    assert there.get_meta_info("free")["finish_reason"]["type"] == "length"
    backend.close()


def test_a_chat_model_says_what_it_says_in_process(llm: LLM, url: str) -> None:
    def talk(s: Any) -> None:
        s += sgl.system("be brief") + sgl.user("hello")
        s += sgl.assistant("It is " + sgl.gen("x", regex="[a-z ]+"))
        s += sgl.user("really?") + sgl.assistant(sgl.gen("y", regex="[a-z ]+", stop="e"))

    here = sgl.function(talk).run(backend=llm, **GREEDY)
    backend = remote(url)
    there = sgl.function(talk).run(backend=backend, **GREEDY)
    assert (there["x"], there["y"]) == (here["x"], here["y"])
    assert there.messages() == here.messages()
    backend.close()


def test_several_answers_and_streams_come_from_a_server_too(url: str) -> None:
    backend = remote(url, is_chat_model=False)

    def several(s: Any) -> None:
        s += "hello" + sgl.gen("x", n=3, regex="[a-z ]+")

    state = sgl.function(several).run(backend=backend, max_new_tokens=8, stream=True)
    assert "".join(state.text_iter()) == state.text() == "hello" + state["x"][0]
    assert len(state["x"]) == 3
    backend.close()


@pytest.mark.parametrize("is_chat", [True, False])
def test_asked_ahead_a_server_answers_the_same_with_fewer_calls(url: str, is_chat: bool) -> None:
    backend = remote(url, is_chat_model=is_chat)

    def program(s: Any) -> None:
        last = sgl.gen("y", stop_regex="[^a-z]{9}")
        s += sgl.user("hello") + sgl.assistant(last) if is_chat else "hello" + sgl.gen("x", stop="q") + last

    state = sgl.function(num_api_spec_tokens=24)(program).run(backend=backend, temperature=0.0, max_new_tokens=8)
    state.sync()
    assert backend.token_usage.completion_tokens <= 48
    assert state["y"] in state.text()
    backend.close()
