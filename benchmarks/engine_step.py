"""Python time per step: the whole engine loop with an executor that costs nothing, from `step()` to packed deltas.

    python benchmarks/engine_step.py [--requests 1,4,16,64,128] [--rounds 7] [--steps 200] [--cold] [--calls]

Every request decodes an English text with the model's own tokenizer, every fourth one with stop strings, and each
step's news are packed as the engine process packs them. Prints p50 and p99 of a step, the executor's own calls left
out; then the median of each part of a step, in rounds of their own, since a stopwatch costs time too. Times are
seconds of the thread's CPU, which a busy neighbour stretches less than others. Rounds of all sizes are interleaved; a
figure is the median over rounds.

With `--calls` the native executor's own Python is part of the step: it checks each step, hands its arrays to the
program, of which no instruction runs, and packs the sampler's records; tokens come from the text. With `--cold` the
executor reads 128 MB in every step, as one that reads weights does, so that Python finds none of its data in the
caches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loops import PAGE_LEN, NativeCalls, TextExecutor, find_tokenizer, make_loop, text_ids

from trivium.config.sampling import SamplingParams
from trivium.engine import flight
from trivium.engine import loop as loop_module
from trivium.engine.messages import Deltas, Submit
from trivium.engine.wire import encode

if TYPE_CHECKING:
    from trivium.engine.loop import EngineLoop
    from trivium.sampling.batch import Sampled, SampleRow
    from trivium.schedule.scheduler import Scheduler
    from trivium.schedule.step import Step
    from trivium.tokens.tokenizer import Tokenizer

PROMPT_LEN = 128
COLD_BYTES = 128 << 20
PARTS = ("choose", "forward", "describe rows", "sample", "take tokens", "commit", "read", "pack")
"""What a step is made of; `rest` is what none of them has."""


class ReadingExecutor(TextExecutor):
    """Reads so many bytes in every step, and makes the calls of another executor, if there is one."""

    def __init__(self, text_ids: Sequence[int], num_pages: int, num_bytes: int, calls: NativeCalls | None) -> None:
        super().__init__(text_ids, num_pages)
        self._weights = np.ones(num_bytes // 8)
        self.calls = calls
        if calls is not None:
            self.kv_spec = calls.kv_spec

    def forward(self, step: Step) -> None:
        """Take a step."""
        super().forward(step)
        if self.calls is not None:
            self.calls.forward(step)

    def sample(self, rows: Sequence[SampleRow], masks: Any = None) -> Sampled:
        """Draw the next tokens of the text."""
        sampled = super().sample(rows, masks)
        return sampled if self.calls is None else self.calls.sample(rows, sampled.token_ids)

    def work(self, num_tokens: int) -> None:
        """Read the weights, if there are any."""
        del num_tokens
        self._weights.sum()


class Stopwatch:
    """Seconds of each call of each part; every part is called once per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {part: [] for part in PARTS}

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call` so that its time counts for `part`."""
        note, now = self.seconds[part].append, time.thread_time

        def measured(*given: Any, **named: Any) -> Any:
            began = now()
            result = call(*given, **named)
            note(now() - began)
            return result

        return measured

    @contextmanager
    def watching(self, loop: EngineLoop, calls: NativeCalls | None) -> Iterator[None]:
        """Time the parts of this loop's steps, and the executor's calls if there are any, until the block ends."""
        scheduler = loop._scheduler  # noqa: SLF001  (taken apart on purpose)
        with ExitStack() as patches:
            if calls is not None:
                patches.enter_context(patch.object(calls, "forward", self.timed("forward", calls.forward)))
                patches.enter_context(patch.object(calls, "sample", self.timed("sample", calls.sample)))
            self._watch_loop(loop, scheduler, patches)
            yield

    def _watch_loop(self, loop: EngineLoop, scheduler: Scheduler, patches: ExitStack) -> None:
        for holder, name, part in (
            (scheduler, "next", "choose"),
            (scheduler, "commit", "commit"),
            (flight, "sample_rows", "describe rows"),
            (loop_module, "outcomes_of", "take tokens"),
            (loop, "_read", "read"),
        ):
            patches.enter_context(patch.object(holder, name, self.timed(part, getattr(holder, name))))


def decoding_loop(
    tokenizer: Tokenizer,
    vocab_size: int,
    num_requests: int,
    num_steps: int,
    *,
    is_cold: bool,
    calls: NativeCalls | None,
) -> tuple[EngineLoop, ReadingExecutor]:
    """Make a loop in which `num_requests` requests have read their prompts and will decode for `num_steps` steps."""
    max_model_len = PROMPT_LEN + num_steps + 8
    num_pages = num_requests * (max_model_len // PAGE_LEN + 2)
    if calls is not None:
        num_pages = calls.num_pages
    executor = ReadingExecutor(text_ids(tokenizer), num_pages, COLD_BYTES if is_cold else 0, calls)
    loop = make_loop(executor, tokenizer, vocab_size, num_requests=num_requests, max_model_len=max_model_len)
    for idx in range(num_requests):
        prompt = [(idx * 7919 + k * 104729) % vocab_size for k in range(PROMPT_LEN)]
        stop = ("\n\n\n\n", "The End", "User:") if idx % 4 == 0 else ()
        params = SamplingParams(max_tokens=num_steps + 4, temperature=0.8, top_p=0.95, stop=stop, seed=idx)
        loop.submit(Submit(request_id=f"cmpl-{idx:032x}", prompt_ids=prompt, params=params))
    while sum(bool(news.token_ids) for news in loop.step()) < num_requests:
        pass
    return loop, executor


def run_steps(loop: EngineLoop, executor: ReadingExecutor, num_steps: int, pack: Callable[[Any], bytes]) -> list[float]:
    """Return the microseconds of each step, without those of the executor."""
    times = []
    for _ in range(num_steps):
        executor.seconds = 0.0
        began = time.thread_time()
        pack(Deltas(1, loop.step()))
        times.append((time.thread_time() - began - executor.seconds) * 1e6)
    return times


def take_apart(loop: EngineLoop, executor: ReadingExecutor, num_steps: int) -> dict[str, float]:
    """Return the microseconds per step of each part, and of the rest."""
    watch = Stopwatch()
    with watch.watching(loop, executor.calls):
        times = run_steps(loop, executor, num_steps, watch.timed("pack", encode))
    parts = {part: statistics.median(seconds) * 1e6 if seconds else 0.0 for part, seconds in watch.seconds.items()}
    return {**parts, "rest": statistics.median(times) - sum(parts.values())}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", default="1,4,16,64,128")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer to use")
    parser.add_argument("--cold", action="store_true", help="read 128 MB between two steps")
    parser.add_argument("--calls", action="store_true", help="with the native executor's own Python")
    parser.add_argument("--whole-only", action="store_true", help="leave out the parts")
    options = parser.parse_args()
    sizes = [int(size) for size in options.requests.split(",")]
    tokenizer, vocab_size = find_tokenizer(options.tokenizer)
    calls = NativeCalls(options.tokenizer, max(sizes), PROMPT_LEN + 2 * options.steps + 8) if options.calls else None
    middles: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    parts: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(options.rounds):
        for size in sizes:
            loop, executor = decoding_loop(
                tokenizer, vocab_size, size, 2 * options.steps, is_cold=options.cold, calls=calls
            )
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
