"""Models, tokens, version, metrics, and the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from support.fake_engine import IM_START_ID, ByteTokenizer, FakeEngine, say
from support.server_site import MakeSite, Site, open_site
from trivium.base.clock import FakeClock
from trivium.config.options import ServerOptions
from trivium.engine.messages import Delta
from trivium.server.app import build_app
from trivium.server.openapi import openapi_document
from trivium.server.sglang_tables import GENERATE
from trivium.server.tables import CHAT, COMPLETIONS
from trivium.server.telemetry import TokenTimes


async def test_models_lists_every_name_once(make_site: MakeSite) -> None:
    site = make_site(served={"aliases": ("tiny", "org/tiny"), "details": {"weights": "f32 100 %"}, "created": 7})
    body = (await site.client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["tiny", "org/tiny"]
    card = (await site.client.get("/v1/models/org/tiny")).json()
    assert card == body["data"][1]
    assert (card["object"], card["max_model_len"], card["created"]) == ("model", 512, 7)
    assert card["details"] == {"weights": "f32 100 %"}
    missing = await site.client.get("/v1/models/nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_models_show_the_precision_that_the_engine_reports(site: Site) -> None:
    site.engine.condition.info = {"arithmetic": "float32", "executor": "reference", "kv_cache": "long text"}
    card = (await site.client.get("/v1/models/tiny")).json()
    assert card["details"] == {"arithmetic": "float32", "executor": "reference"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405), ("GET", "/v1/models/", 404),
     ("GET", "/V1/models", 404), ("DELETE", "/v1/models/tiny", 405)],
)  # fmt: skip
async def test_unknown_routes_and_methods_are_json_errors(site: Site, method: str, path: str, status: int) -> None:
    response = await site.client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_text_is_tokenized_and_back(make_site: MakeSite) -> None:
    site = make_site(tokenizer=ByteTokenizer(adds_bos=True))
    body = (await site.post("/tokenize", prompt="né", return_token_strs=True)).json()
    assert body == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [256, 110, 195, 169],
        "token_strs": ["<s>", "n", "\ufffd", "\ufffd"],
    }
    plain = (await site.post("/tokenize", prompt="né", add_special_tokens=False)).json()
    assert (plain["tokens"], plain["token_strs"]) == ([110, 195, 169], None)
    assert (await site.post("/detokenize", tokens=[110, 195, 169])).json() == {"prompt": "né"}


async def test_a_chat_is_tokenized_as_it_would_be_answered(site: Site) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = (await site.post("/tokenize", messages=messages)).json()["tokens"]
    await site.chat(messages=messages)
    assert tokens == site.engine.submitted[0].prompt_ids
    assert tokens[0] == IM_START_ID
    assert len((await site.post("/tokenize", messages=messages, add_generation_prompt=False)).json()["tokens"]) < len(
        tokens
    )


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "a", "unknown": 1}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": []}),
        ("/detokenize", {"tokens": [300]}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/detokenize", {"tokens": "abc"}),
    ],
)
async def test_bad_token_requests_are_refused(site: Site, path: str, fields: dict[str, Any]) -> None:
    assert (await site.post(path, **fields)).status_code == 400


async def test_token_routes_check_the_model_only_when_it_is_given(site: Site) -> None:
    assert (await site.client.post("/tokenize", json={"prompt": "a"})).status_code == 200
    assert (await site.post("/tokenize", model="nope", prompt="a")).status_code == 404
    assert (await site.post("/detokenize", model="nope", tokens=[1])).status_code == 404


def read_metrics(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_show_the_engines_counters(site: Site) -> None:
    site.engine.condition.stats = {
        "num_waiting": 3, "num_running": 2, "kv_pages_total": 10, "kv_pages_used": 4, "kv_pages_cached": 1,
        "kv_pages_free": 5, "kv_waste": 0.25, "prefix_query_tokens_total": 100, "prefix_hit_tokens_total": 40,
        "preemptions_total": 6, "generation_tokens_total": 77, "step_seconds_total": 1.5,
        "step_seconds_buckets": [1] * 14, "finished_total": {"stop": 5, "length": 2},
    }  # fmt: skip
    seen = read_metrics((await site.client.get("/metrics")).text)
    assert seen["trivium_requests_waiting", ()] == 3
    assert seen["trivium_requests_running", ()] == 2
    assert seen["trivium_kv_pages", (("state", "used"),)] == 4
    assert seen["trivium_kv_usage_ratio", ()] == 0.4
    assert seen["trivium_kv_waste_ratio", ()] == 0.25
    assert seen["trivium_prefix_cache_hit_ratio", ()] == 0.4
    assert seen["trivium_preemptions_total", ()] == 6
    assert seen["trivium_generation_tokens_total", ()] == 77
    assert seen["trivium_step_seconds_count", ()] == 14
    assert seen["trivium_step_seconds_bucket", (("le", "0.0025"),)] == 2
    assert seen["trivium_answers_finished_total", (("reason", "stop"),)] == 5
    assert seen["trivium_engine_ready", ()] == 1


async def test_metrics_before_the_first_heartbeat_are_complete_and_zero(site: Site) -> None:
    site.engine.condition.is_ready = False
    seen = read_metrics((await site.client.get("/metrics")).text)
    assert seen["trivium_engine_ready", ()] == 0
    assert seen["trivium_requests_running", ()] == 0


async def test_metrics_count_requests_by_status_and_time_tokens() -> None:
    clock = FakeClock()

    def slow(prompt_ids: Any, choice: int, params: Any) -> list[int]:
        clock.advance(2.0)
        return [97, 98, 99]

    engine = FakeEngine(slow)
    site = open_site(engine)
    app = build_app(engine, ByteTokenizer(), None, ServerOptions(), site.app.state.service.served, clock=clock)
    site.client._transport.app = app
    await site.complete()
    await site.complete(n=0)
    seen = read_metrics((await site.client.get("/metrics")).text)
    await site.client.aclose()
    route = ("route", "/v1/completions")
    assert seen["trivium_requests_total", (route, ("status", "200"))] == 1
    assert seen["trivium_requests_total", (route, ("status", "400"))] == 1
    assert seen["trivium_time_to_first_token_seconds_count", ()] == 1
    assert seen["trivium_time_to_first_token_seconds_sum", ()] == 2.0
    assert seen["trivium_inter_token_seconds_count", ()] == 2
    assert seen["trivium_request_duration_seconds_sum", (route,)] == 2.0
    assert seen["trivium_open_requests", ()] == 1


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    clock = FakeClock()
    first: list[float] = []
    later: list[tuple[float, int]] = []
    times = TokenTimes(clock, 0.0, first.append, lambda seconds, count: later.append((seconds, count)))
    for seconds, token_ids in ((3.0, [1]), (1.0, []), (1.0, [2, 3, 4, 5])):
        clock.advance(seconds)
        times.add(0, Delta(request_id="x", choice=0, first_token=0, token_ids=token_ids, text=""))
    assert (first, later) == ([3.0], [(0.5, 4)])


async def test_two_applications_have_metrics_of_their_own(make_site: MakeSite) -> None:
    first, second = make_site(), make_site(FakeEngine(say("x")))
    await first.complete()
    seen = read_metrics((await second.client.get("/metrics")).text)
    assert not any(name == "trivium_requests_total" for name, _ in seen)


async def test_the_openapi_document_covers_every_route_and_field(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    methods: dict[str, set[str]] = {}
    for route in site.app.routes:
        assert isinstance(route, Route)
        own = (route.methods or {"POST"}) - {"HEAD"}  # the generating routes have none of their own
        methods.setdefault(route.path.replace(":path", ""), set()).update(own)
    assert set(document["paths"]) == set(methods)
    for path, operations in document["paths"].items():
        assert methods[path] == {name.upper() for name in operations if name != "parameters"}, path
    schemas = document["components"]["schemas"]
    for name, table in (
        ("CompletionRequest", COMPLETIONS),
        ("ChatCompletionRequest", CHAT),
        ("GenerateRequest", GENERATE),
    ):
        assert set(schemas[name]["properties"]) == {*table.honoured, *table.bookkeeping}


def test_every_reference_of_the_openapi_document_leads_somewhere() -> None:
    document = openapi_document()
    names = set(document["components"]["schemas"])
    text = json.dumps(document)
    referred = {piece.split('"', 1)[0] for piece in text.split("#/components/schemas/")[1:]}
    assert referred <= names
