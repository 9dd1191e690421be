"""What the comparison asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.peers.models import BenchModel
from benchmarks.peers.points import Point


@dataclass(frozen=True, slots=True)
class Program:
    """A command, and what it finds in its environment."""

    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, *words: str | Path | int, environ: Mapping[str, str] | None = None) -> Program:
        """Make a program of words that are not texts yet."""
        return cls(tuple(map(str, words)), environ or {})


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one turn measured."""

    tokens_per_s: float
    figures: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """One engine, ours or a peer.

    Invariants:
        `process` and `server` start no program and write no file; `prepare` made what they name.
    """

    name: str
    keeps_server: bool
    """Whether its server starts so slowly that it is stopped (SIGSTOP) between turns rather than ended."""

    def install(self) -> None:
        """Install it, or go on where an installation was interrupted.

        Raises:
            JobFailedError: A step failed.
        """

    def version(self) -> str | None:
        """Return what is installed, or `None`."""

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        """Return the weight formats (or sets of options) to measure at a point; none where it cannot be measured so."""

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None:
        """Make the forms of the model that these variants read.

        Raises:
            JobFailedError: A form cannot be made.
        """

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        """Return the program that measures a point in process."""

    def read(self, output: str, point: Point) -> Measurement:
        """Read what that program wrote to standard output.

        Raises:
            ValueError: It is not a measurement of this point.
        """

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        """Return the program that serves a model on 127.0.0.1."""
