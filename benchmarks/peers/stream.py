"""How fast this machine reads memory right now: a bound on every engine that reads its weights for each token.

    python -m benchmarks.peers.stream --threads 2

Prints GB/s. A program of its own, so that it can be given the same precedence as the engines beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time

import numpy as np

_BYTES = 256 << 20  # per thread; larger than the caches
_READINGS = 7


def main() -> None:
    """Read and print."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    print(f"{read_rate(made.parse_args().threads) / 1e9:.2f}")


def read_rate(threads: int, part_bytes: int = _BYTES) -> float:
    """Return the median rate, in bytes per second, at which that many threads read `part_bytes` each."""
    parts = [np.ones(part_bytes // 8) for _ in range(threads)]
    return threads * part_bytes / statistics.median(_read_once(parts) for _ in range(_READINGS))


def _read_once(parts: list[np.ndarray]) -> float:
    """Let all threads begin together; NumPy reduces without holding the interpreter's lock."""
    gate = threading.Barrier(len(parts) + 1)

    def read(part: np.ndarray) -> None:
        gate.wait()
        np.max(part)
        gate.wait()

    threads = [threading.Thread(target=read, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    gate.wait()
    began_s = time.perf_counter()
    gate.wait()
    seconds = time.perf_counter() - began_s
    for thread in threads:
        thread.join()
    return seconds


if __name__ == "__main__":
    main()
