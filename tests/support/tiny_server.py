"""`trivium serve` in a process of its own over the tiny model, with its log collected and shorthand for requests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from support.sse import chunks, texts_by_index
from support.tiny_engine import tiny_model

CONTEXT = 512
LETTERS = "abcdefghijklmnopqrstuvwxyz"
READY_S = 60.0


@dataclass(slots=True)
class TinyServer:
    """A server and a client for it."""

    process: subprocess.Popen[str]
    client: httpx.Client
    log: list[str] = field(default_factory=list)
    canary: str = ""

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.client.post(path, json={"model": "tiny", **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", **{"prompt": "hi", "temperature": 0, **fields})

    def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", **{"messages": messages, "temperature": 0, **fields})

    def text(self, **fields: Any) -> str:
        """Complete and return the first choice's text, whole or put together from a stream."""
        response = self.complete(**fields)
        assert response.status_code == 200, response.text
        if fields.get("stream"):
            return texts_by_index(chunks(response.text)).get(0, "")
        return str(response.json()["choices"][0]["text"])

    def ids(self, text: str) -> list[int]:
        return list(self.post("/tokenize", prompt=text).json()["tokens"])

    def metrics(self) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def letters(self, bias: float) -> dict[str, float]:
        """Return a bias that makes the noise of the tiny model readable."""
        return {str(id_): bias for id_ in self.ids(LETTERS)}

    def assert_alive(self) -> None:
        """Check health, and that a fixed request gives the bytes that it gave at the start."""
        assert self.client.get("/health").status_code == 200
        assert self.text(prompt="canary", max_tokens=12) == self.canary

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        return next(p for p in psutil.Process(self.process.pid).children() if "trivium.assembly" in p.cmdline())

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(timeout=20)


@contextlib.contextmanager
def tiny_server(
    *flags: str,
    model: Path | None = None,
    key: str | None = None,
    kv_cache_memory: str = "1MiB",
    environ: Mapping[str, str] | None = None,
) -> Iterator[TinyServer]:
    """Start a server on a free port and wait until it says that it is ready; it is gone when the block ends."""
    command = [sys.executable, "-c", "import sys; from trivium.cli import main; sys.exit(main())", "serve"]
    common = ["--port", "0", "--served-model-name", "tiny", "--kv-cache-memory", kv_cache_memory, "--threads", "1"]
    process = subprocess.Popen(  # noqa: S603  (our own program)
        [*command, str(model or tiny_model()), *common, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )
    log: list[str] = []
    url: list[str] = []
    has_begun = threading.Event()

    def collect() -> None:
        for line in process.stderr or ():
            log.append(line)
            if "ready: " in line:
                url.append(line.split(" at ")[1].split("/v1")[0])
                has_begun.set()
        has_begun.set()

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    children: list[psutil.Process] = []
    try:
        assert has_begun.wait(READY_S), "".join(log)
        assert url, "".join(log)
        children = psutil.Process(process.pid).children(recursive=True)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=url[0], timeout=20, headers=headers) as client:
            server = TinyServer(process, client, log)
            server.canary = server.text(prompt="canary", max_tokens=12)
            yield server
    finally:
        process.kill()
        process.wait()
        for child in children:  # an engine that a test has stopped cannot notice that its parent is gone
            with contextlib.suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                child.send_signal(signal.SIGKILL)
                if "trivium.assembly" in command:
                    shutil.rmtree(command[-3], ignore_errors=True)
        reader.join(5)
        if process.stderr is not None:
            process.stderr.close()
