"""What HTTP costs: tokens per second of 64 streams through the whole server, against the same loop in one process.

    python benchmarks/http_cost.py [--model smollm2] [--streams 64] [--tokens 150] [--rounds 5] [--route completions]
                                   [--step-ms 35] [--sleep]

Two engines stand ready, one behind a server and one that is told through a pipe to answer the same requests in its own
process; rounds alternate. The client is a process of its own that only reads. Prints tokens per second of both, what
HTTP costs in percent, and microseconds of CPU per token in each process: on a machine of two cores the client's are
taken from the engine too.

With `--model` it is `trivium serve MODEL` beside the same engine in process. Without, the executor has no model; a step
multiplies matrices with the engine's own kernels and threads, so much that 64 requests take `--step-ms` when nothing
else runs. With `--sleep` steps sleep instead: on a busy machine only the CPU per token says anything, and then it is
that of the server, the wire and the loop alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loops import PAGE_LEN, TextExecutor, find_tokenizer, make_loop, text_ids
from peers.machine import Meter, raise_weight
from served import Served, cpu_seconds, post_bytes, stream_request

from support.fake_engine import JoiningTemplate, tiny_config, tiny_served
from trivium.assembly import build_engine
from trivium.config.options import ServerOptions
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.client import EngineClient
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.engine.process import EngineProcess
from trivium.kernels.gemm import gemm, pack
from trivium.plan.machine import measure_limits
from trivium.server.app import build_app
from trivium.server.lifetime import bind_socket, serve
from trivium.server.loading import Found, Opened

DEPTH = 4096
PROMPT_LEN = 20
MAX_MODEL_LEN = 2048
ROUTES = ("chat", "completions")
KV_MEMORY = "512MiB"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all processes must agree on."""

    streams: int
    tokens: int
    products: int
    """Matrix products per step; 0 sleeps."""
    step_s: float
    tokenizer: str
    model: str = ""
    """Served, and run in process; empty for the executor without a model."""


class WorkingExecutor(TextExecutor):
    """Multiplies `streams` rows by a matrix of 64 MB, `products` times in every step."""

    def __init__(self, setting: Setting, ids: list[int], num_pages: int) -> None:
        super().__init__(ids, num_pages)
        self._products, self._step_s = setting.products, setting.step_s
        self._rows = np.ones((setting.streams, DEPTH), np.float32)
        self._out = np.empty((setting.streams, DEPTH), np.float32)
        self._weight = pack(np.ones((DEPTH, DEPTH), np.float32))

    def work(self, num_tokens: int) -> None:
        """Multiply, or sleep, whatever the number of tokens."""
        del num_tokens
        if not self._products:
            time.sleep(self._step_s)
        for _ in range(self._products):
            gemm(self._rows, self._weight, out=self._out)


