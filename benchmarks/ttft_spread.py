"""How even the time to first token is: 200 equal prompts, evenly spaced at half of what the server can take.

    python benchmarks/ttft_spread.py [--model smollm2] [--requests 200] [--prompt-len 128] [--output-len 32]
                                     [--load 0.5] [--rounds 1] [--limit 1.5]

Over HTTP, streamed, a connection per request. Capacity comes first: requests per second with 32 in flight all the time,
for prompts that nobody has asked before (cold) and for one prompt asked again and again (cached). Then requests leave
at `--load` of that rate, whether or not the ones before have ended, and the time from connecting to the first token is
taken of each. Prints percentiles, max - min, p99 / p50, and what share of the processors others took meanwhile; exit
status 1 when p99 / p50 exceeds `--limit`.
"""

from __future__ import annotations

import argparse
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peers.machine import Meter, process_tree, raise_weight
from served import Served, stream_request

from trivium.plan.machine import measure_limits

IN_FLIGHT = 32
WARM_UP = 8
ANSWER_S = 60.0
_COLD_SEED = 7


@dataclass(slots=True)
class Exchange:
    """One request under way."""

    due_s: float
    """When it left."""
    first_s: float | None = None
    """When its first token came."""
    received: bytearray = field(default_factory=bytearray)


class Client:
    """Sends requests at given moments and notes when their first tokens come, in one thread."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._waiting = selectors.DefaultSelector()
        self._buffer = bytearray(1 << 16)
        self.waits_s: list[float] = []
        """Seconds to first token of each ended request."""

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return len(self._waiting.get_map())

    def send(self, request: bytes) -> None:
        """Send a request on a connection of its own."""
        began_s = time.perf_counter()
        connection = socket.create_connection(self._address)
        connection.sendall(request)
        self._waiting.register(connection, selectors.EVENT_READ, Exchange(began_s))

    def read(self, timeout_s: float) -> None:
        """Read what comes within this time, one look at most.

        Raises:
            RuntimeError: An answer ended without a token.
        """
        for key, _ in self._waiting.select(max(timeout_s, 0.0)):
            exchange: Exchange = key.data
            count = key.fileobj.recv_into(self._buffer)  # type: ignore[union-attr]
            if exchange.first_s is None:
                exchange.received += self._buffer[:count]
                if b"\ndata: {" in exchange.received:
                    exchange.first_s = time.perf_counter()
            if count:
                continue
            self._waiting.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            if exchange.first_s is None:
                raise RuntimeError(f"an answer has no token: {bytes(exchange.received[:300])!r}")
            self.waits_s.append(exchange.first_s - exchange.due_s)

    def finish(self) -> None:
        """Read every answer to its end.

        Raises:
            RuntimeError: They take too long.
        """
        end_s = time.perf_counter() + ANSWER_S
        while self.num_open:
            self.read(0.1)
            if time.perf_counter() > end_s:
                raise RuntimeError(f"{self.num_open} answers were not complete within {ANSWER_S:g} s")


def capacity(port: int, next_request: Callable[[], bytes], num_requests: int) -> float:
    """Return the requests per second that are answered while `IN_FLIGHT` are under way."""
    client = Client(port)
    for _ in range(WARM_UP):
        client.send(next_request())
    client.finish()
    began_s, sent = time.perf_counter(), 0
    while sent < num_requests:
        while client.num_open < IN_FLIGHT and sent < num_requests:
            client.send(next_request())
            sent += 1
        client.read(0.1)
    client.finish()
    return num_requests / (time.perf_counter() - began_s)


def evenly(port: int, next_request: Callable[[], bytes], num_requests: int, per_second: float) -> list[float]:
    """Send requests at this rate, whatever becomes of them; return the seconds to the first token of each."""
    client = Client(port)
    requests = [next_request() for _ in range(num_requests)]
    began_s = time.perf_counter() + 0.1
    for idx, request in enumerate(requests):
        due_s = began_s + idx / per_second
        while (left_s := due_s - time.perf_counter()) > 0:
            client.read(left_s)
        client.send(request)
    client.finish()
    return client.waits_s


def own_s() -> float:
    """Return the processor seconds of this process and of those that it has started."""
    return sum(process.processor_s for process in process_tree(os.getpid()).values())


def measured(run: Callable[[], list[float]]) -> tuple[list[float], float]:
    """Run; return milliseconds, and the share of the processors that others took meanwhile."""
    meter, before_s = Meter().start(), own_s()
    waits_s = run()
    return [1e3 * wait_s for wait_s in waits_s], meter.stop(own_s() - before_s).others


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def prompts(model: str, prompt_len: int, num_tokens: int) -> dict[str, Callable[[], bytes]]:
    """Return, by name, what makes the next request: cold prompts all begin differently, the cached one is one."""
    rng = random.Random(_COLD_SEED)  # noqa: S311  (a benchmark)
    again = [rng.randrange(100, 40_000) for _ in range(prompt_len)]

    def cold() -> bytes:
        return stream_request(model, [rng.randrange(100, 40_000) for _ in range(prompt_len)], num_tokens)

    return {"cold": cold, "cached": lambda: stream_request(model, again, num_tokens)}


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--load", type=float, default=0.5, help="share of the capacity")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="print the milliseconds of each request too")
    parser.add_argument("--limit", type=float, default=1.5, help="of p99 / p50")
    options = parser.parse_args()
    print(f"stream {measure_limits().memory_bytes / 1e9:.1f} GB/s; {options.requests} prompts of "
          f"{options.prompt_len} tokens, {options.output_len} tokens each")  # fmt: skip
    print(f"{'':8} {'capacity':>10} {'rate':>9} {'min':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8} {'max-min':>8} "
          f"{'p99/p50':>8} {'others':>7}")  # fmt: skip
    is_even = True
    with Served(options.model) as served:
        raise_weight(os.getpid())
        makers = prompts(options.model, options.prompt_len, options.output_len)
        for _ in range(options.rounds):
            for name, next_request in makers.items():
                most = capacity(served.port, next_request, max(2 * IN_FLIGHT, options.requests // 2))
                waits_ms, others = measured(
                    lambda: evenly(served.port, next_request, options.requests, options.load * most)  # noqa: B023
                )
                middle, high = percentile(waits_ms, 0.5), percentile(waits_ms, 0.99)
                shown = [min(waits_ms), middle, percentile(waits_ms, 0.9), high, max(waits_ms)]
                print(f"{name:8} {most:8.2f}/s {options.load * most:7.2f}/s "
                      + " ".join(f"{value:8.1f}" for value in [*shown, max(waits_ms) - min(waits_ms)])
                      + f" {high / middle:8.2f} {others:7.1%}", flush=True)  # fmt: skip
                if options.each:
                    print(" ".join(f"{wait_ms:.0f}" for wait_ms in waits_ms))
                is_even &= high / middle <= options.limit
    print("milliseconds" if is_even else f"milliseconds; p99 / p50 exceeds {options.limit}")
    return 0 if is_even else 1


if __name__ == "__main__":
    sys.exit(main())
