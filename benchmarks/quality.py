"""What precision costs: a fixed text scored in every format of weights and KV, beside float32.

    python benchmarks/quality.py [MODEL] [--weights auto,int8] [--kv bf16,int8]
                                 [--text FILE] [--windows N] [--float32 NAME,NAME]

MODEL is a name of the catalog or of models.toml, a .gguf file, or a directory in Hugging Face layout. The text is cut
into windows of 512 tokens, each read from an empty context, and the logits of every position are compared with those
of the reference executor, which computes the dequantized checkpoint op by op in float32.

`--float32 mlp.down_proj,lm_head` keeps weights whose names contain one of these in float32, and so what they multiply:
what is better then is what these products cost.

Prints a Markdown table. The exit status is 1 where a promise of `PROMISES` is not kept, 2 where nothing was measured.

    ratio      perplexity by float32's, with the standard error that a text of this length leaves
    KL         mean over positions of KL(float32 || format), in nats
    top-1      share of positions at which both find the same token most likely
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.assembly.choice import native_obstacle
from trivium.assembly.model import load_tokenizer, open_model, silent
from trivium.assembly.native import NativeParts
from trivium.assembly.reference import ReferenceParts
from trivium.base.errors import ConfigError, TriviumError
from trivium.base.intmath import ceil_div
from trivium.config.options import CacheOptions, EngineOptions, ExecutorOptions, ModelOptions, ScheduleOptions
from trivium.runtime.rehearsal import text_steps
from trivium.weights.catalog import read_models
from trivium.weights.fetch import fetch_packages
from trivium.weights.store import cache_directory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.assembly.choice import ExecutorParts
    from trivium.runtime.native import NativeExecutor
    from trivium.runtime.reference import ReferenceExecutor

    Scored = NativeExecutor | ReferenceExecutor
    Floats = NDArray[np.float64]
    Logits = NDArray[np.float32]

WINDOW = 512
"""Most tokens that are read from one empty context."""
WEIGHTS = ("auto", "f32", "bf16", "int8", "int8/64", "int4")
"""As `--weights` says it; `/64`: with `--activation-group 64`."""
KV = ("bf16", "f32", "int8")
TEXT = Path(__file__).parent / "quality" / "text.txt"
_MODELS = Path(__file__).parent / "models.toml"
_BLOCK = 1 << 18  # logits that are compared at a time: in float64 they stay in cache
HEADER = """\
| weights | KV | weight bytes | perplexity | ratio to float32 | mean KL | top-1 | promise |
|---|---|---|---|---|---|---|---|"""


# ------------------------------------------------------------------------------------------------------- measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a format makes of a text, beside float32: one entry per scored position."""

    surprise: Floats
    """-log p(next token), nats."""
    expected: Floats
    """The same in float32."""
    divergence: Floats
    """KL(float32 || format), nats."""
    agrees: NDArray[np.bool_]
    """Whether both find the same token most likely."""

    @property
    def perplexity(self) -> float:
        """Of the format."""
        return float(np.exp(self.surprise.mean()))

    @property
    def ratio(self) -> float:
        """Perplexity by float32's."""
        return float(np.exp(self.excess.mean()))

    @property
    def ratio_error(self) -> float:
        """Standard error of the ratio, positions taken as independent."""
        return self.ratio * float(self.excess.std(ddof=1)) / len(self.excess) ** 0.5

    @property
    def excess(self) -> Floats:
        """By how much the format is more surprised, nats."""
        return self.surprise - self.expected

    @property
    def mean_divergence(self) -> float:
        """Mean KL(float32 || format), nats."""
        return float(self.divergence.mean())

    @property
    def agreement(self) -> float:
        """Share of positions where the most likely tokens agree."""
        return float(self.agrees.mean())


