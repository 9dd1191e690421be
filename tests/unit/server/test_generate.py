"""`/generate` and the routes around it, as SGLang's programs expect them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.fake_engine import BOS_ID, ByteTokenizer, FakeEngine, say
from support.server_site import MakeSite, Site
from trivium.config.chat_output import ChatOutput
from trivium.server.sglang_tables import GENERATE, GENERATE_SAMPLING


async def generate(site: Site, status: int = 200, **fields: Any) -> Any:
    given = fields if {"text", "input_ids"} & set(fields) else {"text": "hi", **fields}
    response = await site.client.post("/generate", json=given)
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


async def stream(site: Site, **fields: Any) -> list[dict[str, Any]]:
    response = await site.client.post("/generate", json={"text": "hi", "stream": True, **fields})
    assert response.status_code == 200, response.text
    pieces = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert pieces.pop() == "[DONE]"
    return [json.loads(piece) for piece in pieces]


async def test_an_answer_has_text_ids_and_every_field_of_meta_info(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(cached_len=1))
    answer = await generate(site, sampling_params={"max_new_tokens": 3})
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("abc", [97, 98, 99])
    assert meta.pop("id") == site.engine.submitted[0].request_id
    assert meta.pop("e2e_latency") >= 0
    assert meta.pop("weight_version").startswith("trivium-")
    assert meta == {
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "cached_tokens": 1,
        "reasoning_tokens": 0,
    }
    assert set(answer) == {"text", "output_ids", "meta_info"}


async def test_what_is_left_open_is_sglangs_default_and_not_the_checkpoints(make_site: MakeSite) -> None:
    site = make_site(served={"sampling_defaults": {"temperature": 0.6, "top_k": 20}})
    await generate(site)
    await generate(site, sampling_params={"max_new_tokens": None, "temperature": None, "stop": [], "regex": None})
    first, second = (request.params for request in site.engine.submitted)
    assert first == second
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (128, 1.0, 1.0, 0)


async def test_zero_new_tokens_only_reads_the_prompt(site: Site) -> None:
    answer = await generate(site, sampling_params={"max_new_tokens": 0})
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"text": "ab"}, [[97, 98]]),
        ({"text": ["ab", "c"]}, [[97, 98], [99]]),
        ({"text": ["ab"]}, [[97, 98]]),
        ({"input_ids": [97, 98]}, [[97, 98]]),
        ({"input_ids": [[97], [98]]}, [[97], [98]]),
    ],
)
async def test_prompts_are_one_or_a_list(site: Site, fields: dict[str, Any], prompts: list[list[int]]) -> None:
    answer = await generate(site, sampling_params={"max_new_tokens": 1}, **fields)
    assert [request.prompt_ids for request in site.engine.submitted] == prompts
    given = next(iter(fields.values()))
    is_list = isinstance(given, list) and not isinstance(given[0], int)
    assert isinstance(answer, list) == is_list
    assert len(answer) == (len(prompts) if is_list else 3)


async def test_several_answers_are_a_list(site: Site) -> None:
    answers = await generate(site, sampling_params={"n": 2, "max_new_tokens": 2}, text=["x", "y"])
    assert [answer["text"] for answer in answers] == ["ab", "bc", "ab", "bc"]
    assert len(await generate(site, sampling_params={"n": 2, "max_new_tokens": 2})) == 2


async def test_each_prompt_may_have_parameters_of_its_own(site: Site) -> None:
    answers = await generate(site, text=["x", "y"], sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2}])
    assert [answer["text"] for answer in answers] == ["a", "ab"]


async def test_logprobs_begin_with_an_entry_that_has_none(site: Site) -> None:
    fields: dict[str, Any] = {
        "text": "xyz", "return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 1},
    }  # fmt: skip
    meta = (await generate(site, **fields))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 121, None], [-0.25, 122, None]]
    assert meta["input_top_logprobs"] == [None, [[-0.25, 122, None], [-1.25, 123, None]]]
    assert meta["output_token_logprobs"] == [[-0.25, 97, None]]
    assert meta["output_top_logprobs"] == [[[-0.25, 97, None], [-1.25, 98, None]]]
    assert meta["output_token_logprobs_length"] == 1
    assert site.engine.submitted[0].params.prompt_logprob_start == 2  # only what has a logprob is computed

    meta = (await generate(site, **fields, return_text_in_logprobs=True))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 121, "y"], [-0.25, 122, "z"]]


@pytest.mark.parametrize(("start", "expected"), [(None, []), (-1, []), (2, [[None, 122, None]])])
async def test_where_prompt_logprobs_begin(site: Site, start: int | None, expected: list[Any]) -> None:
    meta = (await generate(site, text="xyz", return_logprob=True, logprob_start_len=start))["meta_info"]
    assert meta["input_token_logprobs"] == expected
    assert "input_top_logprobs" not in meta
    assert site.engine.submitted[0].params.prompt_logprobs is None


async def test_a_stream_has_all_text_so_far_and_ends_with_done(site: Site) -> None:
    events = await stream(site, sampling_params={"max_new_tokens": 3}, return_logprob=True)
    assert [each["text"] for each in events] == ["a", "ab", "abc"]
    assert [each["output_ids"] for each in events] == [[97], [97, 98], [97, 98, 99]]
    assert [len(each["meta_info"]["output_token_logprobs"]) for each in events] == [1, 2, 3]
    assert [each["meta_info"]["finish_reason"] for each in events] == [None, None, {"type": "length", "length": 3}]
    whole = await generate(site, sampling_params={"max_new_tokens": 3}, return_logprob=True)
    for each in (events[-1], whole):
        assert each["meta_info"].pop("e2e_latency") >= 0
        del each["meta_info"]["id"]
    assert events[-1] == whole


async def test_an_incremental_stream_has_what_is_new(site: Site) -> None:
    events = await stream(
        site,
        text="xyz",
        sampling_params={"max_new_tokens": 3},
        return_logprob=True,
        logprob_start_len=0,
        incremental_streaming_output=True,
    )
    assert [each["text"] for each in events] == ["a", "b", "c"]
    assert [each["output_ids"] for each in events] == [[97], [98], [99]]
    assert [each["meta_info"]["completion_tokens"] for each in events] == [1, 2, 3]
    assert [each["meta_info"]["output_token_logprobs"] for each in events] == [
        [[-0.25, id_, None]] for id_ in (97, 98, 99)
    ]
    assert [len(each["meta_info"].get("input_token_logprobs", ())) for each in events] == [3, 0, 0]


async def test_a_stream_of_several_says_whose_its_events_are(site: Site) -> None:
    events = await stream(site, text=["x", "y"], sampling_params={"n": 2, "max_new_tokens": 2})
    last = {each["index"]: each["text"] for each in events}
    assert last == {0: "ab", 1: "bc", 2: "ab", 3: "bc"}


async def test_reasoning_is_told_apart_where_a_dialect_is_named(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("<think>hm</think>yes")))
    answer = await generate(site, reasoning_parser="qwen3")
    assert answer["text"] == "<think>hm</think>yes"
    assert answer["parts"] == [{"kind": "reasoning", "text": "hm"}, {"kind": "content", "text": "yes"}]
    assert 0 < answer["meta_info"]["reasoning_tokens"] < answer["meta_info"]["completion_tokens"]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}

    events = await stream(site, reasoning_parser="qwen3")
    assert events[-1]["parts"] == answer["parts"]
    events = await stream(site, reasoning_parser="qwen3", incremental_streaming_output=True)
    assert "".join(part["text"] for each in events for part in each["parts"] if part["kind"] == "content") == "yes"

    await generate(site, reasoning_parser="qwen3", starts_in_reasoning=True)
    wanted = ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True)
    assert site.engine.submitted[-1].params.chat_output == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": ["x", ""]}, "text"),
        ({"text": [[1]]}, "text"),
        ({"text": [1]}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": "x"}, "input_ids"),
        ({"input_ids": ["x"]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [999]}, "input_ids"),
        ({"input_ids": [[1], [True]]}, "input_ids"),
        ({"text": "x" * 600}, "text"),
        ({"sampling_params": {"max_new_tokens": 600}}, "max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"sampling_params": {"min_new_tokens": 5, "max_new_tokens": 4}}, "min_new_tokens"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"max_tokens": 5}}, "max_tokens"),
        ({"sampling_params": {"n": 0}}, "n"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, "ebnf"),
        ({"sampling_params": {"json_schema": "{"}}, "json_schema"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": "warm"}, "sampling_params"),
        ({"sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{"n": 1}, {"n": 2}]}, "n"),
        ({"text": ["x"] * 256, "sampling_params": {"n": 5}}, "n"),
        ({"return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"logprob_start_len": 0, "top_logprobs_num": 1}, "top_logprobs_num"),
        ({"return_text_in_logprobs": True}, "return_text_in_logprobs"),
        ({"incremental_streaming_output": True}, "incremental_streaming_output"),
        ({"starts_in_reasoning": True}, "starts_in_reasoning"),
        ({"reasoning_parser": "nobody"}, "reasoning_parser"),
        ({"model": "nope"}, "model"),
        ({"image_data": "x"}, "image_data"),
        ({"session_id": "x"}, "session_id"),
        ({"lora_path": "x"}, "lora_path"),
        ({"temperature": 1}, "temperature"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_own_name(
    site: Site, fields: dict[str, Any], param: str
) -> None:
    error = await generate(site, 404 if param == "model" else 400, **fields)
    assert error["param"] == param
    assert param in error["message"] or error["code"] in {"model_not_found", "context_length_exceeded"}
    assert site.engine.submitted == []


async def test_refusals_speak_of_the_fields_that_were_sent(site: Site) -> None:
    error = await generate(site, 400, sampling_params={"min_new_tokens": 5, "max_new_tokens": 4})
    assert error["message"] == "min_new_tokens is 5; it must be at most max_new_tokens = 4"


async def test_neutral_values_of_what_is_refused_pass(site: Site) -> None:
    await generate(
        site,
        sampling_params={"stop_regex": ["a+"], "spaces_between_special_tokens": True, "stop": [], "stop_token_ids": []},
        image_data=None,
        lora_path=None,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
    )


async def test_who_is_served_and_how_it_is(site: Site) -> None:
    for path in ("/model_info", "/get_model_info"):
        info = (await site.client.get(path)).json()
        assert (info["model_path"], info["is_generation"]) == ("tiny", True)
    site.engine.condition.info = {"max_model_len": 77, "disk_cache": "/somewhere"}
    for path in ("/server_info", "/get_server_info"):
        site.engine.replies.append({"num_running": 3})
        info = (await site.client.get(path)).json()
        assert (info["max_model_len"], info["internal_states"]) == (77, [{"num_running": 3}])
        assert "/somewhere" not in str(info)


async def test_health_generate_is_health_and_generates_nothing(site: Site) -> None:
    assert (await site.client.get("/health_generate")).status_code == 200
    site.engine.condition.heartbeat_age_s = 60
    assert (await site.client.get("/health_generate")).status_code == 503
    assert site.engine.submitted == []


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_may_flush(make_site: MakeSite, method: str) -> None:
    async def ask(site: Site, key: str = "", **headers: str) -> int:
        own = {"authorization": f"Bearer {key}"} if key else {}
        return (await site.client.request(method, "/flush_cache", headers={**own, **headers})).status_code

    assert await ask(make_site()) == 200
    keyed = make_site(api_key=("ann=ann-long-key",))
    assert (await ask(keyed), await ask(keyed, "ann-long-key")) == (401, 200)
    admin = make_site(api_key=("ann=ann-long-key",), admin_key=("boss=boss-long-key",))
    assert (await ask(admin), await ask(admin, "ann-long-key"), await ask(admin, "boss-long-key")) == (401, 401, 200)
    assert await ask(make_site(), origin="http://evil.test") == 403
    assert await ask(make_site(), **{"sec-fetch-site": "cross-site"}) == 403


async def test_what_there_is_no_doing_of(site: Site) -> None:
    for path in ("/start_profile", "/stop_profile"):
        response = await site.client.post(path)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_parameter")
    response = await site.client.post("/concate_and_append_request", json={"src_rids": ["a"], "dst_rid": "b"})
    assert response.json() == {"spliced": False}
    assert (await site.client.post("/concate_and_append_request", json={"other": 1})).status_code == 400


async def test_the_tokenizer_is_described(site: Site) -> None:
    answer = (await site.client.get("/v1/tokenizer")).json()
    assert answer == {
        "model": "tiny",
        "max_model_len": 512,
        "tokenizer": {"adds_bos": False},
        "chat_template": {"opening": ""},
    }


async def test_special_tokens_are_added_to_text(make_site: MakeSite) -> None:
    site = make_site(tokenizer=ByteTokenizer(adds_bos=True))
    await generate(site, text="a")
    await generate(site, text="a", add_special_tokens=False)
    assert [request.prompt_ids for request in site.engine.submitted] == [[BOS_ID, 97], [97]]


async def test_the_request_is_logged_and_timed_like_any_other(site: Site) -> None:
    await generate(site, priority=3, cache_salt="salt", timeout_s=2.0)
    request = site.engine.submitted[0]
    assert (request.priority, request.cache_salt, request.deadline_s) == (3, "salt", 2.0)
    assert 'route="/generate"' in (await site.client.get("/metrics")).text


def test_no_field_is_in_two_columns_of_a_table() -> None:
    for table in (GENERATE, GENERATE_SAMPLING):
        assert not set(table.honoured) & set(table.bookkeeping)
        assert not (set(table.honoured) | set(table.bookkeeping)) & set(table.unsupported)
