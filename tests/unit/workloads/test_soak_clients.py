"""The soak's clients find what is wrong with an answer; they are no proof otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from support.load import SHARES, Answer, Clients, Tally

REQUESTS = [{"model": "tiny", "prompt": [5], "n": 2}]
EXPECTED = [{0: "ab", 1: "c"}]


def choice(index: int, text: str, reason: str | None = None) -> dict[str, object]:
    return {"index": index, "text": text, "finish_reason": reason}


def stream(*choices: dict[str, object], ending: str = "data: [DONE]\n\n") -> bytes:
    lines = "".join("data: " + json.dumps({"choices": [one]}) + "\n\n" for one in choices)
    return http(200, lines + ending)


def whole(*choices: dict[str, object]) -> bytes:
    return http(200, json.dumps({"choices": choices}))


def http(status: int, body: str, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n{body}".encode()


GOOD_STREAM = stream(choice(0, "a"), choice(1, "c", "stop"), choice(0, "b", "length"))
GOOD_WHOLE = whole(choice(0, "ab", "stop"), choice(1, "c", "length"))
LATE = '{"error": {"message": "late", "code": "deadline_exceeded"}}'
FULL = http(503, '{"error": {"message": "full"}}', retry_after="1")


async def tally_of(answer: bytes, shares: Mapping[str, int], num_requests: int = 4) -> Tally:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        clients = Clients(
            host="127.0.0.1", port=port, requests=REQUESTS, expected=EXPECTED, count=2, shares=shares,
            longest_wait_s=0.01,
        )  # fmt: skip
        return await clients.run(num_requests)


@pytest.mark.parametrize(
    ("kind", "answer", "ending"),
    [
        ("stream", GOOD_STREAM, "right"),
        ("stream", FULL, "refused"),
        ("whole", GOOD_WHOLE, "right"),
        ("whole", FULL, "refused"),
        ("bad", http(400, '{"error": {"message": "no"}}'), "refused"),
        ("deadline", GOOD_STREAM, "right"),
        ("deadline", FULL, "refused"),
        ("deadline", http(504, LATE), "late"),
        ("deadline", stream(choice(0, "a"), ending=f"data: {LATE}\n\n"), "late"),
        ("leave", GOOD_STREAM, "left"),
        ("break off", b"", "left"),
    ],
)
async def test_what_ends_well_is_counted(kind: str, answer: bytes, ending: str) -> None:
    tally = await tally_of(answer, {kind: 1})
    assert tally.wrong == []
    assert tally.ended == {f"{kind} {ending}": 4}
    assert tally.count(ending) == 4


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("stream", stream(choice(0, "ab", "stop"), choice(1, "d", "stop"))),
        ("stream", stream(choice(0, "ab", "stop"), choice(1, "c"))),
        ("stream", stream(choice(0, "ab", "stop"), choice(1, "c", "stop"), ending="")),
        ("stream", stream(choice(0, "ab", "stop"), choice(1, "c", "error"))),
        ("stream", stream(choice(0, "ab", "stop"), choice(1, "c", "stop"), choice(1, "", "stop"))),
        ("stream", http(500, "no")),
        ("stream", http(503, "no")),
        ("stream", b""),
        ("whole", whole(choice(0, "ab", "stop"))),
        ("whole", whole(choice(0, "ab", "stop"), choice(1, "c", None))),
        ("deadline", http(504, '{"error": {"code": "internal_error"}}')),
        ("deadline", stream(choice(0, "ab", "stop"))),
        ("bad", GOOD_WHOLE),
        ("bad", FULL),
        ("bad", http(400, "{}")),
    ],
)
async def test_what_does_not_is_wrong(kind: str, answer: bytes) -> None:
    tally = await tally_of(answer, {kind: 1})
    assert len(tally.wrong) == 4
    assert tally.ended == {f"{kind} wrong": 4}


async def test_every_kind_is_drawn_and_every_request_made_once() -> None:
    tally = await tally_of(GOOD_STREAM, SHARES, num_requests=200)
    assert sum(tally.ended.values()) == 200
    assert {name.rpartition(" ")[0] for name in tally.ended} == set(SHARES)


def test_a_chunked_answer_is_joined() -> None:
    received = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert Answer.parse(received) == Answer(200, {"transfer-encoding": "chunked"}, "abcde")