def log_softmax(logits: Logits) -> Floats:
    """Return log probabilities [R, V] of logits [R, V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def compare(found: Logits, expected: Logits, next_ids: NDArray[np.integer[Any]]) -> Scores:
    """Compare logits position by position.

    Args:
        found: [R, V] of a format.
        expected: [R, V] of float32.
        next_ids: [R] the token that the text goes on with after each row.
    """
    blocks, size = [], max(1, _BLOCK // found.shape[1])
    for start in range(0, len(next_ids), size):
        rows = slice(start, start + size)
        log_q, log_p = log_softmax(found[rows]), log_softmax(expected[rows])
        ids = np.asarray(next_ids[rows])[:, None]
        blocks.append(
            Scores(
                surprise=-np.take_along_axis(log_q, ids, axis=1)[:, 0],
                expected=-np.take_along_axis(log_p, ids, axis=1)[:, 0],
                divergence=np.sum(np.exp(log_p) * (log_p - log_q), axis=1),
                agrees=found[rows].argmax(axis=1) == expected[rows].argmax(axis=1),
            )
        )
    return join(blocks)


def join(parts: Sequence[Scores]) -> Scores:
    """Put scores of consecutive positions together."""
    columns = {each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Scores)}
    return Scores(**columns)


# ------------------------------------------------------------------------------------------------------- promises


@dataclass(frozen=True, slots=True)
class Promise:
    """What a format keeps."""

    off: float
    """Most by which the perplexity's ratio may differ from 1."""
    divergence: float = np.inf
    """Most of the mean KL, nats."""
    agreement: float = 0.0
    """Least share of equal most likely tokens."""

    def missed(self, scores: Scores) -> list[str]:
        """Return what is not kept, each with its value and its limit."""
        off = abs(scores.ratio - 1)
        checks = (
            (off <= self.off, f"ratio off by {off:.3%}, at most {self.off:.2%}"),
            (scores.mean_divergence <= self.divergence, f"KL {scores.mean_divergence:.5f}, at most {self.divergence}"),
            (scores.agreement >= self.agreement, f"top-1 {scores.agreement:.2%}, at least {self.agreement:.0%}"),
        )
        return [text for is_kept, text in checks if not is_kept]


PROMISES: Mapping[str, Promise] = {
    "f32": Promise(0.0001),
    "bf16": Promise(0.001),
    "own": Promise(0.005, divergence=0.005, agreement=0.95),
    "int8": Promise(0.01, agreement=0.94),
}
"""By format of the weights, with KV in bf16 or f32; `own` is a checkpoint that is itself quantized, kept as it is."""


def promise_of(weights: str, kv: str, formats: set[str]) -> Promise | None:
    """Return what holds for a run, if anything does.

    Args:
        weights: As `--weights` says it.
        kv: As `--kv-cache-dtype` says it.
        formats: Formats in which matrices are stored: of `auto` they decide.
    """
    if kv not in {"bf16", "f32"}:
        return None
    if weights != "auto":
        name = weights
    elif formats <= {"f32", "bf16"}:
        name = max(formats, key=("f32", "bf16").index)
    else:
        name = "own"
    if name == "f32" and kv == "bf16":
        name = "bf16"
    return PROMISES.get(name)


# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table."""

    weights: str
    kv: str
    weight_bytes: int
    scores: Scores
    promise: Promise | None

    @property
    def missed(self) -> list[str]:
        """What is not kept of what is promised."""
        return [] if self.promise is None else self.promise.missed(self.scores)

    def __str__(self) -> str:
        """Write it in Markdown."""
        scores = self.scores
        kept = "none" if self.promise is None else "; ".join(self.missed) or "kept"
        return (
            f"| {self.weights} | {self.kv} | {self.weight_bytes / 1e6:.0f} MB | {scores.perplexity:.4f} "
            f"| {scores.ratio:.5f} ± {scores.ratio_error:.5f} | {scores.mean_divergence:.6f} "
            f"| {scores.agreement:.2%} | {kept} |"
        )


class Text:
    """A text as windows of a model's tokens, and float32's logits of them."""

    def __init__(self, model: str, text: str, num_windows: int | None = None) -> None:
        """Cut the text and score it in float32.

        Args:
            model: As `ModelOptions.model`.
            text: What is scored.
            num_windows: How many windows to take, spread evenly over the text; by default all.

        Raises:
            ValueError: The text is too short to be scored, or there are fewer windows.
            TriviumError: The model cannot be found, understood, or run here.
        """
        schedule = ScheduleOptions(max_num_seqs=WINDOW, max_num_batched_tokens=WINDOW)
        self.options = EngineOptions(model=ModelOptions(model=model), schedule=schedule)
        if (obstacle := native_obstacle(self.options)) is not None:
            raise ConfigError(f"quality is measured of the native executor, which cannot run: {obstacle}")
        self.model = open_model(self.options)
        tokenizer = load_tokenizer(self.options, self.model)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        self.windows = spread(cut(tokens, tokenizer.special.prefix), num_windows)
        with _made(ReferenceParts(self.options, self.model)) as found:
            self.expected = [np.array(logits) for logits in self.logits(found)]

    @property
    def num_scored(self) -> int:
        """Positions that are scored: all but each window's last."""
        return sum(len(window) - 1 for window in self.windows)

    def logits(self, executor: Scored) -> Iterator[Logits]:
        """Read the windows and yield the logits of each, [tokens, V], valid until the next."""
        for window in self.windows:
            (step,) = text_steps(window, executor.kv_spec, num_alone=0)
            executor.forward(step)
            yield executor.logits

    def score(self, executor: Scored) -> Scores:
        """Compare an executor's logits with float32's."""
        parts = zip(self.logits(executor), self.expected, self.windows, strict=True)
        return join([compare(found[:-1], expected[:-1], np.array(window[1:])) for found, expected, window in parts])

    def measure(self, weights: Sequence[str], kv: Sequence[str], finer: Sequence[str] = ()) -> Iterator[Row]:
        """Measure each format of weights with each of KV.

        Args:
            weights: As `--weights` says it; `/64` behind it for activations in groups of 64.
            kv: As `--kv-cache-dtype` says it.
            finer: Weights whose names contain one of these are float32; then nothing is promised.
        """
        for choice in weights:
            with tempfile.TemporaryDirectory(prefix="trivium-quality-") as cache:  # shared by the KV formats
                for dtype in kv:
                    yield self._measure(choice, dtype, finer, Path(cache))

    def _measure(self, weights: str, kv: Any, finer: Sequence[str], cache: Path) -> Row:
        choice: Any
        choice, _, group = weights.partition("/")
        options = replace(
            self.options,
            model=replace(self.options.model, cache_dir=cache),
            executor=ExecutorOptions(weights=choice, activation_group="64" if group else "32"),
            cache=CacheOptions(kv_cache_dtype=kv),
        )
        parts = NativeParts(options, self.model)
        own = set(parts.formats.values())
        hits = [name for name in parts.formats if any(part in name for part in finer)]
        parts.formats |= dict.fromkeys(hits, "f32")
        with _made(parts) as executor:
            return Row(
                weights=_label(weights, parts.arithmetic, finer),
                kv=kv,
                weight_bytes=executor.weight_bytes,
                scores=self.score(executor),
                promise=None if finer else promise_of(weights, kv, own),
            )


