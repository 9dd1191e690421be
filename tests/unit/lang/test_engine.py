"""SGLang's engine: its words go in and its answers come out, the same as a server's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import trivium.lang as sgl
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium.base.errors import ConfigError, InvalidParameterError, RequestError, UnsupportedFeatureError

GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
NOT_COMPARED = {"id", "e2e_latency", "weight_version", "reasoning_tokens", "cached_tokens"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with sgl.Engine(model_path=str(tiny_model()), kv_cache_memory="1MiB", threads=1, random_seed=0) as own:
        yield own


def plain(value: Any) -> Any:
    """A value as JSON has it, with numbers that may differ in their last bits rounded."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


REQUESTS: list[dict[str, Any]] = [
    {"sampling_params": GREEDY},
    {"sampling_params": {**GREEDY, "n": 2, "temperature": 1.0, "sampling_seed": 4}},
    {"sampling_params": {**GREEDY, "max_new_tokens": 0}},
    {"sampling_params": {**GREEDY, "regex": "[ab]{3}", "ignore_eos": None}},
    {"sampling_params": {**GREEDY, "stop": "a", "stop_token_ids": [67], "no_stop_trim": True}},
    {"sampling_params": GREEDY, "return_logprob": True},
    {"sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
    {"sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 4, "top_logprobs_num": 1},
]


@pytest.mark.parametrize("fields", REQUESTS)
def test_it_answers_as_a_server_does(engine: Any, server: ServerProcess, fields: dict[str, Any]) -> None:
    for own, theirs in (({"prompt": "hello"}, {"text": "hello"}), ({"prompt": ["a", "bc"]}, {"text": ["a", "bc"]})):
        if fields.get("logprob_start_len") and "a" in own["prompt"]:
            continue  # those prompts are shorter
        answer = httpx.post(f"{server.url}/generate", json={**theirs, **fields}, timeout=20)
        assert answer.status_code == 200, answer.text
        assert plain(engine.generate(**own, **fields)) == plain(answer.json())


def test_ids_are_prompts_too(engine: Any) -> None:
    ids = engine.llm.get_tokenizer().encode("hello", add_special_tokens=True)
    expected = plain(engine.generate("hello", GREEDY))
    assert plain(engine.generate(input_ids=ids, sampling_params=GREEDY)) == expected
    assert plain(engine.generate(input_ids=[ids, ids], sampling_params=[GREEDY, GREEDY])) == [expected, expected]


async def test_streams_have_all_text_so_far(engine: Any) -> None:
    whole = engine.generate("hello", GREEDY)
    texts = [each["text"] for each in engine.generate("hello", GREEDY, stream=True)]
    assert texts == sorted(texts, key=len)
    assert texts[-1] == whole["text"]
    stream = await engine.async_generate("hello", GREEDY, stream=True)
    events = [each async for each in stream]
    assert [each["text"] for each in events] == texts
    assert [each["meta_info"]["finish_reason"] for each in events[:-1]] == [None] * (len(events) - 1)
    assert plain(await engine.async_generate("hello", GREEDY)) == plain(whole)


def test_programs_run_on_it(engine: Any) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", max_tokens=6, ignore_eos=True)

    state = sgl.function(own).run(backend=engine, temperature=0.0)
    assert state["x"] == engine.generate("hello", GREEDY)["text"]
    engine.flush_cache()
    assert engine.get_server_info()["internal_states"][0]["num_running"] == 0


@pytest.mark.parametrize(
    ("fields", "kind", "match"),
    [
        ({}, InvalidParameterError, "either prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, InvalidParameterError, "either"),
        ({"prompt": "a", "sampling_params": {"max_tokens": 5}}, InvalidParameterError, "max_new_tokens"),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, InvalidParameterError, "temperature"),
        ({"prompt": "a", "sampling_params": {"temperature": -1}}, InvalidParameterError, "temperature"),
        ({"prompt": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, RequestError, "exactly one"),
        ({"prompt": ["a", "b"], "sampling_params": [{}, {}, {}]}, InvalidParameterError, "3 entries for 2"),
        ({"prompt": "a", "return_logprob": True, "logprob_start_len": 9}, InvalidParameterError, "logprob_start_len"),
        ({"prompt": "a", "image_data": "x"}, UnsupportedFeatureError, "image_data"),
        ({"prompt": "a", "lora_path": "x"}, UnsupportedFeatureError, "lora_path"),
        ({"prompt": ["a"], "stream": True}, UnsupportedFeatureError, "streamed"),
    ],
)
def test_what_is_refused(engine: Any, fields: dict[str, Any], kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        engine.generate(**fields)


def test_options_that_are_none() -> None:
    with pytest.raises(ConfigError, match="tp_size"):
        sgl.Engine(model_path=str(tiny_model()), tp_size=2)
