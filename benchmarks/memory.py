"""Peak memory of `trivium serve` under load, and of `trivium generate`, beside what it may be.

    python benchmarks/memory.py [--model smollm2] [--kv-cache-memory 256MiB] [--streams 64] [--slack-mb 200]

What counts is the high-water mark of the resident set (VmHWM of /proc/PID/status): anonymous pages, and the pages of
mapped files that were read, packed weights and shared libraries included, whether or not another process has them too.
May be: bytes of the packed weights + bytes of the KV pool + 200 MB, where engine and server count together, libraries
twice; of `generate`, which touches little of its pool, weights + 200 MB. The load writes more tokens than the pool
holds. Exit status 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from served import Served, stream_request
from ttft_spread import Client

from trivium.config.sizes import format_bytes, parse_bytes

MB = 1_000_000
PROMPT_LEN, OUTPUT_LEN = 256, 96
_FIELDS = ("VmHWM", "RssAnon", "RssFile")


def memory(pid: int) -> Mapping[str, int]:
    """Return bytes by field of /proc/PID/status: the peak, and what is resident now."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words and words[0][:-1] in _FIELDS}


def packed_bytes(pid: int) -> int:
    """Return the bytes of the packed weights that a process has mapped."""
    mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/packed" in line}
    return sum(Path(path).stat().st_size for path in mapped)


def load(served: Served, num_streams: int, kv_tokens: int) -> None:
    """Answer so many streams at once, until more tokens have been written than the pool holds."""
    rng = random.Random(3)  # noqa: S311  (a benchmark)
    written = 0
    while written <= kv_tokens:
        client = Client(served.port)
        for _ in range(num_streams):
            prompt = [rng.randrange(100, 40_000) for _ in range(PROMPT_LEN)]
            client.send(stream_request(served.model, prompt, OUTPUT_LEN))
            written += PROMPT_LEN + OUTPUT_LEN
        client.finish()


def kv_tokens(served: Served) -> int:
    """Return how many tokens the pool holds, by its own account."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pages = sum(float(line.split()[-1]) for line in lines if line.startswith("trivium_kv_pages{"))
    return int(pages) * 16


def show(name: str, peak: int, limit: int | None) -> bool:
    """Print a line; return whether the limit holds."""
    holds = limit is None or peak <= limit
    beside = "" if limit is None else f" of {limit / MB:7.1f} MB" + ("" if holds else "  EXCEEDED")
    print(f"{name:24} {peak / MB:7.1f} MB{beside}", flush=True)
    return holds


def measure_serve(model: str, kv_memory: str, num_streams: int, slack: int) -> tuple[bool, int]:
    """Measure the server under load; return whether its limit holds, and the bytes of the weights."""
    with Served(model, "--kv-cache-memory", kv_memory) as served:
        load(served, num_streams, kv_tokens(served))
        weights = packed_bytes(served.engine.pid)
        peaks = {name: memory(process.pid) for name, process in (("engine", served.engine), ("server", served.process))}
    for name, found in peaks.items():
        show(f"serve: {name}", found["VmHWM"], None)
        print(f"{'':24} now {found['RssAnon'] / MB:.1f} MB anonymous, {found['RssFile'] / MB:.1f} MB of files")
    limit = weights + parse_bytes(kv_memory, option="--kv-cache-memory") + slack
    return show("serve: together", sum(found["VmHWM"] for found in peaks.values()), limit), weights


def measure_generate(model: str, kv_memory: str, limit: int) -> bool:
    """Measure one answer from the command line."""
    command = [sys.executable, "-m", "trivium", "generate", model, "--prompt", "Hello", "--max-tokens", "64"]
    code = (
        "import json, resource, subprocess, sys; subprocess.run(json.loads(sys.argv[1]), check=True, "
        "stdout=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    asked = json.dumps([*command, "--kv-cache-memory", kv_memory])
    done = subprocess.run([sys.executable, "-c", code, asked], check=True, capture_output=True, text=True)  # noqa: S603
    return show("generate", int(done.stdout) * 1024, limit)


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv-cache-memory", default="256MiB")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--slack-mb", type=int, default=200)
    options = parser.parse_args()
    slack = options.slack_mb * MB
    is_served, weights = measure_serve(options.model, options.kv_cache_memory, options.streams, slack)
    pool = parse_bytes(options.kv_cache_memory, option="--kv-cache-memory")
    is_generated = measure_generate(options.model, options.kv_cache_memory, weights + slack)
    print(f"weights {format_bytes(weights)}, KV pool {format_bytes(pool)}")
    return 0 if is_served and is_generated else 1


if __name__ == "__main__":
    sys.exit(main())
