"""Deltas reach whoever waits for them, once, and errors keep their class on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from random import Random

import pytest

from trivium.base.errors import (
    CapacityError,
    EngineDeadError,
    InternalError,
    PromptTooLongError,
    RequestError,
    TriviumError,
)
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Delta, Refused, Submit
from trivium.engine.streams import StreamTable, error_from, new_submit


def _delta(first: int, *tokens: int, choice: int = 0, finish: str | None = None) -> Delta:
    return Delta(
        request_id="r", choice=choice, first_token=first, token_ids=list(tokens), text="", finish_reason=finish
    )


async def _read(table: StreamTable, *, num_choices: int = 1, arrives: Callable[[], None]) -> list[Delta]:
    """What the reader of a request sees when this arrives as soon as it is sent."""

    async def abort(request_id: str) -> None:
        raise AssertionError(f"{request_id} is aborted")

    async with asyncio.timeout(1):
        return [news async for news in table.run(_submit(SamplingParams(n=num_choices), "r"), arrives, abort)]


async def test_a_stream_ends_when_its_last_choice_ends() -> None:
    table = StreamTable()
    arriving = [_delta(0, 5), _delta(0, 6, choice=1, finish="stop"), _delta(1, 7, finish="length")]

    seen = await _read(table, num_choices=2, arrives=lambda: table.feed_all(arriving))

    assert [(news.choice, news.token_ids) for news in seen] == [(0, [5]), (1, [6]), (0, [7])]


async def test_a_reader_that_waits_is_woken() -> None:
    table = StreamTable()
    reading = asyncio.create_task(_read(table, arrives=lambda: None))
    for token in (5, 6, 7):
        await asyncio.sleep(0)
        table.feed(_delta(token - 5, token, finish="stop" if token == 7 else None))

    assert [news.token_ids for news in await reading] == [[5], [6], [7]]


async def test_a_reader_that_is_cancelled_while_it_waits_hears_no_more() -> None:
    engine = _Engine(StreamTable(), answer=[])
    reading = asyncio.ensure_future(anext(engine.run()))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})

    engine.table.feed(_delta(0, 5))

    assert (len(engine.table), engine.aborted) == (0, ["r"])


async def test_tokens_that_were_seen_before_are_dropped() -> None:
    table = StreamTable()
    arriving = [_delta(0, 5), _delta(0, 5), _delta(1, 6), _delta(0, 5), _delta(2, 7, finish="stop")]

    seen = await _read(table, arrives=lambda: table.feed_all(arriving))

    assert [token for news in seen for token in news.token_ids] == [5, 6, 7]


async def test_news_of_unknown_requests_is_dropped() -> None:
    table = StreamTable()
    table.feed(_delta(0, 5))

    assert len(table) == 0


async def test_an_id_cannot_be_open_twice() -> None:
    engine = _Engine(StreamTable(), answer=[_delta(0, 5)])
    first = engine.run()
    await anext(first)

    with pytest.raises(InternalError, match="open already"):
        await anext(engine.run())

    assert "r" in engine.table, "the first one goes on"
    await first.aclose()


async def test_a_refusal_is_raised_as_its_own_class() -> None:
    table = StreamTable()

    with pytest.raises(CapacityError, match="full") as caught:
        await _read(table, arrives=lambda: table.refuse(Refused(1, "r", "CapacityError", "full", None, 7.5)))
    assert caught.value.retry_after_s == 7.5


async def test_every_open_request_hears_of_a_death_in_an_error_of_its_own() -> None:
    table = StreamTable()
    engines = [_Engine(table, answer=[], name=name) for name in ("a", "b")]
    reading = [asyncio.ensure_future(anext(engine.run())) for engine in engines]
    await asyncio.sleep(0)
    table.fail_all(EngineDeadError, "gone")

    first, second = await asyncio.gather(*reading, return_exceptions=True)
    assert (str(first), str(second)) == ("gone", "gone")
    assert first is not second


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (error_from("PromptTooLongError", "m", "prompt"), PromptTooLongError),
        (error_from("CapacityError", "m"), CapacityError),
        (error_from("NoSuchError", "m"), InternalError),
        (error_from("TriviumError", "m"), TriviumError),
    ],
)
def test_errors_are_rebuilt_by_name(error: TriviumError, expected: type[TriviumError]) -> None:
    assert type(error) is expected
    assert str(error) == "m"
    if isinstance(error, RequestError):
        assert error.param == "prompt"


def _submit(params: SamplingParams, request_id: str | None = None) -> Submit:
    seeds = Random(7)  # noqa: S311
    return new_submit([1], params, seeds, request_id=request_id, cache_salt="", priority=0, tenant="", deadline_s=None)


class _Engine:
    """Takes a request, or fails to, and notes what is aborted."""

    def __init__(self, table: StreamTable, *, answer: list[Delta | TriviumError], name: str = "r") -> None:
        self.table = table
        self.name = name
        self.answer = answer
        self.aborted: list[str] = []

    def run(self) -> AsyncGenerator[Delta, None]:
        stream = self.table.run(_submit(SamplingParams(), self.name), self.send, self.abort)
        assert isinstance(stream, AsyncGenerator)
        return stream

    def send(self) -> None:
        for news in self.answer:
            if isinstance(news, EngineDeadError):
                raise news
            if isinstance(news, TriviumError):
                self.table.fail(self.name, news)
            else:
                self.table.feed(news)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


async def test_a_request_that_is_read_to_its_end_is_closed_and_not_aborted() -> None:
    engine = _Engine(StreamTable(), answer=[_delta(0, 5), _delta(1, 6, finish="stop")])
    assert [news.token_ids async for news in engine.run()] == [[5], [6]]
    assert (len(engine.table), engine.aborted) == (0, [])


async def test_a_request_whose_reader_leaves_is_aborted() -> None:
    engine = _Engine(StreamTable(), answer=[_delta(0, 5)])
    stream = engine.run()
    await anext(stream)
    await stream.aclose()
    assert (len(engine.table), engine.aborted) == (0, ["r"])


@pytest.mark.parametrize("error", [EngineDeadError("no engine"), CapacityError("full")])
async def test_a_request_that_was_not_taken_has_nothing_to_abort(error: TriviumError) -> None:
    engine = _Engine(StreamTable(), answer=[error])
    with pytest.raises(type(error)):
        await anext(engine.run())
    assert (len(engine.table), engine.aborted) == (0, [])


def test_a_request_gets_a_seed_and_an_id_only_where_it_has_none() -> None:
    given, drawn = _submit(SamplingParams(seed=3), "mine"), _submit(SamplingParams(), None)
    assert (given.request_id, given.params.seed) == ("mine", 3)
    assert drawn.params.seed == _submit(SamplingParams(), None).params.seed
    assert drawn.request_id != _submit(SamplingParams(), None).request_id


async def test_news_are_taken_in_passing_only_while_the_reader_waits_and_in_order() -> None:
    rng = Random(2)  # noqa: S311  (a test)
    seen: list[tuple[str, Delta]] = []
    table, params = StreamTable(), SamplingParams(n=2, max_tokens=400)

    async def abort(request_id: str) -> None:
        raise AssertionError(f"{request_id} is aborted")

    def take(news: Delta) -> bool:
        assert news.finish_reason is None
        if rng.random() < 0.3:
            return False
        seen.append(("passing", news))
        return True

    async def read() -> None:
        async for news in table.run(_submit(params, "r"), lambda: None, abort, take):
            for _ in range(rng.randrange(3)):  # nothing may overtake what is being dealt with
                await asyncio.sleep(0)
            seen.append(("read", news))

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    said = [_delta(idx, idx, choice=choice, finish="length" if idx == 199 else None)
            for idx in range(200) for choice in (0, 1)]  # fmt: skip
    for news in said:
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        table.feed(news)
    async with asyncio.timeout(1):
        await reading

    assert [news for _, news in seen] == said
    assert len({way for way, _ in seen}) == 2


async def test_a_fault_in_passing_reaches_the_reader_with_the_news() -> None:
    table = StreamTable()

    async def abort(request_id: str) -> None:
        raise AssertionError(f"{request_id} is aborted")

    def fail(news: Delta) -> bool:
        raise ZeroDivisionError

    async def read() -> list[Delta]:
        return [news async for news in table.run(_submit(SamplingParams(), "r"), lambda: None, abort, fail)]

    reading = asyncio.create_task(read())
    for token in (5, 6, 7):
        await asyncio.sleep(0)
        table.feed(_delta(token - 5, token, finish="stop" if token == 7 else None))

    assert [news.token_ids for news in await reading] == [[5], [6], [7]]