def _label(weights: str, arithmetic: str, finer: Sequence[str]) -> str:
    formats = f"{weights} ({arithmetic})" if weights == "auto" else weights
    return f"{formats}, {' and '.join(finer)} in f32" if finer else formats


def cut(tokens: Sequence[int], prefix: Sequence[int], size: int = WINDOW) -> list[list[int]]:
    """Cut tokens into windows of at most `size`, each beginning with `prefix`; a last one that scores nothing goes."""
    step = size - len(prefix)
    windows = [[*prefix, *tokens[start : start + step]] for start in range(0, len(tokens), step)]
    return [window for window in windows if len(window) > max(len(prefix), 1)]


def spread(windows: Sequence[list[int]], count: int | None) -> list[list[int]]:
    """Choose `count` windows at even distances, or all.

    Raises:
        ValueError: There are fewer, or none at all.
    """
    if count is None:
        count = max(len(windows), 1)
    if not 1 <= count <= len(windows):
        raise ValueError(f"{count} windows are wanted; the text has {len(windows)}, each of up to {WINDOW} tokens")
    return [windows[place * len(windows) // count] for place in range(count)]


@contextmanager
def _made(parts: ExecutorParts) -> Iterator[Any]:
    """Make an executor with pages for a window, and close it afterwards."""
    executor = parts.make((ceil_div(WINDOW, parts.kv_spec.page_len),) * len(parts.kv_spec.groups), silent)
    try:
        yield executor
    finally:
        executor.close()


def find(name: str) -> str:
    """Return what the model option takes: a name of models.toml becomes its file, fetched where it is not here."""
    known = read_models(_MODELS)
    return str(fetch_packages(known[name], cache_directory(None))) if name in known else name


def some_of(known: Sequence[str], text: str) -> list[str]:
    """Read names with commas between.

    Raises:
        argparse.ArgumentTypeError: One is not known.
    """
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


def main() -> int:
    """Measure, print, and judge."""
    reader = argparse.ArgumentParser(description="What precision costs, beside float32.")
    reader.add_argument("model", nargs="?", default="smollm2", metavar="MODEL")
    for name, known in (("--weights", WEIGHTS), ("--kv", KV)):
        reader.add_argument(name, type=partial(some_of, known), default=known, help=f"of {','.join(known)} (all)")
    reader.add_argument("--text", type=Path, default=TEXT, help="file of text to score (the committed one)")
    reader.add_argument("--windows", type=int, help="how many of its windows, spread evenly over it (all)")
    reader.add_argument("--float32", type=lambda text: text.split(","), default=[], help="weights to keep in float32")
    asked = reader.parse_args()
    try:
        text = Text(find(asked.model), asked.text.read_text("utf-8"), asked.windows)
        print(f"{text.model.name}: {text.num_scored} positions in {len(text.windows)} windows of {WINDOW}\n\n{HEADER}")
        missed = 0
        for row in text.measure(asked.weights, asked.kv, asked.float32):
            print(row, flush=True)
            missed += bool(row.missed)
    except (TriviumError, OSError, ValueError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
