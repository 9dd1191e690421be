"""Deltas reach whoever waits for them, once, and errors keep their class on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
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


async def _read(table: StreamTable) -> list[Delta]:
    return [news async for news in table.read("r")]


async def test_a_stream_ends_when_its_last_choice_ends() -> None:
    table = StreamTable()
    table.open("r", 2)
    table.feed_all([_delta(0, 5), _delta(0, 6, choice=1, finish="stop"), _delta(1, 7, finish="length")])

    seen = await asyncio.wait_for(_read(table), 1)

    assert [(news.choice, news.token_ids) for news in seen] == [(0, [5]), (1, [6]), (0, [7])]


async def test_tokens_that_were_seen_before_are_dropped() -> None:
    table = StreamTable()
    table.open("r", 1)
    table.feed_all([_delta(0, 5), _delta(0, 5), _delta(1, 6), _delta(0, 5), _delta(2, 7, finish="stop")])

    seen = await asyncio.wait_for(_read(table), 1)

    assert [token for news in seen for token in news.token_ids] == [5, 6, 7]


async def test_news_of_unknown_requests_is_dropped() -> None:
    table = StreamTable()
    table.feed(_delta(0, 5))

    assert len(table) == 0


async def test_an_id_cannot_be_open_twice() -> None:
    table = StreamTable()
    table.open("r", 1)

    with pytest.raises(InternalError, match="open already"):
        table.open("r", 1)


async def test_a_refusal_is_raised_as_its_own_class() -> None:
    table = StreamTable()
    table.open("r", 1)
    table.refuse(Refused(1, "r", "CapacityError", "full", None, 7.5))

    with pytest.raises(CapacityError, match="full") as caught:
        await asyncio.wait_for(_read(table), 1)
    assert caught.value.retry_after_s == 7.5


async def test_every_open_request_hears_of_a_death_in_an_error_of_its_own() -> None:
    table = StreamTable()
    for name in ("a", "b"):
        table.open(name, 1)
    table.fail_all(EngineDeadError, "gone")

    for name in ("a", "b"):
        with pytest.raises(EngineDeadError, match="gone"):
            async for _ in table.read(name):
                pass


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
    return new_submit([1], params, seeds, request_id=request_id, cache_salt="", priority=0, deadline_s=None)


class _Engine:
    """Takes a request, or fails to, and notes what is aborted."""

    def __init__(self, table: StreamTable, *, answer: list[Delta | TriviumError]) -> None:
        self.table = table
        self.answer = answer
        self.aborted: list[str] = []

    def run(self) -> AsyncGenerator[Delta, None]:
        stream = self.table.run(_submit(SamplingParams(), "r"), self.send, self.abort)
        assert isinstance(stream, AsyncGenerator)
        return stream

    def send(self) -> None:
        for news in self.answer:
            if isinstance(news, EngineDeadError):
                raise news
            if isinstance(news, TriviumError):
                self.table.fail("r", news)
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
