"""Load for soak tests: clients that stream, wait, leave, give up, send rubbish, and judge whatever they are answered.

Every request is of one of these kinds, drawn at random:

==========  ==================================================================  =====================================
kind        what the client does                                                what must come
==========  ==================================================================  =====================================
stream      reads a stream to its end                                           the right texts, one ending
whole       reads an answer to its end                                          the right texts
leave       reads some of a stream, or nothing; then hangs up                   nothing more
give up     waits for a while that it chose before, then hangs up               the right texts, or nothing more
deadline    streams with a short `timeout_s`                                    the right texts, or one error
break off   hangs up in the middle of its request                               nothing
bad         sends a body that is no request                                     a refusal, at once
==========  ==================================================================  =====================================

Whoever reads to the end may be turned away with 503 and a time to come back. Nothing else ends well.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from support.sse import events, texts_by_index

STALL_S = 300.0
SHARES = {"stream": 32, "deadline": 8, "whole": 12, "leave": 20, "give up": 12, "break off": 6, "bad": 10}
"""How many of a hundred requests are of a kind."""
BAD_BODIES: Sequence[bytes] = (
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"model": "nobody", "prompt": [5]}',
    b'{"model": "tiny", "prompt": []}',
    b'{"model": "tiny", "prompt": [-1]}',
    b'{"model": "tiny", "prompt": [5], "max_tokens": -1}',
    b'{"model": "tiny", "prompt": [5], "temperature": NaN}',
    b'{"model": "tiny", "prompt": [5], "n": 100000}',
    b'{"model": "tiny", "prompt": [5], "colour": "red"}',
    b'{"model": "tiny", "prompt": [' + b"5," * 9000 + b"5]}",
)


@dataclass(slots=True)
class Tally:
    """What happened to the requests."""

    ended: Counter[str] = field(default_factory=Counter)
    """By kind and how it ended: `stream right`, `whole refused`, `leave left`…"""
    wrong: list[str] = field(default_factory=list)
    """Answers that are not right, and endings that are none."""

    def count(self, *endings: str) -> int:
        """Requests that ended in one of these ways, whatever their kind."""
        return sum(number for name, number in self.ended.items() if name.rpartition(" ")[2] in endings)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: str

    @classmethod
    def parse(cls, received: bytes) -> Answer:
        """Read the bytes of a connection that the server has closed."""
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        whole = unchunked(body) if headers.get("transfer-encoding") == "chunked" else body
        return cls(int(first.split(" ")[1]), headers, whole.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Requests drawn from `requests`, `count` of which are always open."""

    host: str
    port: int
    requests: Sequence[dict[str, Any]]
    """Fields of completion requests with one right answer each."""
    expected: Sequence[dict[int, str]]
    """The right texts, by choice."""
    count: int = 128
    shares: Mapping[str, int] = field(default_factory=lambda: SHARES)
    longest_wait_s: float = 0.5
    """What clients wait at most that give up, or were turned away."""

    async def run(self, num_requests: int, seed: int = 0) -> Tally:
        """Make so many requests, and wait until the last one has ended."""
        tally, numbers = Tally(), iter(range(num_requests))

        async def client() -> None:
            for number in numbers:
                await self._request(random.Random(seed * num_requests + number), tally)  # noqa: S311

        await asyncio.gather(*(client() for _ in range(self.count)))
        return tally

    async def _request(self, drawn: random.Random, tally: Tally) -> None:
        kind = drawn.choices(list(self.shares), weights=list(self.shares.values()))[0]
        idx = drawn.randrange(len(self.requests))
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            ending = await _KINDS[kind](self, idx, drawn, (reader, writer))
        except (AssertionError, ValueError, LookupError, TimeoutError, OSError) as error:
            ending = "wrong"
            tally.wrong.append(f"{kind}, request {idx}: {type(error).__name__} {error!s:.300}")
        finally:
            writer.close()
        tally.ended[f"{kind} {ending}"] += 1
        if ending == "refused" and kind != "bad":
            await asyncio.sleep(drawn.random() * self.longest_wait_s)  # as a client that comes back later

    # -- kinds: each returns how the request ended ----------------------------------------------------------------

    async def _stream(self, idx: int, _: random.Random, connection: Connection) -> str:
        return self._judge_stream(idx, await self._ask(idx, connection, stream=True))

    async def _whole(self, idx: int, _: random.Random, connection: Connection) -> str:
        answer = await self._ask(idx, connection, stream=False)
        if is_refusal(answer):
            return "refused"
        body = json.loads(answer.body)
        assert all(choice["finish_reason"] in {"stop", "length"} for choice in body["choices"]), body
        return self._compare(idx, {choice["index"]: choice["text"] for choice in body["choices"] if choice["text"]})

    async def _leave(self, idx: int, drawn: random.Random, connection: Connection) -> str:
        reader, writer = connection
        writer.write(post({**self.requests[idx], "stream": True}))
        num_bytes = drawn.choice((0, 0, 1, 200, 1000, 4000))
        if num_bytes:
            await asyncio.wait_for(reader.read(num_bytes), STALL_S)
        elif drawn.random() < 0.5:
            await asyncio.sleep(drawn.random() * 0.2)
        hang_up(writer, drawn)
        return "left"

    async def _give_up(self, idx: int, drawn: random.Random, connection: Connection) -> str:
        reader, writer = connection
        writer.write(post({**self.requests[idx], "stream": True}))
        try:
            received = await asyncio.wait_for(reader.read(), drawn.random() * self.longest_wait_s)
        except TimeoutError:
            hang_up(writer, drawn)
            return "left"
        return self._judge_stream(idx, Answer.parse(received))

    async def _deadline(self, idx: int, drawn: random.Random, connection: Connection) -> str:
        reader, writer = connection
        timeout_s = 0.1 + drawn.random() * self.longest_wait_s
        writer.write(post({**self.requests[idx], "stream": True, "timeout_s": timeout_s}))
        answer = Answer.parse(await asyncio.wait_for(reader.read(), STALL_S))
        if answer.status == HTTPStatus.GATEWAY_TIMEOUT:
            errors = [json.loads(answer.body)["error"]]
        else:
            seen = events(answer.body) if answer.status == HTTPStatus.OK else []
            errors = [event["error"] for event in seen if event != "[DONE]" and "error" in event]
        if not errors:
            return self._judge_stream(idx, answer)
        assert [error["code"] for error in errors] == ["deadline_exceeded"], answer
        return "late"

    async def _break_off(self, idx: int, drawn: random.Random, connection: Connection) -> str:
        _, writer = connection
        request = post({**self.requests[idx], "stream": True})
        writer.write(request[: drawn.randrange(len(request))])
        await asyncio.sleep(drawn.random() * 0.05)
        hang_up(writer, drawn)
        return "left"

    async def _bad(self, _: int, drawn: random.Random, connection: Connection) -> str:
        reader, writer = connection
        writer.write(post_bytes(drawn.choice(BAD_BODIES)))
        answer = Answer.parse(await asyncio.wait_for(reader.read(), STALL_S))
        assert HTTPStatus.BAD_REQUEST <= answer.status <= HTTPStatus.UNPROCESSABLE_ENTITY, answer
        assert json.loads(answer.body)["error"]["message"], answer
        return "refused"

    # -- judging --------------------------------------------------------------------------------------------------

    async def _ask(self, idx: int, connection: Connection, *, stream: bool) -> Answer:
        reader, writer = connection
        writer.write(post({**self.requests[idx], "stream": stream}))
        return Answer.parse(await asyncio.wait_for(reader.read(), STALL_S))

    def _judge_stream(self, idx: int, answer: Answer) -> str:
        if is_refusal(answer):
            return "refused"
        *seen, last = events(answer.body)
        assert last == "[DONE]", answer.body[-300:]
        reasons = [choice["finish_reason"] for chunk in seen for choice in chunk["choices"] if choice["finish_reason"]]
        assert len(reasons) == self.requests[idx].get("n", 1), reasons
        assert set(reasons) <= {"stop", "length"}, reasons
        return self._compare(idx, {choice: text for choice, text in texts_by_index(seen).items() if text})

    def _compare(self, idx: int, texts: dict[int, str]) -> str:
        assert texts == self.expected[idx], texts
        return "right"


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_KINDS: Mapping[str, Callable[[Clients, int, random.Random, Connection], Awaitable[str]]] = {
    "stream": Clients._stream,
    "whole": Clients._whole,
    "leave": Clients._leave,
    "give up": Clients._give_up,
    "deadline": Clients._deadline,
    "break off": Clients._break_off,
    "bad": Clients._bad,
}


def is_refusal(answer: Answer) -> bool:
    """Whether a request was turned away for now; anything but that and a 200 is wrong."""
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        assert int(answer.headers["retry-after"]) >= 1, answer
        return True
    assert answer.status == HTTPStatus.OK, answer
    return False


def hang_up(writer: asyncio.StreamWriter, drawn: random.Random) -> None:
    """Close a connection, or reset it."""
    if drawn.random() < 0.5:
        writer.transport.abort()


def post(fields: dict[str, Any]) -> bytes:
    """Write a completion request whose connection ends with the answer."""
    return post_bytes(json.dumps(fields).encode())


def post_bytes(body: bytes) -> bytes:
    """Write a body as one."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def unchunked(body: bytes) -> bytes:
    """Join the chunks of a chunked body."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
