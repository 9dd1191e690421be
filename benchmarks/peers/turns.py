"""One turn: one engine, one variant, one point, measured under the lock, with the machine's state beside it."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers.engines.engine import Engine, Measurement, Program
from benchmarks.peers.machine import Meter, locked, process_tree, raise_weight
from benchmarks.peers.models import BenchModel, one_token_words
from benchmarks.peers.points import Point
from benchmarks.peers.record import Record
from benchmarks.peers.servers import ServerFailedError, Servers
from benchmarks.peers.workdir import JobFailedError, WorkDir, tail

_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What all turns of a run share."""

    work: WorkDir
    model: BenchModel
    lock: Path
    threads: int
    servers: Servers
    recorded: Path | None = None
    """Wheel of the recorded conversations, where a point plays them."""
    limit_s: float = _LIMIT_S
    """A timed command that takes longer is ended, and its turn has failed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Who is measured at what."""

    engine: Engine
    variant: str
    point: Point
    run: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A program that has ended."""

    output: str
    errors: str
    code: int
    processor_s: float
    has_precedence: bool


def take(turn: Turn, place: Place) -> Record:
    """Measure; a failure is a record too."""
    record = Record(
        model=place.model.name,
        point=turn.point.name,
        suite=turn.point.suite,
        engine=turn.engine.name,
        variant=turn.variant,
        version=turn.engine.version() or "",
        run=turn.run,
        when=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    with locked(place.lock):
        measure = _over_http if turn.point.way == "http" else _in_process
        try:
            record = replace(record, stream_gb_per_s=_read_stream(place))
            return measure(turn, place, record)
        except (ServerFailedError, JobFailedError, ValueError, LookupError) as error:
            return replace(record, error=str(error))


def _in_process(turn: Turn, place: Place, record: Record) -> Record:
    program = turn.engine.process(place.model, turn.variant, turn.point)
    record = replace(record, command=shlex.join(program.command))
    meter = Meter().start()
    timed = run_timed(program, place.limit_s)
    shares = meter.stop(timed.processor_s)
    record = replace(record, others_cpu_share=shares.others, has_precedence=timed.has_precedence)
    if timed.code:
        return replace(record, error=f"it ended with {timed.code}: {tail(timed.errors or timed.output)}")
    return _with(record, turn.engine.read(timed.output, turn.point))


def _over_http(turn: Turn, place: Place, record: Record) -> Record:
    engine, point = turn.engine, turn.point
    command: Callable[[int], Program] = lambda port: engine.server(place.model, turn.variant, point, port)  # noqa: E731
    key = shlex.join((engine.name, *command(0).command))
    server, start_s = place.servers.take(key, command, place.work.log(f"{engine.name}-server"))
    seed = time.time_ns() % 2**32
    record = replace(record, command=key, start_s=start_s, seed=seed)
    try:
        meter = Meter().start()
        before_s = server.processor_s()
        timed = run_timed(client_program(place, server.url, point, seed), place.limit_s)
        shares = meter.stop(timed.processor_s + server.processor_s() - before_s)
        record = replace(record, others_cpu_share=shares.others, has_precedence=timed.has_precedence)
    finally:
        place.servers.give_back(key, server, keep=engine.keeps_server)
    if timed.code:
        return replace(record, error=f"the load client ended with {timed.code}: {tail(timed.errors)}")
    told = json.loads(timed.output)
    return replace(record, error=told["error"]) if "error" in told else _with(record, Measurement(**told))


def _read_stream(place: Place) -> float:
    """Read memory as fast as it goes, with the precedence that engines have."""
    program = Program.of(sys.executable, "-m", "benchmarks.peers.stream", "--threads", place.threads)
    return float(run_timed(program, place.limit_s).output)


def client_program(place: Place, url: str, point: Point, seed: int) -> Program:
    """Return the client that loads a server at a point."""
    words = one_token_words(place.work, place.model)
    if point.shape is None:
        return load_program(url, words, point, seed)
    return play_program(url, words, point, seed, model=place.model.gguf, recorded=place.recorded)


def load_program(url: str, words: Path, point: Point, seed: int) -> Program:
    """Return the client of prompts that have nothing in common."""
    return Program.of(
        *(sys.executable, "-m", "benchmarks.peers.load", "--url", url, "--words", words, "--seed", seed),
        *("--concurrency", point.concurrency, "--num-requests", point.num_requests),
        *("--prompt-len", point.prompt_len, "--output-len", point.output_len),
    )


def play_program(
    url: str, words: Path, point: Point, seed: int, *, model: Path, recorded: Path | None = None
) -> Program:
    """Return the client of sessions whose prompts share beginnings."""
    return Program.of(
        *(sys.executable, "-m", "benchmarks.peers.play", "--url", url, "--words", words, "--seed", seed),
        *("--point", point.name, "--model", model),
        *(() if recorded is None else ("--recorded", recorded)),
    )


def run_timed(program: Program, limit_s: float) -> Timed:
    """Run a program in a session of its own that has precedence; one that takes too long is ended with code 124."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(  # noqa: S603
        program.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **program.environ},
    )
    has_precedence = raise_weight(process.pid)
    try:
        output, errors = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        _kill(process)
        output, _ = process.communicate()
        errors, code = f"not done after {limit_s:g} s", 124
    except BaseException:
        _kill(process)
        raise
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(output, errors, code, used_s, has_precedence)


def _kill(process: subprocess.Popen[str]) -> None:
    for pid in process_tree(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _with(record: Record, measurement: Measurement) -> Record:
    return replace(record, tokens_per_s=measurement.tokens_per_s, figures=dict(measurement.figures))
