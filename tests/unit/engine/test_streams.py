"""Deltas reach whoever waits for them, once, and errors keep their class on the way."""

from __future__ import annotations

import asyncio

import pytest

from trivium.base.errors import (
    CapacityError,
    EngineDeadError,
    InternalError,
    PromptTooLongError,
    RequestError,
    TriviumError,
)
from trivium.engine.messages import Delta, Refused
from trivium.engine.streams import StreamTable, error_from


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
