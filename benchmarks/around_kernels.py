"""What share of a step is not in kernels: the real engine loop over the native executor, from `step()` to packed news.

    python benchmarks/around_kernels.py [--model smollm2] [--requests 64] [--steps 100] [--rounds 3]

As many requests as are told decode with prompts of 128 tokens, every fourth with stop strings. Kernels are the two
native calls, forward and sample (which check the step and plan attention too); everything else is Python of the loop's
thread. Prints the median step, what of it is outside of kernels, in all and by part, in microseconds and in percent of
the step; medians over rounds. Parts are taken in steps of their own, since a stopwatch costs time too. Exits with 1
when more than 5 % is outside.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from engine_step import PROMPT_LEN, Stopwatch

from trivium.assembly import build_engine
from trivium.base.garbage import freeze_what_is_loaded
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Deltas, Submit
from trivium.engine.wire import encode
from trivium.kernels import native

if TYPE_CHECKING:
    from trivium.engine.loop import EngineLoop

MOST_OUTSIDE = 0.05


class Kernels:
    """Seconds spent in native calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a native call."""

        def counting(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return counting

    @contextmanager
    def watching(self, executor: Any) -> Iterator[None]:
        """Count the calls of this executor until the block ends."""
        low = executor._programs["base"].low  # noqa: SLF001  (taken apart on purpose)
        module = native.load()
        with ExitStack() as patches:
            patches.enter_context(patch.dict(vars(module), {"sample": self.counted(vars(module)["sample"])}))
            program = low.program
            object.__setattr__(low, "program", _Counted(self.counted(program.run)))
            patches.callback(object.__setattr__, low, "program", program)
            yield


class _Counted:
    """A program of which only `run` is wanted."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run


def decoding_loop(model: str, num_requests: int, num_steps: int) -> EngineLoop:
    """Make an engine in which all requests have read their prompts and will decode for `num_steps` steps."""
    loop = build_engine(
        options_from({"model": model, "offline": True, "max_num_seqs": num_requests, "executor": "native"})
    )
    vocab_size = loop.limits.vocab_size
    for idx in range(num_requests):
        prompt = [(idx * 7919 + k * 104729) % vocab_size for k in range(PROMPT_LEN)]
        stop = ("\n\n\n\n", "The End", "User:") if idx % 4 == 0 else ()
        params = SamplingParams(
            max_tokens=num_steps + 16, temperature=0.8, top_p=0.95, stop=stop, seed=idx, ignore_eos=True
        )
        loop.submit(Submit(request_id=f"cmpl-{idx:032x}", prompt_ids=prompt, params=params))
    while sum(bool(news.token_ids) for news in loop.step()) < num_requests:
        pass
    return loop


def measure(loop: EngineLoop, num_steps: int, pack: Callable[[Any], bytes]) -> tuple[float, float]:
    """Return the median seconds of a step, and of what is outside of kernels."""
    kernels, steps, outside = Kernels(), [], []
    with kernels.watching(loop._executor):  # noqa: SLF001
        for _ in range(num_steps):
            kernels.seconds, began = 0.0, time.perf_counter()
            pack(Deltas(1, loop.step()))
            steps.append(time.perf_counter() - began)
            outside.append(steps[-1] - kernels.seconds)
    return statistics.median(steps), statistics.median(outside)


def main() -> int:
    """Measure, print, and say whether the promise is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    loop = decoding_loop(options.model, options.requests, 2 * options.rounds * options.steps)
    freeze_what_is_loaded()
    whole: list[tuple[float, float]] = []
    watch = Stopwatch()
    for _ in range(options.rounds):
        whole.append(measure(loop, options.steps, encode))
        with watch.watching(loop, None):
            measure(loop, options.steps, watch.timed("pack", encode))
    loop.close()
    step_s, outside_s = (statistics.median(values) for values in zip(*whole, strict=True))
    print(
        f"{options.requests} requests: step {1e3 * step_s:.1f} ms, outside of kernels {1e6 * outside_s:.0f} us, ",
        end="",
    )
    print(f"{100 * outside_s / step_s:.2f} %")
    for part, seconds in watch.seconds.items():
        if seconds:
            print(f"{part:>16} {1e6 * statistics.median(seconds):8.1f} us")
    return 0 if outside_s <= MOST_OUTSIDE * step_s else 1


if __name__ == "__main__":
    sys.exit(main())
