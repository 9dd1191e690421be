"""Seconds from an engine's death until its streams go on, over HTTP.

    python benchmarks/recovery.py [--model MODEL] [--streams 1,16,64] [--tokens 48] [--runs 5] [--prompt 128]

Streams are started together; when all have begun, the engine is killed (SIGKILL). One line per number of streams, each
figure the median of all runs and the longest: until the server takes the next engine for ready, until the first stream
goes on, until all have gone on. Every stream must end with as many tokens as were asked for and with the text of an
undisturbed run, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.served import Served, stream_request

POLL_S = 0.002


@dataclass
class Stream:
    """What has come of one stream, and when."""

    text: str = ""
    times_s: list[float] = field(default_factory=list)

    async def read(self, port: int, request: bytes) -> None:
        """Ask, and read to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            async for line in reader:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"a stream ended with an error: {event['error']}")
                    self.text += event["choices"][0]["text"]
                    self.times_s.append(time.perf_counter())
        finally:
            writer.close()

    def first_after(self, moment_s: float) -> float:
        """Return when the first event after a moment came."""
        return next(time_s for time_s in self.times_s if time_s > moment_s)


async def run_once(server: Served, requests: list[bytes], *, kills: bool) -> tuple[list[str], tuple[float, ...]]:
    """Read all streams; returns their texts, and the seconds to ready, first and all when the engine was killed."""
    streams = [Stream() for _ in requests]
    reading = [
        asyncio.create_task(stream.read(server.port, each)) for stream, each in zip(streams, requests, strict=True)
    ]
    seconds: tuple[float, ...] = ()
    if kills:
        while not all(stream.times_s for stream in streams):
            if failed := [task for task in reading if task.done() and task.exception() is not None]:
                failed[0].result()
            await asyncio.sleep(POLL_S)
        server.engine.kill()
        server.engine.wait()
        died_s = time.perf_counter()
        ready_s = await next_engine(server)
        await asyncio.gather(*reading)
        going_on = sorted(stream.first_after(died_s + POLL_S) - died_s for stream in streams)
        seconds = (ready_s - died_s, going_on[0], going_on[-1])
    await asyncio.gather(*reading)
    return [stream.text for stream in streams], seconds


async def next_engine(server: Served) -> float:
    """Wait until another engine takes requests; returns when."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        status = (await reader.read()).split(b" ", 2)[1]
        writer.close()
        if status == b"200":
            moment_s = time.perf_counter()
            server.engine = next(c for c in server.process.children() if "trivium.assembly" in c.cmdline())
            return moment_s
        await asyncio.sleep(POLL_S)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with Served(given.model, "--kv-cache-memory", "1GiB") as server:
        for count in map(int, given.streams.split(",")):
            requests = [
                stream_request(given.model, [(idx * 37 + place * 11) % 4000 + 300 for place in range(given.prompt)],
                               given.tokens)
                for idx in range(count)
            ]  # fmt: skip
            undisturbed, _ = asyncio.run(run_once(server, requests, kills=False))
            rows = []
            for _ in range(given.runs):
                texts, seconds = asyncio.run(run_once(server, requests, kills=True))
                if texts != undisturbed:
                    sys.exit("a stream that went on has another text")
                rows.append(seconds)
            shown = [
                f"{statistics.median(column):.2f} (at most {max(column):.2f})" for column in zip(*rows, strict=True)
            ]
            print(f"{count:3d} streams: ready {shown[0]} s, first goes on {shown[1]} s, all go on {shown[2]} s")


if __name__ == "__main__":
    main()
