"""Python time per step: the whole engine loop with an executor that costs nothing, from `step()` to packed deltas.

    python benchmarks/engine_step.py [--requests 1,4,16,64,128] [--rounds 7] [--steps 200] [--tokenizer smollm2]

Every request decodes an English text with the model's own tokenizer, every fourth one with stop strings, and each
step's news are packed as the engine process packs them. Prints p50 and p99 of a step, the executor's own calls left
out; then the same step taken apart, in rounds of their own, since a stopwatch costs time too. Rounds of all sizes are
interleaved; a figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.tiny_tokenizers import byte_level
from trivium.assembly import load_tokenizer, open_model
from trivium.base.clock import SystemClock
from trivium.base.errors import TriviumError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine import loop as loop_module
from trivium.engine.admit import ModelLimits
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Deltas, Submit
from trivium.engine.wire import encode
from trivium.sampling.batch import Sampled, SampleRow
from trivium.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from trivium.schedule.step import Step
    from trivium.tokens.tokenizer import Tokenizer

PAGE_LEN = 16
PROMPT_LEN = 128
TEXT = Path(__file__).parents[1] / "ARCHITECTURE.md"
PARTS = ("choose", "build", "describe rows", "read tokens", "commit", "pack")
"""What a step is made of; `rest` is what none of them has."""


class FreeExecutor:
    """Draws the tokens of a text, whatever the step; `seconds` is what its calls took."""

    def __init__(self, text_ids: Sequence[int], num_pages: int, max_rows: int) -> None:
        self.kv_spec = KVSpec((KVGroup("full", (0,), 1024),), PAGE_LEN)
        self.num_pages = (num_pages,)
        self._ids = np.resize(np.array(text_ids, np.int32), len(text_ids) + max_rows)
        self._period = len(text_ids)
        self._at = 0
        self.seconds = 0.0

    def forward(self, step: Step) -> None:
        """Take a step."""
        del step

    def sample(self, rows: Sequence[SampleRow], masks: Any = None) -> Sampled:
        """Draw the next token of the text for the first row, the one after it for the second, and so on."""
        del masks
        began = time.perf_counter()
        self._at = (self._at + 1) % self._period
        count = len(rows)
        sampled = Sampled(token_ids=self._ids[self._at : self._at + count], logprobs=[None] * count)
        self.seconds += time.perf_counter() - began
        return sampled

    def close(self) -> None:
        """Nothing to give back."""


class Stopwatch:
    """Seconds per part of the steps since `start`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that its time counts for `part`."""
        seconds, now = self.seconds, time.perf_counter

        def measured(*given: Any, **named: Any) -> Any:
            began = now()
            result = call(*given, **named)
            seconds[part] += now() - began
            return result

        return measured

    @contextmanager
    def watching(self, loop: EngineLoop) -> Iterator[None]:
        """Time the parts of this loop's steps until the block ends."""
        scheduler = loop._scheduler  # noqa: SLF001  (taken apart on purpose)
        builder = scheduler._builder  # noqa: SLF001
        with (
            patch.object(scheduler, "next", self.timed("choose", scheduler.next)),
            patch.object(scheduler, "commit", self.timed("commit", scheduler.commit)),
            patch.object(builder, "build", self.timed("build", builder.build)),
            patch.object(loop_module, "sample_rows", self.timed("describe rows", loop_module.sample_rows)),
            patch.object(loop_module, "read_step", self.timed("read tokens", loop_module.read_step)),
        ):
            yield
        self.seconds["choose"] -= self.seconds["build"]


