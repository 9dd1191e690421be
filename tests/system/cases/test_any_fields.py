"""Any fields together: the request is answered, or refused; never a 500, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.case_checks import REFUSED, assert_nothing_is_left, strict_json
from support.sse import events
from support.tiny_model import VOCAB
from support.tiny_server import TinyServer, tiny_server

TOO_LATE = 504
ALL_BANNED = {str(id_): -100 for id_ in range(VOCAB)}
VALUES: Mapping[str, list[Any]] = {
    "n": [1, 3, 0, 129],
    "best_of": [None, 1, 4],
    "temperature": [0, 1, 100, 1e-9],
    "top_k": [0, -1, 1, 10**6],
    "top_p": [1, 1e-9, 0],
    "min_p": [0, 1, 0.5],
    "typical_p": [1, 0.01],
    "repetition_penalty": [1, 100, 1e-6],
    "presence_penalty": [2, -2],
    "frequency_penalty": [2, -2],
    "logit_bias": [{}, {"5": 100}, ALL_BANNED],
    "bad_words": ["a", ["a", "b c", " "], ["é"]],
    "seed": [0, 2**64 - 1, 2**64],
    "min_tokens": [0, 5, 1000],
    "max_tokens": [0, 1, 8, 511],
    "stop": ["a", ["\n", "b"], "x" * 5000],
    "stop_regex": ["a+", ["\\n\\s*", "[b-d]"], "(a|b)*", "^a", "(" * 99, "(a{400}){400}"],
    "stop_token_ids": [[2], [VOCAB - 1], list(range(256))],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "prompt_logprobs": [0, 20],
    "prompt_logprob_start": [1, 500],
    "logprobs_mode": ["raw", "processed"],
    "stream": [True],
    "stream_options": [{"include_usage": True}, {}],
    "cache_salt": ["☃"],
    "priority": [-5, 7],
    "timeout_s": [5, 1e-12],
    "return_token_ids": [True],
    "add_special_tokens": [False],
    "echo": [True],
    "logprobs": [0, 20, True],
    "top_logprobs": [0, 3],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "response_format": [{"type": "text"}, {"type": "json_object"}],
    "regex": ["[a-z]{1,4}", "("],
    "guided_json": [{"type": "integer"}, {"not": {}}],
}
PROMPTS = [
    "hi",
    "\x00",
    "<|im_end|>",
    "é" * 20,
    ["a", "b"],
    [3, 4, 5],
    [[3], [4, 5]],
    [VOCAB - 1],
    "x" * 511,
    "x" * 512,
]
CONVERSATIONS = [
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "assistant", "content": None}],
]
FIELDS = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})
BODIES = st.one_of(
    st.tuples(st.just("/v1/completions"), st.just("prompt"), st.sampled_from(PROMPTS)),
    st.tuples(st.just("/v1/chat/completions"), st.just("messages"), st.sampled_from(CONVERSATIONS)),
)


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server("--max-num-seqs", "16", kv_cache_memory="256KiB") as server:
        yield server


def ask(server: TinyServer, path: str, fields: Mapping[str, Any]) -> None:
    response = server.post(path, **{"max_tokens": 4, **fields})
    assert response.status_code in {200, TOO_LATE, *REFUSED}, response.text
    if response.headers["content-type"] == "application/json":
        strict_json(response.text)
        return
    last = events(response.text)[-1]
    assert last == "[DONE]" or last["error"]["code"] == "deadline_exceeded"


def test_any_fields_are_answered_or_refused(running: TinyServer) -> None:
    @settings(max_examples=250, deadline=None)
    @given(BODIES, FIELDS)
    def try_fields(body: tuple[str, str, Any], fields: dict[str, Any]) -> None:
        path, name, value = body
        ask(running, path, {name: value, **fields})

    try_fields()
    running.assert_alive()
    assert_nothing_is_left(running)
