"""Records and engines for these tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.engine import Measurement, Program
from benchmarks.peers.models import BenchModel
from benchmarks.peers.points import Point
from benchmarks.peers.record import Record

MODEL = BenchModel("tiny", Path("tiny.Q4_1.gguf"))


def record(engine: str, variant: str, tokens_per_s: float | None, **more: Any) -> Record:
    """Make a record at batch 16, unless told otherwise."""
    defaults: dict[str, Any] = {
        "model": "tiny",
        "point": "batch 16",
        "suite": "batch",
        "version": f"{engine} 1",
        "run": 0,
    }
    return Record(engine=engine, variant=variant, tokens_per_s=tokens_per_s, **{**defaults, **more})


class ScriptedEngine:
    """An engine of which only the variants matter."""

    keeps_server = False

    def __init__(self, name: str, variants: Mapping[str, Sequence[str]]) -> None:
        self.name = name
        self._variants = variants

    def install(self) -> None: ...

    def version(self) -> str | None:
        return "1"

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        return self._variants.get(point.name, ())

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None: ...

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        raise NotImplementedError

    def read(self, output: str, point: Point) -> Measurement:
        raise NotImplementedError

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        raise NotImplementedError
