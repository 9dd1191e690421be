"""`/v1/requests`: who sees which request, what is shown of open and of finished ones, and how many are remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from support.fake_engine import FakeEngine, say
from support.server_site import MakeSite, Site
from trivium.engine.messages import AnswerReport
from trivium.schedule.timeline import Chunk, Preemption, PreemptionKind, Start, Tier, Timeline, WaitReason

ALICE, BOB, ROOT = ({"authorization": f"Bearer {name}-key-0123456789"} for name in ("alice", "bob", "root"))
KEYS: dict[str, Any] = {
    "api_key": ("alice=alice-key-0123456789", "bob=bob-key-0123456789"),
    "admin_key": ("root=root-key-0123456789",),
}


def report(request_id: str, **changes: Any) -> AnswerReport:
    fields: dict[str, Any] = {
        "request_id": request_id,
        "choice": 0,
        "state": "finished",
        "waits_for": None,
        "arrival_s": 0.0,
        "prompt_len": 20,
        "cached_len": 4,
        "computed_len": 0,
        "output_len": 3,
        "max_tokens": 3,
        "finish_reason": "length",
        "waited": {WaitReason.SEAT: 0.25},
        "timeline": Timeline(
            starts=[Start(at_s=0.25, waited={WaitReason.SEAT: 0.25}, cached={Tier.DEVICE: 4})],
            chunks=[Chunk(at_s=0.25, seconds=0.5, start=4, num_tokens=16)],
            preemptions=[Preemption(at_s=0.8, kind=PreemptionKind.RECOMPUTE, num_tokens=20)],
            num_preemptions=1,
            first_token_s=0.75,
            finished_s=1.0,
        ),
    }
    return AnswerReport(**{**fields, **changes})


async def ask(site: Site, answer_id: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return await site.client.get(f"/v1/requests/{answer_id}", headers=headers)


async def finish(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """Complete a request, and return its id."""
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 3, **fields}
    response = await site.client.post("/v1/completions", json=body, headers=headers)
    return str(response.json()["id"])


async def test_a_finished_request_shows_its_timeline_from_its_arrival_on(make_site: MakeSite) -> None:
    site = make_site()
    answer_id = await finish(site)
    record = site.app.state.service.requests.find(answer_id)
    site.engine.tell_end(report(answer_id, arrival_s=record.visit.began_s + 2.0))
    shown = (await ask(site, answer_id)).json()
    assert {k: shown[k] for k in ("id", "object", "state", "key", "model", "route", "stream", "status", "error")} == {
        "id": answer_id, "object": "request", "state": "finished", "key": None, "model": "tiny",
        "route": "/v1/completions", "stream": False, "status": 200, "error": None,
    }  # fmt: skip
    assert (shown["prompt_tokens"], shown["completion_tokens"], shown["cached_tokens"]) == (2, 3, 4)
    (answer,) = shown["answers"]
    assert answer["queued_s"] == pytest.approx(2.0)
    assert answer["waited"] == {"seat": 0.25}
    assert answer["starts"] == [{"at_s": pytest.approx(2.25), "waited": {"seat": 0.25}, "cached": {"device": 4}}]
    assert answer["chunks"] == [{"at_s": pytest.approx(2.25), "seconds": 0.5, "start": 4, "num_tokens": 16}]
    assert answer["preemptions"] == [{"at_s": pytest.approx(2.8), "kind": "recompute", "num_tokens": 20}]
    assert (answer["first_token_s"], answer["finished_s"]) == (pytest.approx(2.75), pytest.approx(3.0))
    assert [answer[f"{part}_seconds"] for part in ("queue", "prefill", "decode")] == [0.25, 0.5, 0.25]


async def test_an_open_request_shows_what_the_engine_says_of_it_now(make_site: MakeSite) -> None:
    engine = FakeEngine()
    engine.hold_after = 1
    site = make_site(engine)
    running = asyncio.create_task(finish(site))
    await engine.held.wait()
    (answer_id,) = engine.open_ids
    waiting = report(
        answer_id, state="waiting", waits_for=WaitReason.PAGES, finish_reason=None, output_len=0, timeline=Timeline()
    )
    engine.reports = [waiting, report("another")]
    shown = (await ask(site, answer_id)).json()
    assert (shown["state"], shown["status"]) == ("open", 0)
    (answer,) = shown["answers"]
    assert (answer["state"], answer["waits_for"], answer["finished_s"]) == ("waiting", "pages", None)
    engine.release.set()
    assert await running == answer_id
    assert (await ask(site, answer_id)).json()["state"] == "finished"


async def test_only_its_sender_and_admins_see_a_request(make_site: MakeSite) -> None:
    site = make_site(**KEYS)
    answer_id = await finish(site, ALICE)
    assert (await ask(site, answer_id, ALICE)).json()["key"] == "alice"
    assert (await ask(site, answer_id, ROOT)).json()["key"] == "alice"
    others, unknown = await ask(site, answer_id, BOB), await ask(site, "cmpl-unknown", BOB)
    assert (others.status_code, others.json()["error"]["code"]) == (404, "request_not_found")
    assert others.text.replace(answer_id, "X") == unknown.text.replace("cmpl-unknown", "X"), "they must look the same"
    assert (await ask(site, answer_id)).status_code == 401


async def test_the_list_is_for_admins(make_site: MakeSite) -> None:
    engine = FakeEngine()
    engine.hold_after = 1
    site = make_site(engine, **KEYS)
    assert (await site.client.get("/v1/requests", headers=ALICE)).status_code == 401
    assert (await site.client.get("/v1/requests", headers=ROOT)).json() == {"object": "list", "data": []}
    running = asyncio.create_task(finish(site, ALICE, prompt=["a", "b"]))
    await engine.held.wait()
    engine.reports = [
        report(name, state=state, waits_for=reason, output_len=count)
        for name, state, reason, count in zip(
            sorted(engine.open_ids), ("waiting", "running"), (WaitReason.SEAT, None), (0, 2), strict=True
        )
    ]
    (row,) = (await site.client.get("/v1/requests", headers=ROOT)).json()["data"]
    assert (row["key"], row["waiting"], row["running"], row["waits_for"]) == ("alice", 1, 1, {"seat": 1})
    assert (row["prompt_tokens"], row["completion_tokens"]) == (2, 2)
    engine.release.set()
    await running
    assert (await site.client.get("/v1/requests", headers=ROOT)).json()["data"] == []


async def test_a_dead_engine_does_not_hide_a_request(make_site: MakeSite) -> None:
    engine = FakeEngine(say("ok"))
    engine.hold_after = 1
    site = make_site(engine)
    running = asyncio.create_task(site.complete())
    await engine.held.wait()
    (answer_id,) = engine.open_ids
    engine.die()
    assert (await running).status_code == 503
    shown = (await ask(site, answer_id)).json()
    assert (shown["state"], shown["status"], shown["error"], shown["answers"]) == ("finished", 503, "engine_dead", [])


async def test_the_oldest_are_forgotten_and_late_reports_are_dropped(make_site: MakeSite) -> None:
    site = make_site(request_history=2)
    ids = [await finish(site) for _ in range(3)]
    assert [(await ask(site, answer_id)).status_code for answer_id in ids] == [404, 200, 200]
    for answer_id in ids:
        site.engine.tell_end(report(answer_id))
    assert [len((await ask(site, answer_id)).json()["answers"]) for answer_id in ids[1:]] == [1, 1]
    log = site.app.state.service.requests
    assert (len(log._finished), len(log._by_engine_id), len(log._open)) == (2, 2, 0)


async def test_no_history_keeps_nothing(make_site: MakeSite) -> None:
    site = make_site(request_history=0)
    assert (await ask(site, await finish(site))).status_code == 404
    assert not site.app.state.service.requests._by_engine_id


async def test_the_log_does_not_show_which_request_was_asked_for(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = make_site()
    with caplog.at_level("INFO", "trivium.access"):
        await ask(site, "SENTINEL")
    assert "/v1/requests/{id}" in caplog.text
    assert "SENTINEL" not in caplog.text
