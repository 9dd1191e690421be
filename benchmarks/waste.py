"""KV memory that is reserved and holds no token, while streams run and long prompts come.

    python -m benchmarks.waste [MODEL] [--streams 16] [--every 3] [--seconds 20] [--flags '--max-num-seqs 64']

The load of `benchmarks.mixed` on a server of its own; `GET /v1/cache` is read ten times a second. Two shares are shown:
of all reserved bytes (page tables and prefix cache together, which is what memory is taken for), and of the pages of
running requests alone, where nothing but the ends of last pages can be unused.

Exit status 1 when the mean of the first is above 4 %.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.mixed import Load, play
from benchmarks.peers.machine import locked
from benchmarks.served import Served

PROMISE = 0.04
_ADMIN_KEY = "waste-admin-key"
_EVERY_S = 0.1


@dataclass(slots=True)
class Sampler:
    """Reads the state of a server's cache again and again, in a thread of its own."""

    url: str
    reserved: list[float] = field(default_factory=list)
    """Unused share of all reserved bytes."""
    running: list[float] = field(default_factory=list)
    """Unused share of running requests' pages."""
    largest: int = 0
    """Most bytes reserved at a time."""
    _is_done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Read until `stop`."""
        headers = {"authorization": f"Bearer {_ADMIN_KEY}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            while not self._is_done.wait(_EVERY_S):
                state = client.get("/v1/cache").raise_for_status().json()
                if state["reserved_bytes"]:
                    self.reserved.append(state["waste"])
                    self.largest = max(self.largest, state["reserved_bytes"])
                lines = client.get("/metrics").text.splitlines()
                if state["pages"]["used"]:
                    self.running.append(float(_value(lines, "trivium_kv_waste_ratio")))

    def stop(self) -> None:
        """End the reading."""
        self._is_done.set()


def _value(lines: Sequence[str], name: str) -> str:
    return next(line.rpartition(" ")[2] for line in lines if line.partition(" ")[0].partition("{")[0] == name)


def measured(model: str, flags: Sequence[str], load: Load) -> Sampler:
    """Start a server, load it, and sample its cache meanwhile."""
    with Served(model, "--admin-key", _ADMIN_KEY, *flags) as served:
        sampler = Sampler(f"http://127.0.0.1:{served.port}")
        sampling = threading.Thread(target=sampler.run)
        sampling.start()
        try:
            asyncio.run(play(sampler.url, model, load, seed=0))
        finally:
            sampler.stop()
            sampling.join()
        return sampler


def line(name: str, shares: Sequence[float]) -> str:
    """Write one row."""
    cuts = statistics.quantiles(shares, n=100, method="inclusive")
    return f"{name:44}{statistics.mean(shares):8.2%}{cuts[49]:8.2%}{cuts[98]:8.2%}{max(shares):8.2%}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, default=16, help="answers that are always being streamed")
    parser.add_argument("--every", type=float, default=3.0, help="seconds from one long prompt to the next")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flags", default="", help="further flags of trivium serve")
    parser.add_argument(
        "--lock", type=Path, default=Path(tempfile.gettempdir()) / "trivium-bench.lock", help="lock file"
    )
    options = parser.parse_args()
    load = Load(streams=options.streams, every_s=options.every, seconds=options.seconds)
    with locked(options.lock):
        found = measured(options.model, shlex.split(options.flags), load)
    print(f"{'unused share of':44}{'mean':>8}{'p50':>8}{'p99':>8}{'most':>8}")
    print(line("all reserved bytes", found.reserved))
    print(line("the pages of running requests", found.running))
    print(f"{len(found.reserved)} samples, at most {found.largest / 2**20:.0f} MiB reserved")
    return int(statistics.mean(found.reserved) > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
