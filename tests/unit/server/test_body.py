"""The strict JSON reader (case A18, A09's raw bodies)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from trivium.server import body as body_module
from trivium.server.body import parse_json_object, read_json_object
from trivium.server.errors import BadBodyError, BodyTimeoutError, BodyTooLargeError, ClientGoneError, MediaTypeError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  \n",
        b"{:",
        b'{"a": 1',
        b'{"a": 1} x',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"prompt": "\xc4\xe3\xba\xc3"}',
        b'{"prompt": "a\x00b"}',
        b"\x00",
        b"[]",
        b'"text"',
        b"null",
        b"12",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"temperature": -1e999}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ["x", {"y": "\\uDC00"}]}',
        b'{"\\ud800": 1}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"{'a': 1}",
    ],
)
def test_what_is_no_strict_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadBodyError):
        parse_json_object(body)


@pytest.mark.parametrize(
    ("body", "place", "param"),
    [
        (b'{"n": 1, "temperature": NaN}', "temperature: NaN", "temperature"),
        (b'{"top_p": -Infinity}', "top_p: -Infinity", "top_p"),
        (b'{"top_p": 1e999, "n": 2}', "top_p: the number is too large", "top_p"),
        (b'{"logit_bias": {"7": NaN}}', "logit_bias.7", "logit_bias"),
        (b'{"messages": [{"a": []}, {"content": ["x", "\\ud800"]}]}', "messages[1].content[1]", "messages"),
        (b'{"x": {"\\udfff": 1}}', "x.?", "x"),
        (b'{"\\udfff": 1}', "?", "?"),
        (b'{"n": NaN, "n": 1}', "not JSON", None),
        (b'{"n": NaN, ', "not JSON", None),
        (b'{"seed": 1, "n": 1, "seed": 2}', "'seed' twice", None),
    ],
)
def test_a_bad_value_is_refused_by_its_place(body: bytes, place: str, param: str | None) -> None:
    with pytest.raises(BadBodyError) as caught:
        parse_json_object(body)
    assert place in str(caught.value)
    assert caught.value.param == param


def test_pairs_of_surrogates_and_escaped_controls_are_characters() -> None:
    assert parse_json_object(b'{"a": "\\ud83d\\ude00\\u0000"}') == {"a": "😀\x00"}


def test_large_whole_numbers_stay_exact() -> None:
    assert parse_json_object(b'{"seed": 18446744073709551615}') == {"seed": (1 << 64) - 1}


class Channel:
    """An ASGI receive channel that plays messages and counts how many were taken."""

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        self._messages = list(messages)
        self.num_taken = 0

    async def __call__(self) -> dict[str, Any]:
        self.num_taken += 1
        return self._messages[self.num_taken - 1]


def chunk(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def scope(**headers: str) -> dict[str, Any]:
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


async def test_a_body_in_pieces_is_joined() -> None:
    channel = Channel([chunk(b'{"a"'), chunk(b": 1"), chunk(b"}", more=False)])
    assert await read_json_object(scope(), channel, max_bytes=100) == {"a": 1}


async def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_long() -> None:
    channel = Channel([chunk(b"x" * 60)] * 100)
    with pytest.raises(BodyTooLargeError, match="100 bytes"):
        await read_json_object(scope(), channel, max_bytes=100)
    assert channel.num_taken == 2


async def test_a_declared_length_above_the_limit_is_refused_before_reading() -> None:
    channel = Channel([])
    with pytest.raises(BodyTooLargeError):
        await read_json_object(scope(content_length="101"), channel, max_bytes=100)
    assert channel.num_taken == 0


async def test_a_false_small_length_does_not_lift_the_limit() -> None:
    channel = Channel([chunk(b"x" * 200, more=False)])
    with pytest.raises(BodyTooLargeError):
        await read_json_object(scope(content_length="2"), channel, max_bytes=100)


async def test_a_client_that_leaves_while_sending_is_noticed() -> None:
    channel = Channel([chunk(b"{"), {"type": "http.disconnect"}])
    with pytest.raises(ClientGoneError):
        await read_json_object(scope(), channel, max_bytes=100)


async def test_a_body_that_stops_in_the_middle_is_given_up() -> None:
    class Stalling(Channel):
        async def __call__(self) -> dict[str, Any]:
            if self.num_taken:
                await asyncio.get_running_loop().create_future()
            return await super().__call__()

    with pytest.raises(BodyTimeoutError) as caught:
        await read_json_object(scope(), Stalling([chunk(b"{")]), max_bytes=100, idle_s=0.01)
    assert caught.value.http_status == 408


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/a+json"])
async def test_json_media_types_are_taken(media_type: str) -> None:
    channel = Channel([chunk(b"{}", more=False)])
    assert await read_json_object(scope(content_type=media_type), channel, max_bytes=100) == {}


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_bodies_that_a_web_page_may_send_unasked_are_refused(media_type: str) -> None:
    with pytest.raises(MediaTypeError):
        await read_json_object(scope(content_type=media_type), Channel([]), max_bytes=100)


async def test_an_untyped_body_from_a_browser_is_refused() -> None:
    with pytest.raises(MediaTypeError):
        await read_json_object(scope(origin="http://evil.example"), Channel([]), max_bytes=100)


async def test_a_slow_body_is_taken_as_long_as_it_goes_on() -> None:
    class Dripping(Channel):
        async def __call__(self) -> dict[str, Any]:
            dripped = asyncio.Event()
            asyncio.get_running_loop().call_later(0.03, dripped.set)
            await dripped.wait()
            return await super().__call__()

    channel = Dripping([*[chunk(b" ")] * 5, chunk(b"{}", more=False)])
    assert await read_json_object(scope(), channel, max_bytes=100, idle_s=0.1) == {}


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    threads: list[int] = []

    def noting(body: bytes) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return parse_json_object(body)

    monkeypatch.setattr(body_module, "parse_json_object", noting)
    text = "x" * (body_module.MAX_BYTES_AT_ONCE if is_long else 10)
    sent = Channel([chunk(json.dumps({"prompt": text}).encode(), more=False)])
    assert await read_json_object(scope(), sent, max_bytes=1 << 20) == {"prompt": text}
    assert (threads == [threading.get_ident()]) is not is_long


async def test_what_is_wrong_with_a_long_body_is_told_all_the_same() -> None:
    sent = Channel([chunk(b'{"prompt": NaN, "a": "' + b"x" * body_module.MAX_BYTES_AT_ONCE + b'"}', more=False)])
    with pytest.raises(BadBodyError, match="prompt: NaN is no JSON number"):
        await read_json_object(scope(), sent, max_bytes=1 << 20)
