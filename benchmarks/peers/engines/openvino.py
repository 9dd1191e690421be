"""OpenVINO GenAI: weights in int8, its continuous batching behind a small server of ours.

Its own model server does not come as a package of the Python registry, so `openvino_front` puts OpenAI's completions
before its pipeline; that costs little beside a step of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.engines.engine import Measurement, Program
from benchmarks.peers.models import BenchModel, as_huggingface
from benchmarks.peers.points import Point
from benchmarks.peers.workdir import JobFailedError, WorkDir

TORCH = "torch==2.13.0"
PACKAGES = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0")
FORMATS = ("int8",)
_SEATS = 128
_KV_GB = 4
_FRONT = Path(__file__).parent.parent / "foreign" / "openvino_front.py"
_BROKEN = "torchvision"  # optional, and what optimum brings does not import beside TORCH


class OpenVino:
    """OpenVINO GenAI on this machine."""

    name = "openvino"
    keeps_server = False

    def __init__(self, work: WorkDir, *, threads: int, python: str) -> None:
        """Take over where it lies, its threads, and the interpreter its environment is made with."""
        self._work = work
        self._threads = threads
        self._python = python

    def install(self) -> None:
        """Install the packages in an environment of their own."""
        own = self._work.make_venv(self.name, self._python)
        self._work.pip_install(self.name, TORCH)
        self._work.pip_install(self.name, TORCH, *PACKAGES, "gguf", "accelerate", "aiohttp")
        self._work.run(self.name, [own, "-m", "pip", "uninstall", "--yes", _BROKEN])
        self._work.run(self.name, [own, "-c", "import openvino_genai, optimum.intel"])
        self._work.mark_installed(self.name, PACKAGES[0].replace("==", " "))

    def version(self) -> str | None:
        """Return the version of GenAI."""
        return self._work.installed(self.name)

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        """Return int8, over HTTP."""
        return FORMATS if point.way == "http" else ()

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None:
        """Export the model, quantizing its weights."""
        checkpoint = as_huggingface(self._work, model, self.name)
        for variant in variants:
            target = self._file(model, variant)
            if not (target / "openvino_model.bin").is_file():
                optimum = self._work.python(self.name).with_name("optimum-cli")
                words = ("export", "openvino", "-m", checkpoint, "--task", "text-generation-with-past")
                self._work.run(self.name, [optimum, *words, "--weight-format", variant, target])

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        """Not offered."""
        raise JobFailedError(f"{self.name} is measured over HTTP only")

    def read(self, output: str, point: Point) -> Measurement:
        """Not offered."""
        raise ValueError(f"{self.name} is measured over HTTP only")

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        """Return our front over its pipeline."""
        checkpoint = as_huggingface(self._work, model, self.name)
        return Program.of(
            *(self._work.python(self.name), _FRONT, "--model", self._file(model, variant)),
            *("--tokenizer", checkpoint / "tokenizer.json", "--threads", self._threads, "--port", port),
            *("--max-num-seqs", _SEATS, "--kv-gb", _KV_GB),
        )

    def _file(self, model: BenchModel, variant: str) -> Path:
        return self._work.model(model.name) / f"openvino-{variant}"
