"""Every field of the generating endpoints: honoured, harmless, unsupported or unknown; never ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.fake_engine import MODEL_VOCAB, FakeEngine
from support.server_site import MakeSite, Site
from trivium.config.defaults import recommended_sampling
from trivium.config.program_share import ProgramShare
from trivium.config.sampling import SamplingParams
from trivium.server.tables import CHAT, COMPLETIONS, SAMPLING_FIELDS

ENDPOINTS = ("complete", "chat")

TWO_VALUES: dict[str, tuple[Any, Any]] = {
    "n": (1, 2),
    "best_of": (1, 2),
    "temperature": (0, 0.5),
    "top_k": (3, -1),
    "top_p": (0.5, 1),
    "min_p": (0, 0.1),
    "typical_p": (0.5, 1),
    "repetition_penalty": (1, 1.3),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "logit_bias": ({"7": 1}, {"7": -1}),
    "bad_words": ("a", ["b"]),
    "seed": (0, (1 << 64) - 1),
    "min_tokens": (0, 2),
    "stop": ("a", ["b", "c"]),
    "stop_regex": ("a+", ["b", "[c-e]"]),
    "stop_token_ids": ([], [5]),
    "include_stop_str_in_output": (False, True),
    "ignore_eos": (False, True),
    "skip_special_tokens": (False, True),
    "prompt_logprobs": (0, 2),
    "prompt_logprob_start": (0, 1),
    "logprobs_mode": ("raw", "processed"),
    "cache_retention": (
        [],
        [{"token_range": [0, None], "priority": 90}, {"token_range": [4, 9], "priority": 0, "duration_s": 1.5}],
    ),
    "cache_retention_decode": ({"priority": 0}, {"priority": 100, "duration_s": 60}),
}


def context_of(name: str) -> dict[str, Any]:
    """Further fields without which this one is refused."""
    return {"prompt_logprobs": 0} if name in {"prompt_logprob_start", "logprobs_mode"} else {}


def error_of(response: Any) -> dict[str, Any]:
    body = json.loads(response.text, parse_constant=pytest.fail)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_the_table_of_values_covers_every_sampling_field() -> None:
    assert set(TWO_VALUES) == set(SAMPLING_FIELDS)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", sorted(TWO_VALUES))
async def test_every_sampling_field_reaches_the_engine(site: Site, endpoint: str, name: str) -> None:
    for value in TWO_VALUES[name]:
        response = await getattr(site, endpoint)(max_tokens=3, **context_of(name), **{name: value})
        assert response.status_code == 200, response.text
    first, second = (request.params for request in site.engine.submitted)
    assert getattr(first, name) != getattr(second, name)


BAD_VALUES: list[tuple[str, Any]] = [
    *((name, value) for name in ("temperature", "top_p", "min_p", "typical_p", "presence_penalty",
                                 "frequency_penalty", "repetition_penalty")
      for value in ("nan", "0.5", True, [], {}, -3, 1000)),
    ("top_p", 0), ("top_p", 7), ("typical_p", 0), ("repetition_penalty", 0), ("repetition_penalty", -1),
    ("n", 0), ("n", -1), ("n", 129), ("n", 1000000), ("n", 1.0), ("n", True), ("n", "2"),
    ("best_of", 1000000), ("best_of", 0),
    ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "5"), ("max_tokens", True), ("max_tokens", 1 << 40),
    ("min_tokens", -1), ("seed", -1), ("seed", 1 << 64), ("seed", 1.0), ("seed", True), ("top_k", 1.5),
    ("top_k", -2),
    ("stop", ""), ("stop", ["x", ""]), ("stop", [1]), ("stop", {}), ("stop", ["x"] * 65),
    ("stop_token_ids", [-1]), ("stop_token_ids", [MODEL_VOCAB]), ("stop_token_ids", [1.5]),
    ("stop_token_ids", [True]), ("stop_token_ids", 5),
    ("logit_bias", {str(MODEL_VOCAB): 5}), ("logit_bias", {"-1": 5}), ("logit_bias", {"abc": 1}),
    ("logit_bias", {"7": 1000}), ("logit_bias", {"7": True}), ("logit_bias", {"7": "1"}), ("logit_bias", {"1.5": 1}),
    ("logit_bias", []), ("logit_bias", {"\uff17": 1}), ("logit_bias", {"7": 1, "07": 2}), ("logit_bias", {"9" * 40: 1}),
    ("bad_words", [""]), ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprob_start", -1),
    ("logprobs_mode", "cooked"), ("ignore_eos", 1), ("ignore_eos", "true"), ("skip_special_tokens", 0),
    ("stream", "yes"), ("stream", 1), ("cache_salt", ""), ("cache_salt", 5), ("timeout_s", 0),
    ("timeout_s", -1), ("return_token_ids", 1), ("add_special_tokens", "no"),
    ("cache_retention", {}), ("cache_retention", [5]), ("cache_retention", [{"priority": 9}]),
    ("cache_retention", [{"token_range": [0, None]}]), ("cache_retention", [{"token_range": [4, 4], "priority": 9}]),
    ("cache_retention", [{"token_range": [None, 4], "priority": 9}]),
    ("cache_retention", [{"token_range": [0, 4], "priority": 101}]),
    ("cache_retention", [{"token_range": [0, 4], "priority": 9, "duration_s": 0}]),
    ("cache_retention", [{"token_range": [0, 4], "priority": 9, "for": 3}]),
    ("cache_retention", [{"token_range": [0, None], "priority": 9}] * 65),
    ("cache_retention_decode", []), ("cache_retention_decode", {"priority": True}), ("cache_retention_decode", {}),
    ("program", "p"), ("program", {}), ("program", {"id": ""}), ("program", {"id": 5}), ("program", {"id": "p" * 257}),
    ("program", {"id": "p", "remaining_tokens": -1}), ("program", {"id": "p", "remaining_tokens": True}),
    ("program", {"id": "p", "ends": 1}), ("program", {"id": "p", "last": True}),
    ("stream_options", True), ("stream_options", {"include_usage": 1}), ("stream_options", {"usage": True}),
]  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
async def test_a_bad_value_is_a_400_that_names_its_field(
    site: Site, endpoint: str, name: str, value: Any, is_stream: bool
) -> None:
    fields: dict[str, Any] = {"stream": is_stream, name: value}
    response = await getattr(site, endpoint)(**fields)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = error_of(response)
    assert error["param"] == name
    assert name in error["message"]
    assert site.engine.submitted == []


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999", '"nan"'])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
async def test_numbers_that_are_none_are_refused_in_the_raw_body(site: Site, name: str, raw: str) -> None:
    body = f'{{"model": "tiny", "prompt": "x", "stream": true, "{name}": {raw}}}'
    response = await site.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error_of(response)


async def test_the_edges_of_the_limits_are_taken(site: Site) -> None:
    response = await site.complete(
        temperature=0, top_p=1, presence_penalty=2, frequency_penalty=-2, n=128, logprobs=20, max_tokens=1
    )
    assert response.status_code == 200
    assert len(response.json()["choices"]) == 128


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("complete", {"logprobs": 21}, "logprobs"),
        ("complete", {"logprobs": 49152}, "logprobs"),
        ("complete", {"logprobs": -1}, "logprobs"),
        ("complete", {"logprobs": True}, "logprobs"),
        ("chat", {"logprobs": 1}, "logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ("chat", {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ("complete", {"best_of": 1, "n": 2}, "best_of"),
        ("complete", {"best_of": 2, "stream": True}, "best_of"),
        ("complete", {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ("complete", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("complete", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("complete", {"echo": True, "logprobs": 1, "prompt_logprob_start": 1}, "prompt_logprob_start"),
        ("complete", {"prompt_logprob_start": 1}, "prompt_logprob_start"),
        ("complete", {"logprobs_mode": "processed"}, "logprobs_mode"),
        ("chat", {"logprobs_mode": "raw", "logprobs": False}, "logprobs_mode"),
        ("complete", {"prompt": ["x"] * 200, "n": 128}, "n"),
        ("complete", {"prompt": ["x"] * 257}, "prompt"),
        ("complete", {"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
async def test_contradictions_and_limits_are_refused(
    site: Site, endpoint: str, fields: dict[str, Any], param: str
) -> None:
    response = await getattr(site, endpoint)(**fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert site.engine.submitted == []


UNSUPPORTED: list[tuple[str, str, Any]] = [
    ("chat", "tools", [{"type": "function", "function": {"name": "f"}}]),
    ("chat", "functions", [{"name": "f"}]),
    ("chat", "function_call", {"name": "f"}),
    ("chat", "stream_reasoning", False),
    ("complete", "tools", [{"type": "function", "function": {"name": "f"}}]),
    ("complete", "tool_choice", "required"),
    ("complete", "reasoning_effort", "high"),
    ("chat", "modalities", ["text", "audio"]),
    ("chat", "audio", {"voice": "x"}),
    ("chat", "prediction", {"type": "content"}),
    ("chat", "reasoning_effort", "high"),
    ("chat", "chat_template", "{{ messages }}"),
    ("chat", "echo", True),
    ("complete", "suffix", "end"),
    ("complete", "guided_decoding_backend", "outlines"),
    ("complete", "guided_whitespace_pattern", " *"),
    ("complete", "use_beam_search", True),
    ("complete", "spaces_between_special_tokens", False),
    ("complete", "logits_processors", ["x"]),
    ("complete", "lora", "x"),
    ("complete", "truncate_prompt_tokens", 5),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("endpoint", "name", "value"), UNSUPPORTED)
async def test_what_is_known_and_unsupported_is_refused_by_name(
    site: Site, endpoint: str, name: str, value: Any, is_stream: bool
) -> None:
    response = await getattr(site, endpoint)(stream=is_stream, **{name: value})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert site.engine.submitted == []


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat", {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}),
        ("chat", {"tools": None, "tool_choice": "auto", "reasoning_effort": None, "functions": None, "echo": False}),
        ("complete", {"suffix": "", "use_beam_search": False, "length_penalty": 1, "guided_json": None, "grammar": ""}),
        ("complete", {"temperature": None, "stop": None, "logit_bias": None, "stream": None, "n": None}),
    ],
)
async def test_values_that_ask_for_nothing_pass(site: Site, endpoint: str, fields: dict[str, Any]) -> None:
    response = await getattr(site, endpoint)(**{"max_tokens": 2, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_bookkeeping_fields_have_no_effect(site: Site, endpoint: str) -> None:
    table = COMPLETIONS if endpoint == "complete" else CHAT
    for name in table.bookkeeping:
        assert (await getattr(site, endpoint)(max_tokens=2, **{name: "x"})).status_code == 200, name
    assert len({repr(request.params) for request in site.engine.submitted}) == 1


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("value", [1, None, False])
async def test_an_unknown_field_is_refused_with_close_names(site: Site, endpoint: str, value: Any) -> None:
    response = await getattr(site, endpoint)(temprature=value)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "temperature" in error["message"]


@pytest.mark.parametrize(("model", "status"), [("nope", 404), ("", 404), (123, 400), (["tiny"], 400), (None, 400)])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_served_names_answer(site: Site, model: Any, status: int, is_stream: bool) -> None:
    response = await site.complete(model=model, stream=is_stream)
    assert response.status_code == status
    error = error_of(response)
    assert error["param"] == "model"
    assert (error["code"] == "model_not_found") == (status == 404)


async def test_a_missing_model_is_refused_and_an_alias_is_echoed(site: Site) -> None:
    assert (await site.client.post("/v1/completions", json={"prompt": "x"})).status_code == 400
    assert (await site.complete(model="tiny-alias")).json()["model"] == "tiny-alias"


async def test_a_request_that_sets_nothing_gets_the_checkpoints_defaults(make_site: MakeSite) -> None:
    defaults = recommended_sampling({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.1})
    site = make_site(served={"sampling_defaults": defaults})
    await site.chat()
    await site.chat(temperature=1, top_k=0)
    plain, changed = (request.params for request in site.engine.submitted)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.repetition_penalty) == (0.6, 0.95, 20, 1.1)
    assert (changed.temperature, changed.top_p, changed.top_k, changed.repetition_penalty) == (1.0, 0.95, 0, 1.1)


def test_defaults_that_the_sampler_would_refuse_are_left_out() -> None:
    assert recommended_sampling({
        "temperature": "warm",
        "top_p": 0,
        "top_k": None,
        "eos_token_id": 2,
        "min_p": 0.1,
    }) == {"min_p": 0.1}


async def test_length_defaults_are_sixteen_for_completions_and_the_context_for_chat(site: Site) -> None:
    await site.complete()
    await site.complete(min_tokens=20)
    await site.chat()
    short, raised, long = (request.params.max_tokens for request in site.engine.submitted)
    assert (short, raised) == (16, 20)
    assert long == 512 - len(site.engine.submitted[2].prompt_ids)


async def test_extension_fields_reach_the_engine(site: Site) -> None:
    await site.complete(cache_salt="tenant", timeout_s=1.5, priority=-3, user="ann")
    request = site.engine.submitted[0]
    assert (request.cache_salt, request.deadline_s) == ("tenant", 1.5)
    assert (request.priority, request.tenant, request.program) == (-3, "ann", None)
    await site.complete(program={"id": "p"})
    await site.chat(program={"id": "p", "remaining_tokens": 9, "ends": True})
    assert [each.program for each in site.engine.submitted[1:]] == [
        ProgramShare(program_id="p"),
        ProgramShare(program_id="p", remaining_tokens=9, ends=True),
    ]


def test_field_limits_agree_with_the_sampling_record() -> None:
    for name, values in TWO_VALUES.items():
        context = context_of(name)
        for value in values:
            read = SAMPLING_FIELDS[name].read(name, value)
            SamplingParams(**{**context, name: read}).validate(vocab_size=MODEL_VOCAB)


async def test_error_messages_are_bounded(make_site: MakeSite) -> None:
    site = make_site(FakeEngine())
    for fields in ({"stop": {"x": "y" * 100_000}}, {"z" * 100_000: 1}, {"model": "m" * 100_000}):
        response = await site.complete(**fields)
        assert response.status_code in {400, 404}
        assert len(response.text) < 1500
