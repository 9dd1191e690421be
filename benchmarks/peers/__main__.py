"""The comparison's command line.

python -m benchmarks.peers install llama-cpp              one peer, into its own folder
python -m benchmarks.peers run --peers llama-cpp          measure it beside Trivium, in interleaved rounds
python -m benchmarks.peers serve llama-cpp                start its server alone; Ctrl-C stops it
python -m benchmarks.peers load http://127.0.0.1:8000     load a server that runs already
python -m benchmarks.peers report RESULTS.jsonl           tables and plot of earlier runs
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import models, promises, record, report, rounds
from benchmarks.peers.engines.engine import Engine
from benchmarks.peers.engines.llama_cpp import LlamaCpp, LlamaCppAvx2
from benchmarks.peers.engines.openvino import OpenVino
from benchmarks.peers.engines.trivium import OwnVariant, Trivium
from benchmarks.peers.engines.vllm import Vllm
from benchmarks.peers.points import PLAIN_SUITES, POINTS, SUITES, Point, choose
from benchmarks.peers.prompts import recorded_wheel
from benchmarks.peers.record import OURS, Record
from benchmarks.peers.servers import ServerFailedError, Servers
from benchmarks.peers.turns import Place, Turn, client_program, take
from benchmarks.peers.workdir import JobFailedError, WorkDir, say
from benchmarks.workloads.shapes import Recorded
from trivium.base.errors import TriviumError
from trivium.weights.store import cache_directory

PEERS = ("llama-cpp", "llama-cpp-avx2", "openvino", "vllm")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parser().parse_args(words)
    try:
        return int(options.command(options))
    except (JobFailedError, ServerFailedError, TriviumError, ValueError, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--work-dir", type=Path, help="where peers, their models and results lie (default: peers/ in Trivium's cache)"
    )
    shared.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="compute threads of every engine")
    shared.add_argument("--python", default=sys.executable, help="interpreter for peers' environments (vLLM: 3.11)")
    shared.add_argument("--jobs", type=int, default=1, help="compilers at the same time, for a peer that is built")
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add_install(commands.add_parser("install", parents=[shared], help="install peers, each in its own folder"))
    _add_prepare(commands.add_parser("prepare", parents=[shared], help="make the forms of a model that peers read"))
    _add_run(commands.add_parser("run", parents=[shared], help="measure engines in interleaved rounds"))
    _add_serve(commands.add_parser("serve", parents=[shared], help="start an engine's server; Ctrl-C stops it"))
    _add_load(commands.add_parser("load", parents=[shared], help="load a server that runs already"))
    _add_report(commands.add_parser("report", parents=[shared], help="tables and plot of earlier runs"))
    return made


def _add_install(made: argparse.ArgumentParser) -> None:
    made.add_argument("peers", nargs="+", choices=PEERS, metavar="PEER", help=", ".join(PEERS))
    made.set_defaults(command=_install)


def _add_prepare(made: argparse.ArgumentParser) -> None:
    made.add_argument("peers", nargs="+", choices=PEERS, metavar="PEER", help=", ".join(PEERS))
    made.add_argument("--model", default="smollm2", help="as for run")
    made.set_defaults(command=_prepare)


def _add_run(made: argparse.ArgumentParser) -> None:
    names = ", ".join(point.name for point in POINTS)
    made.add_argument(
        "--peers", type=_names, default=[OURS, "llama-cpp"], help=f"engines to measure: {OURS}, {', '.join(PEERS)}"
    )
    made.add_argument(
        "--model", default="smollm2", help="catalog name, a name of benchmarks/models.toml, or a .gguf file"
    )
    made.add_argument(
        "--suite",
        type=_list,
        default=list(PLAIN_SUITES),
        help=f"of {', '.join(SUITES)} (default: {', '.join(PLAIN_SUITES)})",
    )
    made.add_argument("--points", type=_list, default=[], help=f"only these, by name or last word: {names}")
    made.add_argument("--rounds", type=int, default=5, help="how often every engine is measured at every point")
    made.add_argument("--formats", type=_list, default=[], help="weight formats of peers to measure (default: all)")
    made.add_argument(
        "--lag",
        type=float,
        default=1.3,
        help="a peer's format this many times slower than its best is not measured again",
    )
    made.add_argument(
        "--trivium-args",
        action="append",
        default=[],
        metavar="[LABEL=]FLAGS",
        help="options of Trivium, e.g. 'int8=--executor native --weights int8'; again for one more variant",
    )
    made.add_argument(
        "--most-others", type=float, default=0.15, help="share of the processors others may take in a run"
    )
    made.add_argument("--retries", type=int, default=1, help="how often a disturbed run is taken again")
    made.add_argument("--limit", type=float, default=600.0, help="longest seconds of one timed command")
    made.add_argument("--lock", type=Path, default=Path(tempfile.gettempdir()) / "trivium-bench.lock", help="lock file")
    made.add_argument("--out", type=Path, help="JSON lines to append to (default: a new file in the work directory)")
    made.set_defaults(command=_run)


def _add_serve(made: argparse.ArgumentParser) -> None:
    made.add_argument("engine", choices=(OURS, *PEERS))
    made.add_argument("--model", default="smollm2")
    made.add_argument("--format", help="weight format (default: the engine's first)")
    made.add_argument("--concurrency", type=int, default=16, help="requests it shall run at the same time")
    made.add_argument("--port", type=int, default=8000)
    made.add_argument("--trivium-args", action="append", default=[], metavar="[LABEL=]FLAGS")
    made.set_defaults(command=_serve)


def _add_load(made: argparse.ArgumentParser) -> None:
    made.add_argument("url", help="base URL, without /v1")
    made.add_argument("--model", default="smollm2", help="the model it serves; says which tokens prompts are made of")
    made.add_argument("--suite", type=_list, default=["online"], help=f"of {', '.join(SUITES)} (default: online)")
    made.add_argument("--points", type=_list, default=[], help="HTTP points by name or last word (default: all)")
    made.set_defaults(command=_load)


def _add_report(made: argparse.ArgumentParser) -> None:
    made.add_argument("results", nargs="+", type=Path, help="JSON lines")
    made.add_argument("--markdown", type=Path, help="file for the tables (default: standard output)")
    made.add_argument("--plot", type=Path, help="file for the plot (.svg, .png, .pdf); needs the bench extra")
    made.add_argument("--judge", action="store_true", help="exit status 1 when a promise is missed or not measured")
    made.add_argument(
        "--most-others", type=float, default=0.15, help="share of the processors others may take in a run"
    )
    made.set_defaults(command=_report)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _names(text: str) -> list[str]:
    return [name for part in _list(text) for name in part.split()]


def _work(options: argparse.Namespace) -> WorkDir:
    return WorkDir((options.work_dir or cache_directory(None) / "peers").expanduser().absolute())


def _engines(options: argparse.Namespace, names: Sequence[str], own: Sequence[str] = ()) -> list[Engine]:
    work, threads, python = _work(options), options.threads, options.python
    own_variants = [OwnVariant.parse(text) for text in own or [""]]
    known: dict[str, Engine] = {
        OURS: Trivium(work, threads=threads, variants=own_variants),
        **{
            kind.name: kind(work, threads=threads, python=python, jobs=options.jobs)
            for kind in (LlamaCpp, LlamaCppAvx2)
        },
        "openvino": OpenVino(work, threads=threads, python=python),
        "vllm": Vllm(work, threads=threads, python=python),
    }
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no engine {unknown[0]!r}; engines: {', '.join(known)}")
    return [known[name] for name in names]


def _installed(engines: list[Engine]) -> list[Engine]:
    if missing := [engine.name for engine in engines if engine.version() is None]:
        raise ValueError(f"{missing[0]} is not installed: python -m benchmarks.peers install {missing[0]}")
    return engines


def _install(options: argparse.Namespace) -> int:
    for engine in _engines(options, options.peers):
        engine.install()
        say(f"{engine.name}: {engine.version()}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    engines = _installed(_engines(options, options.peers))
    model = models.find(options.model)
    for engine in engines:
        engine.prepare(model, list(dict.fromkeys(one for point in POINTS for one in engine.variants(model, point))))
        say(f"{engine.name}: {model.name} is ready")
    return 0


def _run(options: argparse.Namespace) -> int:
    work, engines = _work(options), _installed(_engines(options, options.peers, options.trivium_args))
    points = choose(options.suite, options.points)
    model = models.find(options.model)
    plan = rounds.Plan(
        model=model,
        engines=engines,
        points=points,
        num_rounds=options.rounds,
        formats=options.formats,
        lag=options.lag,
        most_others=options.most_others,
        retries=options.retries,
    )
    models.one_token_words(work, model)
    for engine in engines:
        engine.prepare(model, list(dict.fromkeys(one for point in points for one in plan.variants(engine, point))))
    out = options.out or work.results() / f"{model.name}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    servers = Servers()
    place = Place(
        work=work,
        model=model,
        lock=options.lock,
        threads=options.threads,
        servers=servers,
        recorded=_recorded(work, points, options.python),
        limit_s=options.limit,
    )
    records: list[Record] = []

    def take_and_keep(turn: Turn) -> Record:
        made = take(turn, place)
        record.append(out, made)
        say(_line(made))
        return made

    try:
        records += rounds.run(plan, take_and_keep)
    finally:
        servers.close()
        say(f"raw lines: {out}")
    print(report.to_markdown(records, options.most_others), end="")
    return 0


def _recorded(work: WorkDir, points: Sequence[Point], python: str) -> Path | None:
    return recorded_wheel(work, python) if any(isinstance(point.shape, Recorded) for point in points) else None


def _line(made: Record) -> str:
    told = f"{made.tokens_per_s:8.1f} tok/s" if made.tokens_per_s is not None else f"failed: {made.error}"
    state = f"stream {made.stream_gb_per_s or 0:.1f} GB/s, others {made.others_cpu_share or 0:.0%}"
    return f"round {made.run}  {made.point:16} {made.engine:10} {made.variant:8} {told}   ({state})"


def _serve(options: argparse.Namespace) -> int:
    [engine] = _installed(_engines(options, [options.engine], options.trivium_args))
    model = models.find(options.model)
    point = replace(
        next(point for point in POINTS if point.suite == "online"),
        concurrency=options.concurrency,
        prompt_len=max(point.prompt_len for point in POINTS if point.shape is None),
        output_len=max(point.output_len for point in POINTS if point.shape is None),
    )
    variant = options.format or engine.variants(model, point)[0]
    if variant not in engine.variants(model, point):
        raise ValueError(f"{engine.name} has no {variant!r}; formats: {', '.join(engine.variants(model, point))}")
    engine.prepare(model, [variant])
    program = engine.server(model, variant, point, options.port)
    say(" ".join(program.command))
    process = subprocess.Popen(program.command, env={**os.environ, **program.environ})  # noqa: S603
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()


def _load(options: argparse.Namespace) -> int:
    work, model = _work(options), models.find(options.model)
    points = [point for point in choose(options.suite, options.points) if point.way == "http"]
    place = Place(
        work=work,
        model=model,
        lock=Path(os.devnull),
        threads=options.threads,
        servers=Servers(),
        recorded=_recorded(work, points, options.python),
    )
    for point in points:
        say(point.name)
        program = client_program(place, options.url, point, time.time_ns() % 2**32)
        subprocess.run(program.command, check=True)  # noqa: S603
    return 0


def _report(options: argparse.Namespace) -> int:
    records = record.read(options.results)
    text = report.to_markdown(records, options.most_others)
    if options.markdown is None:
        print(text, end="")
    else:
        options.markdown.write_text(text, encoding="utf-8")
    if options.plot is not None:
        report.plot(records, options.most_others, options.plot)
    return 0 if not options.judge or promises.are_kept(records, options.most_others) else 1


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # what was started is ended, whichever comes
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
