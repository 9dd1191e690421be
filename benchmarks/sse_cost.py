"""Server CPU per streamed token: a real server on loopback, an engine that costs next to nothing, a reading client.

Prints microseconds of CPU per token in the server's process, for each endpoint, with 1, 16 and 64 streams at once. The
client runs in a process of its own, so that its cost is not counted; the scripted engine's is, and is shown alone too.

    python benchmarks/sse_cost.py [--tokens 480]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.fake_engine import FakeEngine, alphabet
from support.live_server import LivingEngine, live_server
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Delta

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions logprobs=5": {
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 5,
    },
}


REQUESTS = 64


class FreeEngine(LivingEngine):
    """Says prepared deltas, handing over after each, as an engine that steps once per token would."""

    def submit(  # type: ignore[override]
        self, prompt_ids: Sequence[int], params: SamplingParams, **named: Any
    ) -> AsyncIterator[Delta]:
        """Replay the answer to these parameters."""
        prepared = FakeEngine(alphabet)
        return _replay(prepared, prompt_ids, params, named["request_id"], named.get("on_news"))


_PREPARED: dict[tuple[int, int], list[Delta]] = {}


async def _replay(
    engine: FakeEngine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    request_id: str,
    on_news: Callable[[Delta], bool] | None = None,
) -> AsyncIterator[Delta]:
    key = (params.max_tokens or 0, params.logprobs or 0)
    if key not in _PREPARED:
        _PREPARED[key] = [delta async for delta in engine.submit(prompt_ids, params, request_id=request_id)]
    for delta in _PREPARED[key]:
        if on_news is None or delta.finish_reason is not None or not on_news(delta):
            yield delta
        await asyncio.sleep(0)


def read_streams(port: int, path: str, body: dict[str, Any], num_streams: int) -> None:
    """Be the client's process: ask, and read to the end, `REQUESTS` times in all."""

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        payload = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        while await reader.read(1 << 16):
            pass
        writer.close()

    async def every() -> None:
        for _ in range(REQUESTS // num_streams):
            await asyncio.gather(*(one() for _ in range(num_streams)))

    asyncio.run(every())


async def measure(port: int, name: str, num_streams: int, num_tokens: int) -> float:
    """Return microseconds of this process's CPU per token."""
    path = name.split(maxsplit=1)[0]
    body = {"model": "tiny", "max_tokens": num_tokens, "stream": True, **BODIES[name]}
    context = multiprocessing.get_context("spawn")
    best = float("inf")
    for _ in range(2):
        client = context.Process(target=read_streams, args=(port, path, body, num_streams))
        began = time.process_time()
        client.start()
        while client.is_alive():
            await asyncio.sleep(0.01)
        client.join()
        best = min(best, time.process_time() - began)
    return best / (REQUESTS * num_tokens) * 1e6


async def engine_alone(num_tokens: int) -> float:
    """Return microseconds per token of the scripted engine itself."""
    params = SamplingParams(max_tokens=num_tokens)
    async for _ in _replay(FakeEngine(alphabet), [1], params, "x"):
        pass
    began = time.process_time()
    async for _ in _replay(FakeEngine(alphabet), [1], params, "x"):
        pass
    return (time.process_time() - began) / num_tokens * 1e6


async def main(num_tokens: int) -> None:
    """Measure and print."""
    print(f"{'scripted engine alone':40} {await engine_alone(480):8.1f} us/token")
    async with live_server(FreeEngine()) as live:
        for name in BODIES:
            for num_streams in (1, 16, 64):
                cost = await measure(live.port, name, num_streams, num_tokens)
                print(f"{name:32} x{num_streams:<4} {cost:10.1f} us/token")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=480)
    asyncio.run(main(parser.parse_args().tokens))
