"""Which requests an engine gets, which wait for the next one, and how long."""

from __future__ import annotations

import asyncio

import pytest

from trivium.base.clock import FakeClock
from trivium.base.errors import CapacityError, DeadlineExceededError, EngineDeadError, PoisonRequestError, TriviumError
from trivium.config.sampling import SamplingParams
from trivium.engine.journal import LastWork
from trivium.engine.messages import Delta, Submit
from trivium.engine.replay import HOLD_S, Replay
from trivium.engine.streams import StreamTable

GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


class Desk:
    """Streams, their replay, and an engine that only notes what it gets."""

    def __init__(self, max_held: int = 2) -> None:
        self.clock = FakeClock()
        self.table = StreamTable(self.clock)
        self.replay = Replay(self.table, max_held)
        self.got: list[Submit] = []
        self.readers: dict[str, asyncio.Task[list[Delta]]] = {}

    async def ask(self, name: str, deadline_s: float | None = None) -> None:
        message = Submit(request_id=name, prompt_ids=[5, 6], params=GREEDY, deadline_s=deadline_s)

        async def abort(request_id: str) -> None:
            self.replay.leave(request_id)

        async def read() -> list[Delta]:
            return [news async for news in self.table.run(message, lambda: self.replay.submit(message), abort)]

        self.readers[name] = asyncio.create_task(read())
        await asyncio.sleep(0)

    def begin(self) -> None:
        self.got = []
        self.replay.begin(self.got.append)

    def say(self, name: str, *tokens: int, first: int = 0, finish: str | None = None) -> None:
        news = Delta(
            request_id=name, choice=0, first_token=first, token_ids=list(tokens), text="", finish_reason=finish
        )
        self.table.feed(news)
        self.replay.advance()

    def die(self, *names: str) -> None:
        self.replay.died(LastWork(dict.fromkeys(names, (0,))), "signal 9 ended the engine", has_delivered=True)

    @property
    def names(self) -> list[str]:
        return [message.request_id for message in self.got]

    async def error_of(self, name: str) -> TriviumError:
        with pytest.raises(TriviumError) as caught:
            await self.readers[name]
        return caught.value


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_what_is_sent_again_says_what_was_delivered_and_its_age(desk: Desk) -> None:
    desk.begin()
    await desk.ask("a")
    assert desk.got == [Submit(request_id="a", prompt_ids=[5, 6], params=GREEDY)]
    desk.say("a")  # accepted
    desk.say("a", 7, 8)
    desk.die("a")
    desk.clock.advance(4.0)
    desk.begin()
    (again,) = desk.got
    assert (again.delivered[0].token_ids, again.was_accepted, again.prompt_ids) == ([7, 8], True, [5, 6])
    assert again.waited_s == 4.0
    desk.say("a")
    desk.say("a", 8, first=1)  # seen before
    desk.say("a", 9, first=2, finish="stop")
    assert [news.token_ids for news in await desk.readers["a"]] == [[], [7, 8], [9]]
    assert desk.replay.is_idle


async def test_a_hole_in_an_answer_is_an_error(desk: Desk) -> None:
    desk.begin()
    await desk.ask("a")
    desk.say("a", 9, first=2)
    assert "token 0 of choice 0 was never delivered" in str(await desk.error_of("a"))


async def test_new_requests_are_held_up_to_a_number_and_a_time(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        await desk.ask(name)
    refused = await desk.error_of("c")
    assert isinstance(refused, CapacityError)
    assert "2 new requests wait" in str(refused)
    desk.clock.advance(HOLD_S - 1)
    desk.replay.tick()
    assert not desk.readers["a"].done()
    desk.clock.advance(2.0)
    desk.replay.tick()
    for name in ("a", "b"):
        ended = await desk.error_of(name)
        assert isinstance(ended, CapacityError)
        assert ended.retry_after_s > 0
    desk.begin()
    assert desk.got == []


async def test_accepted_requests_wait_longer_but_not_beyond_their_deadline(desk: Desk) -> None:
    desk.begin()
    await desk.ask("a")
    await desk.ask("b", deadline_s=100.0)
    desk.say("a")
    desk.say("b")
    desk.die()
    desk.clock.advance(HOLD_S + 1)
    desk.replay.tick()
    assert not desk.readers["a"].done()
    desk.clock.advance(100.0 - HOLD_S)
    desk.replay.tick()
    assert isinstance(await desk.error_of("b"), DeadlineExceededError)
    desk.begin()
    assert desk.names == ["a"]


async def test_whoever_kills_two_engines_alone_is_told_so(desk: Desk) -> None:
    desk.begin()
    for name in ("a", "b"):
        await desk.ask(name)
        desk.say(name)
    desk.die("a", "b")
    desk.begin()
    assert desk.names == ["a"]
    desk.die("a")
    desk.begin()
    assert desk.names == ["a"]
    desk.die("a")
    condemned = await desk.error_of("a")
    assert isinstance(condemned, PoisonRequestError)
    assert (condemned.http_status, condemned.code) == (500, "poison_request")
    desk.begin()
    assert desk.names == ["b"]


async def test_a_reader_who_leaves_is_not_sent_and_holds_nobody_up(desk: Desk) -> None:
    desk.begin()
    for name in ("a", "b"):
        await desk.ask(name)
        desk.say(name)
    desk.die("a", "b")
    desk.begin()
    desk.readers["a"].cancel()
    await asyncio.wait({desk.readers["a"]})
    assert desk.names == ["a", "b"]


async def test_handing_back_ends_what_no_engine_has(desk: Desk) -> None:
    await desk.ask("a")
    assert desk.replay.unsent_ids() == {"a"}
    desk.replay.hand_back()
    assert "shutting down" in str(await desk.error_of("a"))


async def test_giving_up_ends_everything_with_an_error_of_its_own(desk: Desk) -> None:
    desk.begin()
    await desk.ask("a")
    await desk.ask("b")
    desk.replay.give_up("there is no more memory")
    errors = [await desk.error_of(name) for name in ("a", "b")]
    assert all(isinstance(error, EngineDeadError) for error in errors)
    assert errors[0] is not errors[1]
