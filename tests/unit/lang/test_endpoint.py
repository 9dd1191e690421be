"""A server as the backend: what it is sent, what its refusals become, and that it says what the engine here says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import trivium.lang as sgl
from support.grounds import ADMIN_KEY, wait_until
from support.server_process import ServerProcess, free_port
from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams
from trivium.base.errors import (
    AuthenticationError,
    CapacityError,
    ConfigError,
    DeadlineExceededError,
    EngineDeadError,
    InternalError,
    InvalidParameterError,
    ProgramError,
    PromptTooLongError,
    RequestError,
    TriviumError,
    UnsupportedFeatureError,
)
from trivium.config.chat_output import ChatOutput
from trivium.config.retention import RangeRetention, Retention
from trivium.config.structured import StructuredOutputs
from trivium.engine.messages import Delta
from trivium.lang.backends.choice import backend_of
from trivium.lang.backends.wire import QueueFullError, read_event, read_refusal, request_body
from trivium.sampling.batch import TokenLogprobs

A, B = 67, 68
"""Letters of the tiny model."""

SENT: dict[str, Any] = {
    "n": 2,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.5,
    "typical_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {A: 3.0},
    "bad_words": ("a",),
    "seed": 7,
    "max_tokens": 3,
    "min_tokens": 2,
    "stop": ("a",),
    "stop_regex": ("a+",),
    "stop_token_ids": (A,),
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "logprobs": 2,
    "prompt_logprobs": 2,
    "prompt_logprob_start": 2,
    "cache_retention": (RangeRetention(start=0, end=None, priority=90),),
    "cache_retention_decode": Retention(priority=90),
    "structured_outputs": StructuredOutputs(regex="[ab]{2}"),
    "chat_output": ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True),
    "logprobs_mode": "processed",
}
NOT_SENT = {"best_of": 2, "spaces_between_special_tokens": False}
NEEDS = {"prompt_logprob_start": {"prompt_logprobs": 0}, "logprobs_mode": {"logprobs": 0}}


def test_every_parameter_is_sent_or_refused() -> None:
    names = {each.name for each in dataclasses.fields(SamplingParams)}
    assert names == set(SENT) | set(NOT_SENT)
    for name, value in SENT.items():
        plain = SamplingParams(**NEEDS.get(name, {}))
        changed = dataclasses.replace(plain, **{name: value})
        assert request_body([1, 2, 3], changed, max_len=100) != request_body([1, 2, 3], plain, max_len=100), name
    with pytest.raises(UnsupportedFeatureError, match="best_of"):
        request_body([1], SamplingParams(best_of=2), max_len=100)
    with pytest.raises(UnsupportedFeatureError, match="tool calls"):
        request_body([1], SamplingParams(chat_output=ChatOutput(tool_dialect="hermes")), max_len=100)


def test_an_answer_without_a_limit_may_fill_the_context() -> None:
    assert request_body([1] * 30, SamplingParams(), max_len=100)["sampling_params"]["max_new_tokens"] == 70


async def answered(deltas: AsyncIterator[Delta]) -> dict[int, tuple[str, list[int], Any, Any, list[Any]]]:
    """What each choice of a request is: text, tokens, how it ended, its logprobs."""
    found: dict[int, tuple[str, list[int], Any, Any, list[Any]]] = {}
    async for each in deltas:
        text, ids, _, _, scores = found.get(each.choice, ("", [], None, None, []))
        scores += [*(each.prompt_logprobs or ()), *(each.logprobs or ())]
        found[each.choice] = (text + each.text, ids + each.token_ids, each.finish_reason, each.stop_reason, scores)
    return found


def told(entry: TokenLogprobs | None) -> Any:
    """What is told of a token; not its rank."""
    return None if entry is None else (entry.token_id, entry.top_ids, [entry.logprob, *entry.top_logprobs])


GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}
DRAWN: dict[str, Any] = {"seed": 3, "max_tokens": 12}
REQUESTS: list[dict[str, Any]] = [
    GREEDY,
    {**DRAWN, "n": 3},
    {**DRAWN, "n": 2, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True},
    {**GREEDY, "max_tokens": 0, "prompt_logprobs": 0},
    {**GREEDY, "max_tokens": 0, "prompt_logprobs": 2, "prompt_logprob_start": 1},
    {**GREEDY, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprob_start": 20},
    {**DRAWN, "logprobs": 0, "logit_bias": {A: 4.0, B: 4.0}, "stop": ("ab",), "repetition_penalty": 1.2},
    {**DRAWN, "stop_token_ids": (A,), "logit_bias": {A: 6.0}, "min_tokens": 2, "include_stop_str_in_output": True},
    {**DRAWN, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "frequency_penalty": 1.0, "presence_penalty": -1.0},
    {**GREEDY, "structured_outputs": StructuredOutputs(json={"type": "integer"})},
    {**GREEDY, "structured_outputs": StructuredOutputs(choice=("left", "right"))},
    {**GREEDY, "structured_outputs": StructuredOutputs(grammar='start: "x" /[0-9]{3}/')},
]


@pytest.mark.parametrize("fields", REQUESTS, ids="-".join)
def test_a_server_says_token_for_token_what_the_engine_here_says(
    endpoint: sgl.RuntimeEndpoint, llm: LLM, fields: dict[str, Any]
) -> None:
    ids = llm.get_tokenizer().encode("what is this good for?", add_special_tokens=False)
    params = SamplingParams(**fields)

    async def both() -> None:
        here = await answered(backend_of(llm).submit(ids, params))
        there = await answered(endpoint.submit(ids, params))
        await endpoint._close()
        assert set(there) == set(here)
        for choice, (*rest, scores) in here.items():
            assert there[choice][:-1] == tuple(rest)
            assert [told(each) for each in there[choice][-1]] == [told(each) for each in scores]

    asyncio.run(both())


def test_a_server_is_named_by_its_address(server: ServerProcess, llm: LLM) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", temperature=0.0, max_tokens=8)

    expected = sgl.function(own).run(backend=llm)["x"]
    for address in (server.url, server.url + "/", server.url + "/v1"):
        sgl.set_default_backend(address)
        assert sgl.function(own).run()["x"] == expected
        assert sgl.get_server_info()["served_model_name"] == ["tiny"]
    sgl.set_default_backend(None)


@pytest.fixture(scope="module")
def keyed() -> Iterator[ServerProcess]:
    """A server with keys, a short queue and a model without a chat template."""
    flags = ("--kv-cache-memory", "1MiB", "--threads", "1", "--api-key", "ann=ann-long-key", "--max-queue", "2",
             "--max-num-seqs", "1")  # fmt: skip
    with ServerProcess(tiny_model(), *flags) as running:
        yield running


def test_keys(keyed: ServerProcess) -> None:
    with pytest.raises(AuthenticationError, match="API key"):
        sgl.RuntimeEndpoint(keyed.url)
    with pytest.raises(AuthenticationError):
        sgl.RuntimeEndpoint(keyed.url, api_key="wrong-long-key")
    own = sgl.RuntimeEndpoint(keyed.url, api_key="ann-long-key")
    own.flush_cache()
    sgl.flush_cache(own)


def test_a_full_queue_is_waited_for(keyed: ServerProcess) -> None:
    def own(s: Any, text: str) -> None:
        s += text + sgl.gen("x", temperature=0.0, max_tokens=4, ignore_eos=True)

    own_backend = sgl.RuntimeEndpoint(keyed.url, api_key="ann-long-key")
    states = sgl.function(own).run_batch([(f"text {i}",) for i in range(16)], backend=own_backend)
    assert [len(state["x"]) > 0 for state in states] == [True] * 16
    own_backend.close()


def test_an_admin_key_is_wanted_for_flushing_where_there_is_one(server: ServerProcess) -> None:
    own = sgl.RuntimeEndpoint(server.url)
    with pytest.raises(AuthenticationError):
        own.flush_cache()
    sgl.RuntimeEndpoint(server.url, api_key=ADMIN_KEY).flush_cache()


def test_a_server_that_goes_away_fails_what_is_open_at_once() -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=400, ignore_eos=True) + sgl.gen("y")

    with ServerProcess(tiny_model(), "--kv-cache-memory", "1MiB", "--threads", "1", "--drain-timeout-s", "0.2") as gone:
        backend = sgl.RuntimeEndpoint(gone.url)
        state = sgl.function(own).run(backend=backend)
        next(state.text_iter("x"))
        assert gone.process is not None
        gone.process.kill()
        error = state.error()
    assert isinstance(error, ProgramError)
    assert isinstance(error.__cause__, EngineDeadError)
    assert gone.url in str(error)
    assert "test_endpoint.py" in str(error)
    with pytest.raises(ProgramError, match="test_endpoint"):
        _ = state["y"]
    backend.close()


@pytest.mark.parametrize("bad", ["127.0.0.1:8000", "ftp://x", "", 5])
def test_what_is_no_address_is_refused(bad: Any) -> None:
    with pytest.raises((ConfigError, UnsupportedFeatureError)):
        sgl.RuntimeEndpoint(bad)


def test_where_nobody_answers(tmp_path: Any) -> None:
    with pytest.raises(EngineDeadError, match="cannot be reached"):
        sgl.set_default_backend(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UnsupportedFeatureError, match="own chat template"):
        sgl.RuntimeEndpoint("http://127.0.0.1:1", chat_template_name="chatml")
    with pytest.raises(ConfigError, match="verify"):
        sgl.RuntimeEndpoint("https://127.0.0.1:1", verify=str(tmp_path / "none.pem"))


class _Script(BaseHTTPRequestHandler):
    """Answers every request with what its server's `answer` says: status, body, headers."""

    def do_GET(self) -> None:
        self._send()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._send()

    def _send(self) -> None:
        status, body, headers = self.server.answers(self.path)  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def scripted(answers: Any) -> Iterator[str]:
    """A server that answers by a function from the path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Script)
    server.daemon_threads = True
    server.answers = answers  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("answer", [(404, b"{}", {}), (200, b"{}", {}), (200, b"<html>", {}), (200, b"[]", {})])
def test_a_server_of_another_kind_is_told_apart(answer: Any) -> None:
    with scripted(lambda path: answer) as url, pytest.raises(UnsupportedFeatureError, match="none of Trivium's"):
        sgl.RuntimeEndpoint(url)


EVENT = b'data: {"text": "a", "output_ids": [67], "meta_info": {"completion_tokens": 1}}\n\n'
BAD_ANSWERS: list[tuple[bytes, type[TriviumError]]] = [
    (EVENT, EngineDeadError),
    (b"", EngineDeadError),
    (EVENT + b"data: {]\n\n", InternalError),
    (EVENT + b'data: {"error": {"message": "late", "code": "deadline_exceeded"}}\n\n', DeadlineExceededError),
    (EVENT + b'data: {"error": {"message": "broken", "code": "internal_error"}}\n\n', InternalError),
]


@pytest.mark.parametrize(("body", "kind"), BAD_ANSWERS)
def test_an_answer_that_is_not_whole_is_an_error(endpoint: sgl.RuntimeEndpoint, body: bytes, kind: type) -> None:
    told = json.dumps(endpoint._tokenizer()).encode()

    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x")

    with scripted(lambda path: (200, told if path == "/v1/tokenizer" else body, {})) as url:
        backend = sgl.RuntimeEndpoint(url)
        error = sgl.function(own).run(backend=backend).error()
        backend.close()
    assert isinstance(error, ProgramError)
    assert isinstance(error.__cause__, kind), error


def refusal(status: int, **fields: Any) -> TriviumError:
    return read_refusal(json.dumps({"error": {"message": "no", **fields}}).encode(), status, "7")


def test_refusals_are_the_errors_of_this_process() -> None:
    bad = refusal(400, code="invalid_value", param="top_k")
    assert type(bad) is InvalidParameterError
    assert (bad.param, str(bad)) == ("top_k", "no")
    assert type(refusal(400, code="context_length_exceeded")) is PromptTooLongError
    assert type(refusal(400, code="something_new")) is RequestError
    full = refusal(503, code="overloaded")
    assert isinstance(full, QueueFullError)
    assert full.retry_after_s == 7
    assert type(refusal(503, code="shutting_down")) is CapacityError
    assert type(refusal(500, code="internal_error")) is InternalError
    assert "status 502: <html>" in str(read_refusal(b"<html>", 502))


def test_an_event_without_scores_has_none() -> None:
    delta = read_event(EVENT.removeprefix(b"data: ").strip(), SamplingParams())
    assert (delta.text, delta.token_ids, delta.first_token, delta.logprobs) == ("a", [67], 0, None)


# -- faults of the programs' first home, each of which concerns a server


def test_a_stream_loses_no_text(endpoint: sgl.RuntimeEndpoint) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", regex="Hello big wide world!", max_tokens=40)

    state = sgl.function(own).run(stream=True, backend=endpoint)
    assert "".join(state.text_iter("x")) == "Hello big wide world!"


@pytest.mark.parametrize("method", ["greedy_token_selection", "unconditional_likelihood_normalized"])
def test_no_measure_stumbles_over_the_entry_without_a_logprob(
    endpoint: sgl.RuntimeEndpoint, llm: LLM, method: str
) -> None:
    def own(s: Any) -> None:
        s += "hello " + sgl.select("x", ["abc", "b", "abd"], choices_method=method)

    there, here = sgl.function(own).run(backend=endpoint), sgl.function(own).run(backend=llm)
    assert there["x"] == here["x"]
    for name in ("normalized_prompt_logprobs", "greedy_logprob_matrix", "normalized_unconditional_prompt_logprobs"):
        found, expected = (np.array(each.get_meta_info("x").get(name, []), object).ravel() for each in (there, here))
        assert list(found) == list(expected)


def test_branches_are_appended_without_a_route_for_it(endpoint: sgl.RuntimeEndpoint) -> None:
    def own(s: Any) -> None:
        s += "hello"
        forks = s.fork(2)
        forks += [sgl.gen("x", regex="[a-c]", max_tokens=1), sgl.gen("x", regex="[d-f]", max_tokens=1)]
        forks.join("concate_and_append")
        s += sgl.gen("y", max_tokens=2)

    state = sgl.function(own).run(backend=endpoint)
    assert state.text().startswith("hello")
    assert set(state.text()[5]) <= set("abc")
    assert set(state.text()[6]) <= set("def")


def test_several_answers_of_a_server_are_a_list(endpoint: sgl.RuntimeEndpoint, llm: LLM) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", n=2, seed=5, max_tokens=6)

    there, here = sgl.function(own).run(backend=endpoint), sgl.function(own).run(backend=llm)
    assert there["x"] == here["x"]
    assert len(there["x"]) == 2


def test_what_forks_share_is_computed_once_whenever_they_come(endpoint: sgl.RuntimeEndpoint) -> None:
    stem = "yet another beginning that is shared by all of the branches, "

    def own(s: Any) -> None:  # the text may not have been cut when the fork is made
        s += stem
        forks = s.fork(4)
        forks += sgl.gen("x", max_tokens=1)
        forks.join()

    def counted() -> Any:
        return endpoint.info["internal_states"][0]

    endpoint.flush_cache()
    before = counted()
    assert len(sgl.function(own).run(backend=endpoint)["x"]) == 4
    wait_until(lambda: not counted()["num_running"])
    after = counted()
    prompts = after["prompt_tokens_total"] - before["prompt_tokens_total"]
    found = after["prefix_hit_tokens_total"] - before["prefix_hit_tokens_total"]
    assert (prompts, prompts - found) == (4 * len(stem), len(stem) + 3)
