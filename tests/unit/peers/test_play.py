"""Sessions are played in turn, answers are fed back, and figures compare equal prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from benchmarks.peers.play import Played, Player, figures, lanes_of, parser
from benchmarks.peers.points import find
from benchmarks.workloads.draw import Lane, Session, Turn
from trivium.bench.measure import Measured

IDS = range(3, 9000)


class Server:
    """Answers with as many letters as tokens are asked for; remembers prompts and how many were open at a time."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.num_open = 0
        self.most_open = 0
        self.fails_after: int | None = None

    async def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.prompts.append(body["prompt"])
        if self.fails_after is not None and len(self.prompts) > self.fails_after:
            return httpx.Response(500, text="no")
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        return httpx.Response(200, content=self._events(body))

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0)
            yield event({"choices": [{"text": "x"}]})
        self.num_open -= 1
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"],
                 "prompt_tokens_details": {"cached_tokens": 2}}  # fmt: skip
        yield event({"choices": [{"text": "", "finish_reason": "length"}], "usage": usage}) + b"data: [DONE]\n\n"


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def turn(*added: int, answer: tuple[int, ...] | None = None) -> Turn:
    return Turn(added=added, output_len=3, answer=answer)


async def play(server: Server, lanes: list[Lane], encode: Callable[[str], list[int]] | None = None) -> list[Played]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(server.answer), base_url="http://x") as client:
        player = Player(client, "m", encode)
        assert await player.play(lanes) > 0
        return player.played


async def test_a_prompt_is_all_that_came_before_and_what_is_added() -> None:
    server = Server()
    fixed = Session((turn(1, 2, answer=(7, 8)), turn(3, answer=(9,)), turn(4)))
    await play(server, [Lane("chat", 1, (fixed,))])
    assert server.prompts == [[1, 2], [1, 2, 7, 8, 3], [1, 2, 7, 8, 3, 9, 4]]


async def test_an_engines_own_answer_is_fed_back_as_its_text_is_tokenized() -> None:
    server = Server()
    played = await play(server, [Lane("chat", 1, (Session((turn(1), turn(2))),))], lambda text: [50, len(text)])
    assert server.prompts == [[1], [1, 50, 3, 2]]
    assert [one.error for one in played] == [None, None]


@pytest.mark.parametrize(("own", "held"), [([50, 51, 52, 53], (50, 51, 52)), ([50], (50, 60, 61))])
async def test_own_answers_are_brought_to_the_length_that_was_asked_for(own: list[int], held: tuple[int, ...]) -> None:
    server = Server()
    first = Turn(added=(1,), output_len=3, filler=(60, 61, 62))
    await play(server, [Lane("chat", 1, (Session((first, turn(2))),))], lambda _: own)
    assert server.prompts == [[1], [1, *held, 2]]


async def test_lanes_run_beside_each_other_with_as_many_open_as_they_say() -> None:
    server = Server()
    sessions = tuple(Session((turn(idx, answer=()), turn(99))) for idx in range(6))
    await play(server, [Lane("stream", 2, sessions), Lane("long", 1, sessions)])
    assert len(server.prompts) == 24
    assert server.most_open == 3


async def test_a_session_ends_with_its_first_failure_and_fails_the_run() -> None:
    server = Server()
    server.fails_after = 0
    played = await play(server, [Lane("chat", 1, (Session((turn(1, answer=()), turn(2))),))])
    assert len(played) == 1
    assert figures(played, 1.0) == {"error": "1 of 1 requests: HTTP 500: no"}


def answer(ttft_s: float, *, kind: str = "request", is_repeated: bool = False, cached: int | None = None) -> Played:
    result = Measured(began_s=0.0, ttft_s=ttft_s, gaps_s=[0.1, 0.3], ended_s=ttft_s + 0.4,
                      prompt_tokens=10, completion_tokens=3, cached_tokens=cached or 0,
                      tells_cached=cached is not None)  # fmt: skip
    return Played(kind, 10, 3, is_repeated, result)


def test_figures_tell_wall_time_tokens_and_latencies() -> None:
    told = figures([answer(1.0, cached=0), answer(2.0, is_repeated=True, cached=8)], 3.0)
    assert told["tokens_per_s"] == 2.0
    made = told["figures"]
    assert (made["seconds"], made["num_requests"], made["prompt_tokens"]) == (3.0, 2, 20)
    assert (made["cached_tokens"], made["computed_tokens"]) == (8, 12)
    assert (made["ttft_cold_p50_ms"], made["ttft_cached_p99_ms"]) == (1000, 2000)
    assert made["tpot_p50_ms"] == pytest.approx(200)
    assert made["itl_p99_ms"] == pytest.approx(300)
    json.dumps(told)


def test_a_server_that_tells_nothing_of_its_cache_is_not_taken_to_have_none() -> None:
    made = figures([answer(1.0)], 3.0)["figures"]
    assert "cached_tokens" not in made
    assert "computed_tokens" not in made


def test_kinds_are_told_apart_where_there_are_several() -> None:
    made = figures([answer(1.0, kind="long"), answer(0.1, kind="stream")], 3.0)["figures"]
    assert (made["long_ttft_p50_ms"], made["stream_ttft_p50_ms"]) == (1000, 100)
    assert not any(name.startswith("request_") for name in figures([answer(1.0)], 1.0)["figures"])


def test_another_number_of_tokens_fails_the_run() -> None:
    short = answer(1.0)
    short.result.completion_tokens = 2
    assert figures([answer(1.0), short], 1.0) == {"error": "1 of 2 requests: 2 tokens were generated, not 3"}


def test_lanes_of_a_point_have_its_concurrency() -> None:
    for name in ("shared-prefix 64", "multi-turn 16", "rag 100", "mixed 128"):
        point = find(name)
        assert sum(lane.concurrency for lane in lanes_of(point, IDS, 1, None, None)) == point.concurrency


def test_what_a_point_lacks_is_told() -> None:
    with pytest.raises(ValueError, match="'HTTP 16' has no shape"):
        lanes_of(find("HTTP 16"), IDS, 1, None, None)
    with pytest.raises(ValueError, match="give --recorded and --model"):
        lanes_of(find("recorded 16"), IDS, 1, None, None)
    assert parser().parse_args(["--point", "rag 16", "--url", "u", "--words", "w"]).recorded is None
