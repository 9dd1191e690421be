"""Seconds from starting `trivium serve` to the first served token, over several cold starts of a cached model.

    python benchmarks/startup.py [MODEL] [RUNS]

Prints one line per start and the medians: until `/live` answers, until `/health` is 200, until the first token of a
completion has arrived.
"""

from __future__ import annotations

import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

POLL_S = 0.01


def main() -> None:
    """Measure and print."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5  # noqa: PLR2004
    results = [start_once(model) for _ in range(runs)]
    for live_s, ready_s, token_s in results:
        print(f"live {live_s:.2f} s   ready {ready_s:.2f} s   first token {token_s:.2f} s")
    live, ready, token = (statistics.median(column) for column in zip(*results, strict=True))
    print(f"median of {runs}: live {live:.2f} s   ready {ready:.2f} s   first token {token:.2f} s")


def start_once(model: str) -> tuple[float, float, float]:
    """Start a server, wait for each milestone, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    began_s = time.perf_counter()
    server = subprocess.Popen(  # noqa: S603  (our own program)
        [sys.executable, "-m", "trivium", "serve", model, "--port", str(port), "--log-level", "error"]
    )
    try:
        live_s = wait_for(f"{url}/live", began_s)
        ready_s = wait_for(f"{url}/health", began_s)
        body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request) as response:  # noqa: S310
            response.read()
        return live_s, ready_s, time.perf_counter() - began_s
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def wait_for(url: str, began_s: float) -> float:
    """Poll until 200; returns the seconds since `began_s`."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310
                return time.perf_counter() - began_s
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)


if __name__ == "__main__":
    main()
