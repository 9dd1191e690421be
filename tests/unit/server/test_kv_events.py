"""The buffer of KV events: numbers without gaps, reading from any that is kept, and a word where one is not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_engine import FakeEngine
from support.server_site import MakeSite
from support.sse import events as payloads
from trivium.base.errors import InvalidParameterError
from trivium.engine.messages import CacheEvent, CacheNews
from trivium.server.events import KEEP_ALIVE
from trivium.server.kv_events import EventBuffer

ADMIN = {"Authorization": "Bearer admin-key"}


def news(count: int, *, epoch: int = 1) -> CacheNews:
    return CacheNews(epoch, [CacheEvent(kind="cleared", time_s=1.5, medium="device") for _ in range(count)])


def telling_engine() -> FakeEngine:
    engine = FakeEngine()
    engine.condition.info = {"kv_events": True}
    return engine


@given(limit=st.integers(1, 6), script=st.lists(st.integers(0, 4) | st.none(), max_size=12), first=st.integers(1, 1000))
def test_a_reader_gets_every_number_once_or_is_told_that_it_is_gone(
    limit: int, script: list[int | None], first: int
) -> None:
    """Numbers are added, `None` reads."""
    buffer = EventBuffer(limit, first=first)
    since, seen, total = buffer.check(None), [], 0
    for added in (*script, None):
        if added is not None:
            buffer.add(news(added))
            total += added
            continue
        read, since = buffer.read(since)
        for record in payloads(read.decode()):
            is_gap = record["kind"] == "missed"
            assert not is_gap or record["last"] <= first + total - 1 - min(limit, total)
            seen += range(record["first"], record["last"] + 1) if is_gap else [record["seq"]]
    assert seen == list(range(first, first + total))


def test_records_say_who_spoke_and_nothing_that_is_empty() -> None:
    buffer = EventBuffer(10, first=7)
    buffer.add(news(1, epoch=3))
    (record,) = payloads(buffer.read(6)[0].decode())
    assert record == {"seq": 7, "epoch": 3, "kind": "cleared", "time_s": 1.5, "medium": "device"}


def test_a_reader_of_an_earlier_server_has_missed_what_lies_between() -> None:
    buffer = EventBuffer(10, first=100)
    buffer.add(news(2))
    gap, *rest = payloads(buffer.read(buffer.check(41))[0].decode())
    assert (gap["kind"], gap["first"], gap["last"]) == ("missed", 42, 99)
    assert [record["seq"] for record in rest] == [100, 101]


def test_numbers_of_the_future_are_refused() -> None:
    buffer = EventBuffer(10, first=7)
    buffer.add(news(1))
    assert buffer.check(7) == 7
    with pytest.raises(InvalidParameterError, match=r"since is 8; .* at most 7 now"):
        buffer.check(8)


async def test_followers_wake_say_that_they_live_and_end_when_the_server_stops() -> None:
    buffer = EventBuffer(10, first=1)
    stream = buffer.follow(0, keep_alive_s=0.01)
    assert await anext(stream) == KEEP_ALIVE
    waiting = asyncio.ensure_future(anext(buffer.follow(0, keep_alive_s=60)))
    await asyncio.sleep(0)
    buffer.add(news(1))
    assert await waiting == await anext(stream)
    buffer.close()
    assert [one async for one in stream] == []


async def test_the_route_streams_from_since_and_ends_with_the_server(make_site: MakeSite) -> None:
    engine = telling_engine()
    site = make_site(engine, admin_key=("admin-key",), kv_events_buffer=2)
    engine.tell_cache(news(3))
    reading = asyncio.ensure_future(site.client.get("/v1/cache/events", headers=ADMIN))
    for _ in range(20):
        await asyncio.sleep(0)
    site.app.state.service.jobs.stop_accepting()
    answer = await reading
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [record["kind"] for record in payloads(answer.text)] == ["missed", "cleared", "cleared"]


@pytest.mark.parametrize("since", ["-1", "x", "9" * 18, "9" * 5000])
async def test_bad_numbers_are_refused_by_name(make_site: MakeSite, since: str) -> None:
    site = make_site(telling_engine(), admin_key=("admin-key",))
    answer = await site.client.get("/v1/cache/events", params={"since": since}, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


async def test_off_is_refused_with_the_way_out_and_all_of_it_wants_the_admin_key(make_site: MakeSite) -> None:
    site = make_site(admin_key=("admin-key",))
    answer = await site.client.get("/v1/cache/events", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "kv_events_off")
    assert "--kv-events" in answer.json()["error"]["message"]
    assert (await site.client.get("/v1/cache/events")).status_code == 401
