"""Trivium itself: in process by a child that uses `LLM`, over HTTP by `trivium serve`.

A variant is a label and the options that go with it, `LABEL=--flag value ...`, so that several precisions or executors
stand beside each other.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trivium
from benchmarks.peers.engines.engine import Measurement, Program
from benchmarks.peers.models import BenchModel, one_token_words
from benchmarks.peers.points import Point
from benchmarks.peers.record import OURS
from benchmarks.peers.workdir import WorkDir
from trivium.config.options import EngineOptions
from trivium.config.record import options_of

Flags = Mapping[str, str | bool]
_LEAST_SEATS = 64


@dataclass(frozen=True, slots=True)
class OwnVariant:
    """A label and its options."""

    label: str
    flags: Flags

    @classmethod
    def parse(cls, text: str) -> OwnVariant:
        """Read `LABEL=--flag value --switch --no-switch`, or the same without a label.

        Raises:
            ValueError: A flag is not an option of the engine, or lacks its value.
        """
        label, words = split_label(text)
        return cls(label, read_flags(words))


def split_label(text: str) -> tuple[str, list[str]]:
    """Split `LABEL=--flag value` into label and words; without a label the flags are it, or `default` when none are."""
    label, separator, rest = text.partition("=")
    if not separator or label.lstrip().startswith("--"):
        label, rest = text.strip() or "default", text
    return label, shlex.split(rest)


def read_flags(words: Sequence[str]) -> dict[str, str | bool]:
    """Read flags of the engine's options into texts and switches by option name.

    Raises:
        ValueError: A flag is not an option of the engine, or lacks its value.
    """
    options = {option.flag: option for option in options_of(EngineOptions)}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    flags: dict[str, str | bool] = {}
    while rest:
        flag = rest.pop(0)
        option = options.get(flag) or options.get(flag.replace("--no-", "--", 1))
        if option is None:
            raise ValueError(f"{flag!r} is not an option of the engine")
        if option.kind is bool:
            flags[option.name] = not flag.startswith("--no-")
        elif flag not in options or not rest:
            raise ValueError(f"{flag!r} lacks its value")
        else:
            flags[option.name] = rest.pop(0)
    return flags


class Trivium:
    """This engine, from the environment that runs the comparison."""

    name = OURS
    keeps_server = False

    def __init__(self, work: WorkDir, *, threads: int, variants: Sequence[OwnVariant]) -> None:
        """Take over the work directory, compute threads, and the sets of options to measure."""
        self._work = work
        self._threads = threads
        self._variants = {variant.label: variant for variant in variants}

    def install(self) -> None:
        """Nothing to do: the comparison runs in its environment."""

    def version(self) -> str | None:
        """Return our version."""
        return f"trivium {trivium.__version__}"

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        """Return the labels."""
        return tuple(self._variants)

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None:
        """List the words that prompts are made of; the model needs no other form."""
        one_token_words(self._work, model)

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        """Return the child that uses `LLM`."""
        return Program.of(
            *(sys.executable, "-m", "benchmarks.peers.engines.trivium_process"),
            *("--words", one_token_words(self._work, model), "--flags", json.dumps(self._flags(model, variant, point))),
            *("--concurrency", point.concurrency, "--prompt-len", point.prompt_len),
            *("--output-len", point.output_len, "--repeats", point.repeats),
        )

    def read(self, output: str, point: Point) -> Measurement:
        """Read the child's JSON."""
        return Measurement(**json.loads(output))

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        """Return `trivium serve`."""
        words: list[str] = []
        for name, value in self._flags(model, variant, point).items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                words.append(flag if value else flag.replace("--", "--no-", 1))
            elif name != "model":
                words += [flag, value]
        return Program.of(sys.executable, "-m", "trivium", "serve", model.gguf, "--port", port, *words)

    def _flags(self, model: BenchModel, variant: str, point: Point) -> Flags:
        seats = max(_LEAST_SEATS, point.concurrency)
        defaults: Flags = {
            "model": str(model.gguf),
            "offline": True,
            "threads": str(self._threads),
            "max_num_seqs": str(seats),
            "log_level": "warning",
        }
        return {**defaults, **self._variants[variant].flags}