def working_loop(setting: Setting) -> EngineLoop:
    """Make the loop that both engines run."""
    tokenizer, vocab_size = find_tokenizer(setting.tokenizer)
    executor = WorkingExecutor(setting, text_ids(tokenizer), setting.streams * MAX_MODEL_LEN // PAGE_LEN)
    return make_loop(executor, tokenizer, vocab_size, num_requests=setting.streams, max_model_len=MAX_MODEL_LEN)


def find_products(streams: int, step_s: float) -> int:
    """Return how many matrix products take `step_s` when nothing else runs."""
    executor = WorkingExecutor(Setting(streams=streams, tokens=1, products=1, step_s=0.0, tokenizer=""), [1], 1)
    times = []
    for _ in range(30):
        began = time.perf_counter()
        executor.work(streams)
        times.append(time.perf_counter() - began)
    return max(1, round(step_s / statistics.median(times)))


# -- the processes ---------------------------------------------------------------------------------------------------


def be_engine(folder: str, epoch: str, parent: str) -> int:
    """Be the engine process behind the server; the setting is on standard input."""
    setting = Setting(**json.load(sys.stdin))
    return EngineProcess(Path(folder), int(epoch), int(parent)).serve(lambda _: working_loop(setting))


def prompt_of(name: str, idx: int) -> list[int]:
    """Return the prompt of one request of a round: no two rounds share one, so that nothing comes from the cache."""
    first = zlib.crc32(f"{name}-{idx}".encode())
    return [5 + (first + place * 7919) % 200 for place in range(PROMPT_LEN)]


def be_alone(setting: Setting) -> None:
    """Answer all requests in this process for each line of standard input; print the seconds."""
    if setting.model:
        loop = build_engine(options_from({"model": setting.model, "kv_cache_memory": KV_MEMORY}))
    else:
        loop = working_loop(setting)
    params = SamplingParams(max_tokens=setting.tokens, ignore_eos=True, temperature=0.0)
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for idx in range(setting.streams):
            name = line.strip()
            loop.submit(Submit(request_id=f"{name}-{idx}", prompt_ids=prompt_of(name, idx), params=params))
        while loop.has_work:
            loop.step()
        print(time.perf_counter() - began, flush=True)


async def be_server(setting: Setting) -> int:
    """Serve on a free port, which is printed when the engine is ready."""
    tokenizer, vocab_size = find_tokenizer(setting.tokenizer)
    engine = EngineClient([sys.executable, __file__, "--engine"], json.dumps(vars(setting)).encode())
    options = ServerOptions(port=0)
    served = replace(tiny_served(), config=replace(tiny_config(max_positions=MAX_MODEL_LEN), vocab_size=vocab_size))
    app = build_app(engine, tokenizer, JoiningTemplate(), options, served)
    with bind_socket(options) as listener:
        port = listener.getsockname()[1]
        found = Found(engine=engine, open=lambda: Opened(app=app, on_ready=lambda: print(port, flush=True)))
        return await serve(lambda: found, listener, options)


def be_client(port: int, setting: Setting, route: str) -> None:
    """Ask `streams` times at once for each line of standard input, read to the ends, print the seconds."""
    buffer = bytearray(1 << 16)
    for line in sys.stdin:
        requests = [request_bytes(setting, route, line.strip(), idx) for idx in range(setting.streams)]
        began = time.perf_counter()
        with selectors.DefaultSelector() as waiting:
            for request in requests:
                connection = socket.create_connection(("127.0.0.1", port))
                connection.sendall(request)
                waiting.register(connection, selectors.EVENT_READ)
            while waiting.get_map():
                for key, _ in waiting.select():
                    if not key.fileobj.recv_into(buffer):  # type: ignore[union-attr]
                        waiting.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        print(time.perf_counter() - began, flush=True)


def request_bytes(setting: Setting, route: str, name: str, idx: int) -> bytes:
    """Write the request for one stream of a round."""
    prompt = prompt_of(name, idx)
    if route == "completions":
        return stream_request(setting.model or "tiny", prompt, setting.tokens)
    body = {
        "model": setting.model or "tiny", "messages": [{"role": "user", "content": f"Tell me of road {name}-{idx}."}],
        "max_tokens": setting.tokens, "ignore_eos": True, "temperature": 0.0, "stream": True,
    }  # fmt: skip
    return post_bytes("/v1/chat/completions", body)


# -- measuring -------------------------------------------------------------------------------------------------------


class Child:
    """One of the processes, asked for a run by a line and answering with one."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  (this file, or our own program)
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.process = psutil.Process(self._process.pid)

    def read(self) -> str:
        """Return the next line that it prints."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError("a process of the benchmark has ended")
        return line.strip()

    def run(self, name: str) -> float:
        """Make it run once; return the seconds."""
        self._process.stdin.write(name + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return float(self.read())

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def start_server(setting: Setting) -> tuple[Child | Served, int]:
    """Start the server; return it and its port when it takes requests."""
    if setting.model:
        served = Served(setting.model, "--kv-cache-memory", KV_MEMORY)
        return served, served.port
    server = Child(__file__, "--server", json.dumps(vars(setting)))
    return server, int(server.read())


def measure(setting: Setting, route: str, rounds: int) -> None:
    """Run rounds of both ways and print the medians."""
    packed = json.dumps(vars(setting))
    alone = Child(__file__, "--alone", packed)
    alone.read()
    server, port = start_server(setting)
    client = Child(__file__, "--client", packed, str(port), route)
    processes = {"server": server.process, "engine": server.process.children()[0], "client": client.process}
    raise_weight(os.getpid())
    count = setting.streams * setting.tokens
    plain: list[float] = []
    over_http: list[float] = []
    others: list[float] = []
    cpu: dict[str, list[float]] = {name: [] for name in ("alone", *processes)}
    try:
        for idx in range(rounds + 1):
            before = cpu_seconds(alone.process)
            plain.append(count / alone.run(f"r{idx}"))
            cpu["alone"].append((cpu_seconds(alone.process) - before) / count * 1e6)
            befores = {name: cpu_seconds(process) for name, process in processes.items()}
            meter = Meter().start()
            over_http.append(count / client.run(f"r{idx}"))
            spent = {name: cpu_seconds(process) - befores[name] for name, process in processes.items()}
            others.append(meter.stop(sum(spent.values())).others)
            for name, own_s in spent.items():
                cpu[name].append(own_s / count * 1e6)
    finally:
        for child in (client, server, alone):
            child.end()
    costs = [100 * (1 - http / own) for own, http in zip(plain[1:], over_http[1:], strict=True)]
    print(f"in one process   {statistics.median(plain[1:]):8.1f} tokens/s")
    print(f"over HTTP        {statistics.median(over_http[1:]):8.1f} tokens/s   cost {statistics.median(costs):.1f} % "
          f"({min(costs):.1f} to {max(costs):.1f})")  # fmt: skip
    print(f"others took      {statistics.median(others[1:]):8.1%} of the processors")
    print("CPU us/token     " + "   ".join(f"{name} {statistics.median(own[1:]):.1f}" for name, own in cpu.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--step-ms", type=float, default=35.0)
    parser.add_argument("--sleep", action="store_true", help="sleep in every step instead of working")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--route", choices=ROUTES, default="completions")
    parser.add_argument("--model", default="", help="model to serve instead of an executor without one")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer to use")
    options = parser.parse_args()
    step_s = options.step_ms / 1e3
    products = 0 if options.sleep or options.model else find_products(options.streams, step_s)
    stream = measure_limits().memory_bytes / 1e9
    what = options.model or f"{products} products"
    print(f"{os.cpu_count()} cores, stream {stream:.1f} GB/s; a step of {options.streams} is {what}")
    setting = Setting(
        streams=options.streams, tokens=options.tokens, products=products, step_s=step_s,
        tokenizer=options.tokenizer, model=options.model,
    )  # fmt: skip
    measure(setting, options.route, options.rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--engine", folder, epoch, parent]:
            sys.exit(be_engine(folder, epoch, parent))
        case ["--alone", packed]:
            be_alone(Setting(**json.loads(packed)))
        case ["--server", packed]:
            sys.exit(asyncio.run(be_server(Setting(**json.loads(packed)))))
        case ["--client", packed, port, route]:
            be_client(int(port), Setting(**json.loads(packed)), route)
        case _:
            main()
