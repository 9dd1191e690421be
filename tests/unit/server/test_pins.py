"""Pins are made again in each new engine, once, as long as they are wanted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from trivium.base.clock import FakeClock
from trivium.base.errors import CapacityError, InvalidParameterError, PoisonRequestError
from trivium.server import pins as pins_module
from trivium.server.pins import KeptPins

MADE = {"tokens": 32}
FULL = {"refused": "requests under way may need the memory", "is_final": False}
NEVER = {"refused": "it is too long", "is_final": True}
IDS = list(range(32))


class Desk:
    """Pins, their engine, and a clock."""

    def __init__(self) -> None:
        self.engine, self.clock = FakeEngine(), FakeClock()
        self.pins = KeptPins(self.engine, self.clock)

    async def pin(self, ttl_s: float | None = None) -> str:
        self.engine.replies = [MADE]
        pin_id, num_tokens = await self.pins.pin(IDS, "salt", ttl_s)
        assert num_tokens == 32
        self.engine.asked.clear()
        return pin_id

    async def restart(self, *replies: dict[str, Any]) -> list[dict[str, Any]]:
        """Start another engine; returns what it was asked to pin."""
        self.engine.asked.clear()
        self.engine.replies = list(replies)
        self.engine.tell_start()
        if self.pins._restoring is not None:
            await self.pins._restoring
        return [dict(arguments) for name, arguments in self.engine.asked if name == "pin"]


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(pins_module, "_RESTORE_AGAIN_S", 0.001)
    return Desk()


async def test_a_pin_is_made_again_in_every_engine_with_the_time_that_it_has_left(desk: Desk) -> None:
    first, second = await desk.pin(), await desk.pin(ttl_s=10.0)
    desk.clock.advance(4.0)
    for left_s in (6.0, 6.0):
        assert await desk.restart(MADE, MADE) == [
            {"pin_id": first, "prompt_ids": IDS, "cache_salt": "salt", "ttl_s": None},
            {"pin_id": second, "prompt_ids": IDS, "cache_salt": "salt", "ttl_s": left_s},
        ]
    computed = desk.engine.submitted[-1]
    assert (computed.prompt_ids, computed.cache_salt, computed.params.max_tokens) == (IDS, "salt", 0)
    desk.clock.advance(6.0)
    assert [asked["pin_id"] for asked in await desk.restart(MADE)] == [first]


async def test_what_finds_no_room_is_tried_again_and_what_never_will_is_forgotten(desk: Desk) -> None:
    pin_id = await desk.pin()
    assert [asked["pin_id"] for asked in await desk.restart(FULL, FULL, MADE)] == [pin_id] * 3
    assert len(await desk.restart(NEVER)) == 1
    assert await desk.restart(MADE) == []


async def test_a_busy_engine_is_asked_again_and_a_prompt_that_kills_engines_is_forgotten(desk: Desk) -> None:
    await desk.pin()
    desk.engine.refusal, desk.engine.refuses_prompt = CapacityError("full", retry_after_s=1.0), 1
    assert len(await desk.restart(MADE)) == 1
    desk.engine.refusal, desk.engine.refuses_prompt = PoisonRequestError("it kills engines"), None
    assert await desk.restart(MADE) == []
    desk.engine.refusal = None
    assert await desk.restart(MADE) == []


async def test_what_is_unpinned_does_not_come_back(desk: Desk) -> None:
    pin_id = await desk.pin()
    desk.engine.replies = [{"unpinned": False}]  # a new engine that has not got it yet
    assert await desk.pins.unpin(pin_id)
    assert await desk.restart(MADE) == []
    desk.engine.replies = [{"unpinned": False}]
    assert not await desk.pins.unpin(pin_id)


async def test_what_is_unpinned_while_it_is_pinned_again_is_let_go(desk: Desk) -> None:
    pin_id = await desk.pin()
    desk.engine.hold_after = 0
    desk.engine.tell_start()
    await desk.engine.held.wait()
    desk.engine.replies = [{"unpinned": False}, MADE, {"unpinned": True}]
    assert await desk.pins.unpin(pin_id)
    desk.engine.release.set()
    assert desk.pins._restoring is not None
    await desk.pins._restoring
    assert [name for name, _ in desk.engine.asked] == ["unpin", "pin", "unpin"]


async def test_an_engine_that_starts_while_pins_are_restored_gets_each_once(desk: Desk) -> None:
    await desk.pin()
    desk.engine.hold_after = 0
    desk.engine.tell_start()
    await desk.engine.held.wait()
    given_up = desk.pins._restoring
    desk.engine.release.set()
    assert len(await desk.restart(MADE)) == 1
    assert given_up is not None
    assert given_up.cancelled()


async def test_an_engine_that_starts_while_a_pin_is_made_gets_it_too(desk: Desk) -> None:
    desk.engine.hold_after = 0
    making = asyncio.create_task(desk.pins.pin(IDS, "", None))
    await desk.engine.held.wait()
    desk.engine.condition.epoch = 2
    desk.engine.tell_start()
    desk.engine.replies = [MADE, MADE]
    desk.engine.release.set()
    await making
    assert desk.pins._restoring is not None
    await desk.pins._restoring
    assert [name for name, _ in desk.engine.asked] == ["pin", "pin"]


async def test_a_pin_that_is_refused_is_not_kept(desk: Desk) -> None:
    for reply, error in ((FULL, CapacityError), (NEVER, InvalidParameterError)):
        desk.engine.replies = [reply]
        with pytest.raises(error):
            await desk.pins.pin(IDS, "", None)
    assert await desk.restart() == []
