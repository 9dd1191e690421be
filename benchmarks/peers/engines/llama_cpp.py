"""llama.cpp: built from the copy that the source package of llama-cpp-python carries, for this very processor.

In process by its own tools, llama-bench (decode, prefill) and llama-batched-bench (many sequences), which draw no token
from the logits; over HTTP by llama-server. Weights in the model's own format and requantized to others: which is
fastest differs from point to point.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.engine import Measurement, Program
from benchmarks.peers.models import BenchModel
from benchmarks.peers.points import Point
from benchmarks.peers.workdir import JobFailedError, WorkDir

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
FORMATS = ("Q4_0", "Q8_0", "BF16")
_TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
_SWITCHES = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
_SLACK = 8  # tokens a sequence, over what the point needs
# Where prompts share beginnings: chunks of a slot's last prompt are shifted to where they fit again, and prompts that
# lost their slot stay in memory beside the slots' own.
_REUSE = ("--cache-reuse", 64, "--cache-ram", 4096)


class LlamaCpp:
    """llama.cpp on this machine."""

    name = "llama-cpp"
    keeps_server = False
    level: tuple[str, ...] = ("-DGGML_NATIVE=ON",)  # instructions that it may use

    def __init__(self, work: WorkDir, *, threads: int, python: str, jobs: int) -> None:
        """Take over where it lies and how it is used.

        Args:
            work: Where it is, or will be.
            threads: Compute threads.
            python: Interpreter whose pip fetches the source.
            jobs: Compilers at the same time.
        """
        self._work = work
        self._threads = threads
        self._python = python
        self._jobs = jobs
        self._home = work.peer(self.name)

    def install(self) -> None:
        """Fetch the source and build the tools."""
        source = self._work.peer(LlamaCpp.name) / "source"  # one for all builds of it
        if not (source / "CMakeLists.txt").is_file():
            self._fetch(source)
        build = self._home / "build"
        vendored = source / "vendor" / "llama.cpp"
        self._work.run(self.name, ["cmake", "-S", vendored, "-B", build, *_SWITCHES, *self.level])
        self._work.run(self.name, ["cmake", "--build", build, "--parallel", str(self._jobs), "--target", *_TOOLS])
        self._work.mark_installed(self.name, f"llama.cpp of {PACKAGE} {VERSION}")

    def version(self) -> str | None:
        """Return which package the source came from."""
        return self._work.installed(self.name)

    def variants(self, model: BenchModel, point: Point) -> Sequence[str]:
        """Return the file's own format, and those it is requantized to."""
        return tuple(dict.fromkeys((model.own_format, *FORMATS)))

    def prepare(self, model: BenchModel, variants: Sequence[str]) -> None:
        """Requantize the model."""
        for variant in variants:
            path = self._file(model, variant)
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished")
                quantize: list[str | Path] = [
                    self._tool("llama-quantize"),
                    "--allow-requantize",
                    model.gguf,
                    unfinished,
                    variant,
                ]
                self._work.run(self.name, quantize)
                unfinished.replace(path)

    def process(self, model: BenchModel, variant: str, point: Point) -> Program:
        """Return a bench tool at this point."""
        path = self._file(model, variant)
        if point.suite == "batch":
            return self._batched_bench(path, point)
        return Program.of(
            self._tool("llama-bench"),
            *("-m", path, "-t", self._threads, "-r", point.repeats, "-o", "jsonl"),
            *(("-p", point.prompt_len, "-n", 0) if point.is_prefill else ("-p", 0, "-n", point.output_len)),
        )

    def read(self, output: str, point: Point) -> Measurement:
        """Read the tool's JSON lines."""
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if point.suite == "batch":
            return read_batched_bench(lines, point)
        return read_bench(lines, point)

    def server(self, model: BenchModel, variant: str, point: Point, port: int) -> Program:
        """Return llama-server with as many slots as there are requests at a time."""
        slots = point.concurrency
        return Program.of(
            self._tool("llama-server"),
            *("-m", self._file(model, variant), "-t", self._threads, "-tb", self._threads, "-np", slots),
            *("-c", slots * (point.context_len + _SLACK), "--host", "127.0.0.1", "--port", port, "--no-ui"),
            *(() if point.shape is None else _REUSE),
        )

    def _fetch(self, source: Path) -> None:
        download = source.parent / "download"
        download.mkdir(parents=True, exist_ok=True)
        pip: list[str | Path] = [
            self._python,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            PACKAGE,
            "-d",
            download,
        ]
        self._work.run(self.name, [*pip, f"{PACKAGE}=={VERSION}"])
        [archive] = download.glob("*.tar.gz")
        unpacked = source.parent / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)  # of an interrupted attempt
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        [folder] = unpacked.iterdir()
        folder.replace(source)

    def _batched_bench(self, path: Path, point: Point) -> Program:
        return Program.of(
            self._tool("llama-batched-bench"),
            *("-m", path, "-t", self._threads, "-tb", self._threads, "--output-format", "jsonl"),
            *("-c", point.concurrency * (point.context_len + _SLACK), "-b", 2048, "-ub", 512),
            *("-npp", point.prompt_len, "-ntg", point.output_len),
            *("-npl", ",".join([str(point.concurrency)] * point.repeats)),
        )

    def _tool(self, name: str) -> Path:
        path = self._home / "build" / "bin" / name
        if not os.access(path, os.X_OK):
            raise JobFailedError(f"there is no {path}; run install {self.name}")
        return path

    def _file(self, model: BenchModel, variant: str) -> Path:
        if variant == model.own_format:
            return model.gguf
        return self._work.model(model.name) / f"{variant}.gguf"


class LlamaCppAvx2(LlamaCpp):
    """llama.cpp as a processor with AVX2 and no AVX-512 runs it; to be compared under ``TRIVIUM_ISA=avx2``."""

    name = "llama-cpp-avx2"
    level = (
        "-DGGML_NATIVE=OFF",
        "-DGGML_AVX512=OFF",
        *(f"-DGGML_{extension}=ON" for extension in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")),
    )


def read_bench(lines: Sequence[dict[str, Any]], point: Point) -> Measurement:
    """Read llama-bench's line: tokens per second of each repetition.

    Raises:
        ValueError: It tells of another test.
    """
    wanted = (point.prompt_len, 0) if point.is_prefill else (0, point.output_len)
    if len(lines) != 1 or (lines[0]["n_prompt"], lines[0]["n_gen"]) != wanted:
        raise ValueError(f"llama-bench was asked for (prompt, tokens) {wanted} and told of {lines}")
    return Measurement(statistics.median(lines[0]["samples_ts"]))


def read_batched_bench(lines: Sequence[dict[str, Any]], point: Point) -> Measurement:
    """Read llama-batched-bench's lines, one per repetition.

    Raises:
        ValueError: They tell of other batches; it leaves out those that do not fit its context.
    """
    sizes = [(line["pp"], line["tg"], line["pl"]) for line in lines]
    wanted = (point.prompt_len, point.output_len, point.concurrency)
    if sizes != [wanted] * point.repeats:
        raise ValueError(f"llama-batched-bench was asked for {point.repeats} times {wanted} and told of {sizes}")
    num_tokens = point.concurrency * point.output_len
    return Measurement(
        statistics.median(num_tokens / (line["t_pp"] + line["t_tg"]) for line in lines),
        {
            "decode_tokens_per_s": statistics.median(line["speed_tg"] for line in lines),
            "prefill_tokens_per_s": statistics.median(line["speed_pp"] for line in lines),
        },
    )
