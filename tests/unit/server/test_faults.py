"""What goes wrong in the engine, seen by the client: refusals, failures, death, and nothing in silence."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.server_site import MakeSite, Site
from support.sse import events
from trivium.base.errors import (
    CapacityError,
    EngineDeadError,
    InternalError,
    PoisonRequestError,
    PromptTooLongError,
    RequestTooLargeError,
    TriviumError,
)
from trivium.server.gate import Gate

ENDPOINTS = ("complete", "chat")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (CapacityError("the queue is full", retry_after_s=2.5), 503, "overloaded"),
        (PromptTooLongError("too long", param="prompt"), 400, "context_length_exceeded"),
        (RequestTooLargeError("the pool holds 512 tokens"), 413, "request_too_large"),
        (EngineDeadError("the engine is not ready"), 503, "engine_dead"),
        (PoisonRequestError("the engine died of it"), 500, "poison_request"),
        (InternalError("a page has two owners"), 500, "internal_error"),
    ],
)
async def test_a_refusal_is_a_plain_json_error(
    site: Site, endpoint: str, is_stream: bool, refusal: TriviumError, status: int, code: str
) -> None:
    site.engine.refusal = refusal
    response = await getattr(site, endpoint)(stream=is_stream)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == code
    if isinstance(refusal, CapacityError):
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_refused_prompt_ends_its_siblings_before_anything_is_sent(site: Site, is_stream: bool) -> None:
    site.engine.refusal, site.engine.refuses_prompt = CapacityError("the queue is full"), 2
    response = await site.complete(prompt=["a", "b", "c", "d"], stream=is_stream)
    assert response.status_code == 503
    assert site.engine.open_ids == set()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fields", [{}, {"n": 2}])
async def test_an_answer_that_fails_in_mid_stream_ends_with_one_error_event(
    site: Site, endpoint: str, fields: dict[str, Any]
) -> None:
    site.engine.fail_after = 2
    response = await getattr(site, endpoint)(stream=True, **fields)
    assert response.status_code == 200
    seen = events(response.text)
    errors = [payload for payload in seen if "error" in payload]
    assert errors == [seen[-1]]
    assert errors[0]["error"]["code"] == "internal_error"
    assert site.engine.open_ids == set()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_an_answer_that_fails_is_a_500_when_it_was_not_streamed(site: Site, endpoint: str) -> None:
    site.engine.fail_after = 2
    response = await getattr(site, endpoint)()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    ("code", "status"), [("deadline_exceeded", 504), ("internal_error", 500), ("overloaded", 503), ("new_code", 500)]
)
async def test_the_engines_error_codes_have_their_own_status(site: Site, code: str, status: int) -> None:
    site.engine.fail_after, site.engine.failure = 1, ("it took too long", code)
    response = await site.complete(timeout_s=5)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code


async def test_a_stream_whose_first_token_fails_is_a_plain_error(site: Site) -> None:
    site.engine.fail_after = 0
    assert (await site.complete(stream=True)).status_code == 500


async def test_a_foreign_exception_says_nothing_of_itself(make_site: MakeSite, caplog: Any) -> None:
    def leak(*_: Any) -> list[int]:
        raise ValueError("SENTINEL-PROMPT")

    site = make_site(FakeEngine(leak))
    for is_stream in (False, True):
        response = await site.complete(stream=is_stream)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "SENTINEL" not in response.text
    assert "SENTINEL-PROMPT" not in caplog.text
    assert "ValueError" in caplog.text


async def test_a_silent_end_of_the_engines_stream_is_an_error(make_site: MakeSite) -> None:
    class MuteEngine(FakeEngine):
        async def _answers(self, *_: Any) -> Any:
            return
            yield

    response = await make_site(MuteEngine()).complete()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"


async def test_nothing_is_asked_of_an_engine_that_is_not_ready(site: Site) -> None:
    site.engine.condition.is_ready = False
    site.engine.condition.error = "the model is loading"
    for response in (await site.complete(), await site.chat(stream=True), await site.client.get("/v1/models")):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        assert response.json()["error"]["code"] == "not_ready"
    assert site.engine.submitted == []


async def test_requests_are_taken_while_the_engine_is_started_again(site: Site) -> None:
    site.engine.condition.is_ready, site.engine.condition.is_restarting = False, True
    assert (await site.complete()).status_code == 200
    assert (await site.client.get("/v1/models")).status_code == 200
    assert (await site.client.get("/health")).status_code == 503


async def test_health_follows_readiness_and_heartbeat(make_site: MakeSite) -> None:
    site = make_site(heartbeat_timeout_s=10.0)
    condition = site.engine.condition
    for path in ("/health", "/ready"):
        condition.is_ready, condition.heartbeat_age_s = True, 9.0
        assert (await site.client.get(path)).status_code == 200
        condition.heartbeat_age_s = 11.0
        stale = await site.client.get(path)
        assert stale.status_code == 503
        assert "no sign of life for 11 s" in stale.json()["reason"]
        condition.is_ready = False
        assert (await site.client.get(path)).status_code == 503
    assert (await site.complete()).status_code == 503
    assert (await site.client.get("/live")).status_code == 200


async def test_an_answer_that_breaks_after_its_status_gets_no_second_one(site: Site) -> None:
    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    gate = Gate(breaking, service=site.app.state.service, routes=frozenset())
    await gate({"type": "http", "path": "/x", "method": "GET", "headers": []}, None, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
