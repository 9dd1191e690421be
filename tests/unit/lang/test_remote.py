"""Programs on models behind APIs: what is sent, what comes back, what is refused by name before anything is sent."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import trivium.lang as sgl
from support.fake_api import FakeApi, fake_api
from trivium.base.errors import (
    ConfigError,
    DeadlineExceededError,
    InvalidParameterError,
    ProgramError,
    RemoteError,
    TemplateError,
    UnsupportedFeatureError,
)

LIMIT_S = 30


@contextmanager
def openai(
    script: Any, *, options: dict[str, Any] | None = None, **fields: Any
) -> Iterator[tuple[sgl.OpenAI, FakeApi]]:
    with fake_api(script, **fields) as api:
        given = {"is_chat_model": True, "max_retries": 0, **(options or {})}
        backend = sgl.OpenAI("m", base_url=f"{api.url}/v1", api_key="k", **given)
        yield backend, api
        backend.close()


@contextmanager
def anthropic(script: Any, **fields: Any) -> Iterator[tuple[sgl.Anthropic, FakeApi]]:
    with fake_api(script, **fields) as api:
        backend = sgl.Anthropic("m", base_url=api.url, api_key="k", max_retries=0)
        yield backend, api
        backend.close()


COMPLETION = {"is_chat_model": False}


def run(backend: Any, write: Callable[[Any], Any], **options: Any) -> Any:
    def program(s: Any) -> Any:
        return write(s)

    return sgl.function(program).run(backend=backend, timeout=LIMIT_S, **options)


def talk(s: Any) -> None:
    s += sgl.system("Be brief.") + sgl.user("Capital of France?") + sgl.assistant(sgl.gen("a", max_tokens=20))
    s += sgl.user("And of Italy?") + sgl.assistant(sgl.gen("b", max_tokens=20, stop="."))


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "Paris"},
    {"role": "user", "content": "And of Italy?"},
]


def test_a_chat_model_is_sent_messages() -> None:
    with openai(["Paris", "Rome. Or so"], owner="vllm") as (backend, api):
        state = run(backend, talk)
        assert (state["a"], state["b"]) == ("Paris", "Rome")
        assert state.messages() == [*MESSAGES, {"role": "assistant", "content": "Rome"}]
        assert state.text().endswith(
            "<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\nRome<|im_end|>\n"
        )
        meta = state.get_meta_info("b")
        assert (meta["finish_reason"], meta["completion_tokens"]) == ({"type": "stop", "matched": "."}, 4)
        first, second = api.bodies()
        assert (first["path"], first["messages"], first["max_tokens"]) == ("/v1/chat/completions", MESSAGES[:2], 20)
        assert (second["messages"], second["stop"]) == (MESSAGES, ["."])
        assert api.headers[0]["authorization"] == "Bearer k"
        assert backend.token_usage.completion_tokens == 9
        assert sgl.get_server_info(backend)["completion_tokens"] == 9


def test_a_completion_model_is_sent_the_text() -> None:
    with openai([" Paris", " Rome"], options=COMPLETION) as (backend, api):
        state = run(backend, lambda s: s.append("F:" + sgl.gen("a") + " I:" + sgl.gen("b")))
        assert state.text() == "F: Paris I: Rome"
        assert [body["prompt"] for body in api.bodies()] == ["F:", "F: Paris I:"]
        assert api.bodies()[0]["path"] == "/v1/completions"


@pytest.mark.parametrize(
    ("owner", "sent", "left_out"),
    [
        ("other", {"temperature": 1.0, "top_p": 1.0, "max_tokens": 128}, {"stream_options", "top_k", "n", "seed"}),
        ("vllm", {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}, {"min_tokens", "ignore_eos"}),
    ],
)
def test_defaults_are_sent_where_the_servers_own_may_be_others(
    owner: str, sent: dict[str, Any], left_out: set[str]
) -> None:
    with openai(["x"], owner=owner) as (backend, api):
        run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x")))).sync()
        assert api.bodies()[0].items() >= sent.items()
        assert not left_out & api.bodies()[0].keys()


def test_openais_own_server_is_sent_what_differs_from_its_defaults() -> None:
    with openai(["x"], options={"server": "openai"}) as (backend, api):
        run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", max_tokens=9, seed=4)))).sync()
        body = api.bodies()[0]
        assert body["max_completion_tokens"] == 9
        assert body["seed"] == 4
        assert not {"temperature", "top_p", "max_tokens", "n", "top_k"} & body.keys()


def test_several_answers_are_a_list() -> None:
    with openai(["one", "two"]) as (backend, _):
        state = run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", n=2))))
        assert state["x"] == ["one", "two"]
        assert state.text().endswith("one<|im_end|>\n")
        assert len(state.get_meta_info("x")["choices"]) == 2


def test_text_is_told_as_it_comes() -> None:
    go_on = threading.Event()
    with openai(["abcdef"], hang=go_on) as (backend, _):
        state = run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x"))), stream=True)
        while "x" not in state:
            time.sleep(0.001)
        texts = state.text_iter("x")
        assert next(texts) == "abc"
        go_on.set()
        assert "".join(texts) == "def"


@pytest.mark.parametrize("is_chat", [True, False])
def test_logprobs_are_reported(is_chat: bool) -> None:
    def write(s: Any) -> None:
        ask = sgl.gen("x", return_logprob=True, top_logprobs_num=2)
        s += sgl.user("?") + sgl.assistant(ask) if is_chat else "?" + ask

    with openai(["token"], options={"is_chat_model": is_chat}) as (backend, api):
        entries = run(backend, write).get_meta_info("x")["output_token_logprobs"]
        assert [text for _, _, text in entries] == list("token")
        assert [logprob for logprob, _, _ in entries] == [-1.0, -2.0, -3.0, -1.0, -2.0]
        assert api.bodies()[0]["top_logprobs" if is_chat else "logprobs"] == 2


def test_stops_that_the_api_does_not_know_are_found_here_and_end_the_request() -> None:
    stops = ["q1", "q2", "q3", "q4", "c"]
    with openai(["ab7c", "abc7"], piece_len=1) as (backend, api):
        state = run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", stop_regex="[0-9]"))))
        assert (state["x"], state.get_meta_info("x")["finish_reason"]["matched"]) == ("ab", "[0-9]")
        state = run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", stop=stops))))
        assert (state["x"], state.get_meta_info("x")["finish_reason"]["matched"]) == ("ab", "c")
        assert "stop" not in api.bodies()[0]
        assert "stop_regex" not in api.bodies()[0]
        assert api.bodies()[1]["stop"] == stops[:4]


def test_text_that_only_began_a_stop_is_given_out_at_the_end() -> None:
    with openai(["ab4"]) as (backend, _):
        state = run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", stop_regex="[0-9]{2}"))))
        assert state["x"] == "ab4"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("owner", "asked", "sent"),
    [
        ("other", {"json_schema": SCHEMA}, ("response_format", {"type": "json_schema"})),
        ("sglang", {"json_schema": SCHEMA}, ("response_format", {"type": "json_schema"})),
        ("sglang", {"regex": "a+"}, ("regex", "a+")),
        ("sglang", {"ebnf": 'root ::= "a"'}, ("ebnf", 'root ::= "a"')),
        ("vllm", {"regex": "a+"}, ("structured_outputs", {"regex": "a+"})),
        ("vllm", {"json_schema": SCHEMA}, ("structured_outputs", {"json": SCHEMA})),
        ("trivium", {"dtype": bool}, ("structured_outputs", {"regex": "(True|False)"})),
    ],
)
def test_constraints_are_spelled_as_the_server_does(owner: str, asked: dict[str, Any], sent: tuple[str, Any]) -> None:
    with openai(['{"a": 1}'], owner=owner) as (backend, api):
        run(backend, lambda s: s.append(sgl.user("?") + sgl.assistant(sgl.gen("x", **asked)))).sync()
        name, value = sent
        found = api.bodies()[0][name]
        assert found == value or (name == "response_format" and found["json_schema"]["schema"] == SCHEMA)


def refused(backend: Any, write: Callable[[Any], Any], match: str, **options: Any) -> None:
    with pytest.raises(ProgramError, match=match) as caught:
        run(backend, write, **options).sync()
    assert isinstance(caught.value.__cause__, UnsupportedFeatureError | TemplateError | InvalidParameterError)


def chat(expr: Any) -> Callable[[Any], Any]:
    return lambda s: s.append(sgl.user("?") + sgl.assistant(expr()))


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (chat(lambda: sgl.gen("x", regex="a+")), "regex is not supported"),
        (chat(lambda: sgl.gen("x", dtype=int)), "regex is not supported.*types"),
        (chat(lambda: sgl.gen("x", ebnf='root ::= "a"')), "ebnf is not supported"),
        (chat(lambda: sgl.gen("x", top_k=5)), "top_k is not supported"),
        (chat(lambda: sgl.gen("x", min_p=0.1)), "min_p is not supported"),
        (chat(lambda: sgl.gen("x", min_tokens=3)), "min_tokens is not supported"),
        (chat(lambda: sgl.gen("x", ignore_eos=True)), "ignore_eos is not supported"),
        (chat(lambda: sgl.gen("x", stop_token_ids=[1])), "stop_token_ids is not supported"),
        (chat(lambda: sgl.gen("x", return_logprob=True, logprob_start_len=0)), "logprob_start_len is not supported"),
        (chat(lambda: sgl.select("x", ["a", "b"])), "select is not supported.*completion model"),
        (chat(lambda: sgl.separate_reasoning(sgl.gen("x"), "qwen3")), "separate_reasoning is not supported"),
        (
            chat(lambda: "It is " + sgl.gen("x")),
            r"text before gen in assistant\(\) is not supported.*num_api_spec_tokens",
        ),
        (lambda s: s.append("plain" + sgl.gen("x")), "text outside roles is not supported"),
        (lambda s: s.append(sgl.user("?") + sgl.gen("x")), "text outside roles is not supported"),
        (lambda s: s.append(sgl.user(sgl.gen("x"))), "text outside roles is not supported"),
    ],
)
def test_what_an_unknown_chat_server_cannot_do_is_refused_by_name(write: Any, match: str) -> None:
    with openai([]) as (backend, api):
        refused(backend, write, match)
        assert api.bodies() == []
        assert backend.token_usage.prompt_tokens == 0


def test_a_server_that_goes_on_with_a_message_is_sent_its_beginning() -> None:
    with openai([" Paris"], owner="vllm") as (backend, api):
        state = run(backend, chat(lambda: "It is" + sgl.gen("x", regex=" [A-Z].*") + "!"))
        assert state.messages()[-1]["content"] == "It is Paris!"
        body = api.bodies()[0]
        assert body["messages"][-1] == {"role": "assistant", "content": "It is"}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert (body["structured_outputs"], body["top_k"]) == ({"regex": " [A-Z].*"}, -1)


def test_roles_need_a_template_on_completion_models() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    with openai(["yes"], options=COMPLETION) as (backend, _):
        refused(backend, chat(lambda: sgl.gen("x")), "completion model, so programs on it have no roles")
    with openai(["yes"], options={**COMPLETION, "chat_template": template}) as (backend, api):
        assert run(backend, chat(lambda: sgl.gen("x"))).text() == "<user>?<assistant>yes"
        assert api.bodies()[0]["prompt"] == "<user>?<assistant>"


def test_select_scores_echoed_prompts_from_the_last_common_token() -> None:
    def write(s: Any) -> None:
        s += "the" + sgl.select("x", ["zz", "bbbb"])

    with openai([], owner="vllm", options=COMPLETION) as (backend, api):
        state = run(backend, write)
        assert (state["x"], state.text()) == ("bbbb", "thebbbb")
        rows = state.get_meta_info("x")["input_token_logprobs"]
        assert [[text for _, _, text in row] for row in rows] == [["ez", "z"], ["eb", "bb", "b"]]
        assert api.bodies()[0]["prompt"] == ["thezz", "thebbbb"]
    with openai([], options=COMPLETION) as (backend, _):
        refused(backend, write, "select is not supported.*echoed prompt")
    with openai([], owner="vllm", options=COMPLETION) as (backend, _):
        method = sgl.unconditional_likelihood_normalized
        refused(
            backend, lambda s: s.append("a" + sgl.select("x", ["b"], 0.0, method)), "choices_method is not supported"
        )


def test_forks_and_batches_run_side_by_side() -> None:
    def write(s: Any, word: str) -> None:
        s += sgl.user(word)
        forks = s.fork(2)
        forks += lambda idx: sgl.user(str(idx)) + sgl.assistant(sgl.gen("x"))
        forks.join()

    with openai(lambda body: "".join(each["content"] for each in body["messages"])) as (backend, _):
        states = sgl.function(write).run_batch([{"word": "a"}, {"word": "b"}], backend=backend)
        assert [state["x"] for state in states] == [["a0", "a1"], ["b0", "b1"]]  # type: ignore[union-attr]


def test_what_the_server_refuses_reaches_the_reader() -> None:
    with openai(["x"], fail_with=400) as (backend, _):
        with pytest.raises(ProgramError, match=r"answered 400.*no such luck") as caught:
            run(backend, chat(lambda: sgl.gen("x")))["x"]
        assert isinstance(caught.value.__cause__, RemoteError)
        assert caught.value.__cause__.status == 400
    backend = sgl.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with pytest.raises(ProgramError, match=r"asking http://127\.0\.0\.1:9/v1/ failed"):
        run(backend, chat(lambda: sgl.gen("x")))["x"]


def test_a_timeout_and_a_cancellation_end_the_request() -> None:
    with openai(lambda _: "x" * 9, hang=threading.Event()) as (backend, api):
        state = run(backend, chat(lambda: sgl.gen("x", timeout=0.2)))
        with pytest.raises(ProgramError) as caught:
            state["x"]
        assert isinstance(caught.value.__cause__, DeadlineExceededError)
        state = run(backend, chat(lambda: sgl.gen("x")))
        while not api.num_open:
            time.sleep(0.001)
        state.cancel()
        end_s = time.monotonic() + LIMIT_S
        while api.num_open:
            assert time.monotonic() < end_s
            time.sleep(0.005)


def test_anthropic_is_sent_messages_with_the_system_apart() -> None:
    with anthropic(["Paris", "Rome. Or so"]) as (backend, api):
        state = run(backend, talk, temperature=0.5, top_k=3)
        assert (state["a"], state["b"]) == ("Paris", "Rome")
        first, second = api.bodies()
        assert (first["path"], first["system"], first["messages"]) == ("/v1/messages", "Be brief.", MESSAGES[1:2])
        assert (first["temperature"], first["top_k"], "top_p" in first) == (0.5, 3, False)
        assert (second["stop_sequences"], second["max_tokens"]) == (["."], 20)
        meta = state.get_meta_info("b")
        counts = {"prompt_tokens": 11, "cached_tokens": 4, "completion_tokens": 4}
        assert meta == {**counts, "finish_reason": {"type": "stop", "matched": "."}}
        assert backend.token_usage.prompt_tokens == 22


def test_anthropic_takes_a_text_as_the_users_and_goes_on_with_a_begun_message() -> None:
    with anthropic(["yes", "no"]) as (backend, api):
        run(backend, lambda s: s.append("Hi" + sgl.gen("x"))).sync()
        run(backend, chat(lambda: "Well" + sgl.gen("x"))).sync()
        assert api.bodies()[0]["messages"] == [{"role": "user", "content": "Hi"}]
        assert api.bodies()[1]["messages"][-1] == {"role": "assistant", "content": "Well"}


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (chat(lambda: sgl.gen("x", n=2)), "n is not supported"),
        (chat(lambda: sgl.gen("x", regex="a")), "structured_outputs is not supported"),
        (chat(lambda: sgl.gen("x", json_schema={})), "structured_outputs is not supported"),
        (chat(lambda: sgl.gen("x", frequency_penalty=1)), "frequency_penalty is not supported"),
        (chat(lambda: sgl.gen("x", return_logprob=True)), "return_logprob is not supported"),
        (chat(lambda: sgl.select("x", ["a"])), "select is not supported"),
        (lambda s: s.append(sgl.user("a") + "b" + sgl.assistant(sgl.gen("x"))), "text outside roles"),
    ],
)
def test_what_anthropic_cannot_do_is_refused_by_name(write: Any, match: str) -> None:
    with anthropic([]) as (backend, api):
        refused(backend, write, match)
        assert api.bodies() == []


def test_what_a_provider_or_package_lacks_is_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRUSOE_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UnsupportedFeatureError, match="OpenAI\\(model, base_url"):
        sgl.LiteLLM("m")
    with pytest.raises(UnsupportedFeatureError, match="OpenAI\\(model, base_url"):
        sgl.VertexAI("m")
    with pytest.raises(ConfigError, match="CRUSOE_API_KEY"):
        sgl.Crusoe("m")
    with pytest.raises(ConfigError, match="api_key"):
        sgl.OpenAI("m")
    with pytest.raises(InvalidParameterError, match="server is 'x'"):
        sgl.OpenAI("m", server="x")
    with pytest.raises(UnsupportedFeatureError, match="flush_cache"):
        sgl.flush_cache(sgl.Crusoe("m", api_key="k"))
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigError, match="needs the package anthropic"):
        sgl.Anthropic("m")


def test_azure_and_crusoe_are_openai_with_other_addresses() -> None:
    azure = sgl.OpenAI("m", is_azure=True, api_key="k", azure_endpoint="https://x.openai.azure.com", api_version="1")
    assert azure._client.host == "x.openai.azure.com"
    assert azure._server is not None
    assert azure._server.is_openai
    assert sgl.Crusoe("m", api_key="k", base_url="http://127.0.0.1:1/v1")._client.host == "127.0.0.1"
    assert not sgl.OpenAI("gpt-3.5-turbo-instruct", api_key="k").is_chat_model