def find_tokenizer(name: str) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a model that is on this machine, else a tiny one, and its vocabulary."""
    try:
        options = options_from({"model": name, "offline": True})
        model = open_model(options)
        return load_tokenizer(options, model), model.config.vocab_size
    except TriviumError as error:
        print(f"{error}\n-> the tiny byte tokenizer instead")
        tokenizer = byte_level()
        return tokenizer, tokenizer.vocab_size


def make_loop(
    tokenizer: Tokenizer, vocab_size: int, num_requests: int, num_steps: int
) -> tuple[EngineLoop, FreeExecutor]:
    """Make a loop in which `num_requests` requests have read their prompts and will decode for `num_steps` steps."""
    text_ids = tokenizer.encode(TEXT.read_text(), add_special_tokens=False)
    max_model_len = PROMPT_LEN + num_steps + 8
    executor = FreeExecutor(text_ids, num_requests * (max_model_len // PAGE_LEN + 2), max(num_requests, 512))
    scheduler = Scheduler(
        ScheduleOptions(max_num_seqs=num_requests, max_num_batched_tokens=512),
        executor.kv_spec,
        executor.num_pages,
        max_model_len,
        prefix_cache=True,
        clock=SystemClock(),
    )
    limits = ModelLimits(
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        end_ids=tokenizer.eos_ids,
        namespace=("benchmark",),
        rope_variant=lambda reach: (),
        bad_word_ids=lambda text: (),
    )
    loop = EngineLoop(
        executor=executor, scheduler=scheduler, tokenizer=tokenizer, limits=limits, info={}, clock=SystemClock()
    )
    for idx in range(num_requests):
        prompt = [(idx * 7919 + k * 104729) % vocab_size for k in range(PROMPT_LEN)]
        stop = ("\n\n\n\n", "The End", "User:") if idx % 4 == 0 else ()
        params = SamplingParams(max_tokens=num_steps + 4, temperature=0.8, top_p=0.95, stop=stop, seed=idx)
        loop.submit(Submit(request_id=f"cmpl-{idx:032x}", prompt_ids=prompt, params=params))
    while sum(bool(news.token_ids) for news in loop.step()) < num_requests:
        pass
    return loop, executor


def run_steps(loop: EngineLoop, executor: FreeExecutor, num_steps: int, pack: Callable[[Any], bytes]) -> list[float]:
    """Return the microseconds of each step, without those of the executor."""
    times = []
    for _ in range(num_steps):
        executor.seconds = 0.0
        began = time.perf_counter()
        pack(Deltas(1, loop.step()))
        times.append((time.perf_counter() - began - executor.seconds) * 1e6)
    return times


def take_apart(loop: EngineLoop, executor: FreeExecutor, num_steps: int) -> dict[str, float]:
    """Return the microseconds per step of each part, and of the rest."""
    watch = Stopwatch()
    with watch.watching(loop):
        times = run_steps(loop, executor, num_steps, watch.timed("pack", encode))
    parts = {part: seconds * 1e6 / num_steps for part, seconds in watch.seconds.items()}
    return {**parts, "rest": statistics.fmean(times) - sum(parts.values())}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="1,4,16,64,128")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokenizer", default="smollm2")
    parser.add_argument("--whole-only", action="store_true", help="leave out the parts")
    options = parser.parse_args()
    sizes = [int(size) for size in options.requests.split(",")]
    tokenizer, vocab_size = find_tokenizer(options.tokenizer)
    middles: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    parts: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(options.rounds):
        for size in sizes:
            loop, executor = make_loop(tokenizer, vocab_size, size, 2 * options.steps)
            times = run_steps(loop, executor, options.steps, encode)
            middles[size].append((statistics.median(times), percentile(times, 0.99)))
            if not options.whole_only:
                parts[size].append(take_apart(loop, executor, options.steps))
    print("microseconds per step")
    print(f"{'requests':>8} {'p50':>8} {'p99':>8} {'per token':>10}")
    for size in sizes:
        middle, high = (statistics.median(values) for values in zip(*middles[size], strict=True))
        print(f"{size:8d} {middle:8.1f} {high:8.1f} {middle / size:10.2f}")
    if options.whole_only:
        return
    names = [*PARTS, "rest"]
    print("\n" + " ".join([f"{'requests':>8}", *(f"{name:>13}" for name in names)]))
    for size in sizes:
        shown = [statistics.median(one[name] for one in parts[size]) for name in names]
        print(" ".join([f"{size:8d}", *(f"{value:13.1f}" for value in shown)]))


if __name__ == "__main__":
    main()
