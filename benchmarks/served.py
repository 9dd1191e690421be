"""`trivium serve` for benchmarks: started on a free port, watched by process, ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

READY_S = 120.0
END_S = 30.0


class Served:
    """A server of its own process, and the engine behind it."""

    def __init__(self, model: str, *flags: str) -> None:
        """Start, and wait until requests are taken.

        Raises:
            RuntimeError: The server ended, or is not ready after two minutes.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.model = model
        command = [sys.executable, "-m", "trivium", "serve", model, "--port", str(self.port), "--log-level", "error"]
        self._process = subprocess.Popen([*command, *flags])  # noqa: S603  (our own program)
        self.process = psutil.Process(self._process.pid)
        end_s = time.monotonic() + READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.end()
                raise RuntimeError(f"the server ended, or was not ready within {READY_S:g} s")
            time.sleep(0.05)
        self.engine = next(child for child in self.process.children() if "trivium.assembly" in child.cmdline())

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                return True
        except OSError:
            return False

    def end(self) -> None:
        """Stop the server and its engine."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def stream_request(model: str, prompt: Sequence[int], num_tokens: int) -> bytes:
    """Write a request for a streamed completion of `prompt` that is exactly `num_tokens` long."""
    return post_bytes(
        "/v1/completions",
        {"model": model, "prompt": list(prompt), "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0.0,
         "stream": True},
    )  # fmt: skip


def post_bytes(path: str, body: dict[str, object]) -> bytes:
    """Write a request whose connection ends with its answer."""
    payload = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    ).encode() + payload


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
