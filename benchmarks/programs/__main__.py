"""Programs as loads: what sharing saves, and the same programs on other servers.

    python -m benchmarks.programs                                        in this process, with and without sharing
    python -m benchmarks.programs --ways in-process,over-http,openvino,vllm --rounds 3
    python -m benchmarks.programs --loads react,rag --ways in-process,no-sharing
    python -m benchmarks.programs --report RESULTS.jsonl                 tables of earlier runs

Ways: in-process (`LLM`), no-sharing (the same without a prefix cache), over-http (`trivium serve`), and the peers that
`python -m benchmarks.peers install` brings. Each load is run in every way before the next one. Prints tables; --out
appends every run as a line of JSON. Exit status 1 when less than 99 % of what could be found in this process was found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers import models
from benchmarks.peers.engines.engine import Engine
from benchmarks.peers.engines.llama_cpp import LlamaCpp
from benchmarks.peers.engines.openvino import OpenVino
from benchmarks.peers.engines.trivium import OwnVariant, Trivium
from benchmarks.peers.engines.vllm import Vllm
from benchmarks.peers.machine import raise_weight
from benchmarks.peers.prompts import read_ids
from benchmarks.peers.servers import Servers
from benchmarks.peers.workdir import WorkDir
from benchmarks.programs.loads import LOADS
from benchmarks.programs.report import tables
from benchmarks.programs.ways import IN_PROCESS, NO_SHARING, POINT, InProcess, Result, Served, Way, run
from trivium.weights.store import cache_directory

PEERS = ("llama-cpp", "openvino", "vllm")
WAYS = (IN_PROCESS, NO_SHARING, "over-http", *PEERS)
LEAST_SHARE = 0.99


def main() -> int:
    """Run and print; returns the exit status."""
    options = _parse()
    if options.report:
        print(tables([Result(**json.loads(line)) for path in options.report for line in path.read_text().splitlines()]))
        return 0
    work = WorkDir(options.work_dir or cache_directory(None) / "peers")
    model = models.find(options.model)
    words = read_ids(models.one_token_words(work, model))
    raise_weight(os.getpid())
    results: list[Result] = []
    with _opened(options, model, work) as ways:
        for round_idx in range(options.rounds):
            for name in options.loads:
                for way in (*ways[round_idx % len(ways) :], *ways[: round_idx % len(ways)]):
                    result = run(name, way, words, time.time_ns() % 2**32, is_small=options.small)
                    results.append(result)
                    _tell(result, options.out)
    print(tables(results))
    return int(not all(_is_good(result) for result in results if result.way == IN_PROCESS))


def _is_good(result: Result) -> bool:
    return (
        result.error is None and result.counts["cached_tokens"] >= LEAST_SHARE * result.counts["reusable_tokens"]
    )  # fmt: skip


@contextmanager
def _opened(options: argparse.Namespace, model: models.BenchModel, work: WorkDir) -> Iterator[Sequence[Way]]:
    """Open every way; what was opened is closed."""
    servers, ways = Servers(), []
    try:
        for name in options.ways:
            if name in {IN_PROCESS, NO_SHARING}:
                ways.append(InProcess(model, options.threads, is_sharing=name == IN_PROCESS))
                continue
            engine = _engine(name, work, options)
            variant = engine.variants(model, POINT)[0]
            engine.prepare(model, [variant])
            ways.append(Served(engine, variant, model, work, servers))
        yield ways
    finally:
        servers.close()
        for way in ways:
            way.close()


def _engine(name: str, work: WorkDir, options: argparse.Namespace) -> Engine:
    made = {
        "over-http": lambda: Trivium(work, threads=options.threads, variants=[OwnVariant("own", {})]),
        "llama-cpp": lambda: LlamaCpp(work, threads=options.threads, python=sys.executable, jobs=1),
        "openvino": lambda: OpenVino(work, threads=options.threads, python=sys.executable),
        "vllm": lambda: Vllm(work, threads=options.threads, python=sys.executable),
    }
    return made[name]()


def _tell(result: Result, out: Path | None) -> None:
    line = json.dumps(asdict(result))
    print(line, file=sys.stderr, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _parse() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--loads", type=_names(LOADS), default=list(LOADS), help=", ".join(LOADS))
    made.add_argument("--ways", type=_names(WAYS), default=[IN_PROCESS, NO_SHARING], help=", ".join(WAYS))
    made.add_argument("--model", default="smollm2", help="catalog name, a name of models.toml, or a .gguf file")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--small", action="store_true", help="the sizes that tests run, to see that everything works")
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="compute threads of every engine")
    made.add_argument("--work-dir", type=Path, help="where peers lie (default: peers/ in Trivium's cache)")
    made.add_argument("--report", type=Path, nargs="+", help="run nothing; print the tables of these files")
    made.add_argument("--out", type=Path, help="JSON lines to append to")
    return made.parse_args()


def _names(known: Sequence[str]) -> type[list[str]]:
    class Names(list[str]):
        """A list of names, parsed."""

        def __init__(self, text: str) -> None:
            super().__init__(text.split(","))
            if unknown := [name for name in self if name not in known]:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")

    return Names


if __name__ == "__main__":
    sys.exit(main())
