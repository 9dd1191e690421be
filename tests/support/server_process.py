"""A real server in a process of its own, on a free port, for tests over real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

import httpx
import pytest

from trivium.base.errors import ModelError
from trivium.config.options import ModelOptions

START_S = 60.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def smollm2_or_skip() -> str:
    """The catalog name of SmolLM2, fetched when it is not here; skips where it cannot be had."""
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415

    try:
        resolve_model(ModelOptions(model="smollm2"))
    except ModelError as error:
        pytest.skip(f"SmolLM2 cannot be fetched here: {error}")
    return "smollm2"


class ServerProcess:
    """`trivium serve` as a context manager; leaving it stops the server and whatever it started."""

    def __init__(
        self, model: str | Path, *flags: str, environ: Mapping[str, str] | None = None, wait: bool = True
    ) -> None:
        """Remember what to start.

        Args:
            model: As on the command line.
            flags: Further flags.
            environ: Variables to add.
            wait: Whether entering waits until `/health` is 200.
        """
        self.port = free_port()
        self._command: Sequence[str] = [
            sys.executable, "-m", "trivium", "serve", str(model), "--port", str(self.port), *flags,
        ]  # fmt: skip
        self._environ = {**os.environ, **(environ or {})}
        self._waits = wait
        self._log = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed when the server is)
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Address without a trailing slash or `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the HTTP process."""
        return self._started().pid

    def log(self) -> str:
        """Everything that was said on standard output and standard error."""
        self._log.seek(0)
        return self._log.read()

    def wait_ready(self) -> None:
        """Wait until `/health` is 200; fails with the log when the server ends or takes too long."""
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            if self._started().poll() is not None:
                pytest.fail(f"the server ended with {self._started().returncode}:\n{self.log()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        pytest.fail(f"the server was not ready within {START_S:g} s:\n{self.log()}")

    def wait_end(self, timeout_s: float = 30.0) -> int:
        """Wait until the server has ended; returns its exit code."""
        return self._started().wait(timeout_s)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(  # noqa: S603  (our own program)
            self._command, stdout=self._log, stderr=subprocess.STDOUT, text=True, env=self._environ
        )
        if self._waits:
            try:
                self.wait_ready()
            except BaseException:
                self._stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        process = self._started()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None:
            pytest.fail("the server was not started")
        return self.process
