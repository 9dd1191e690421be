"""How long a device that runs by itself waits between two steps, with overlap and without.

    python benchmarks/overlap.py [--requests 64] [--step-ms 10,20] [--steps 300] [--rounds 5]

The device is a process of its own that sleeps: it is told through a pipe that a step begins, notes the time, sleeps for
the step's time, notes the time again and says that the step has ended. So its gaps are what the loop needs to hear of
an end, record the tokens, choose the next step and launch it, wake-ups of both processes included, and not what a
thread would have to wait for Python's lock. The engine loop is the real one, with an English text for tokens, the
model's own tokenizer, stop strings on every fourth request, and news packed and handed to another process as the engine
does. `overlap` promises its draws; `no overlap` waits inside `sample`, as executors do that compute when called.

`decode` runs the same requests all the time. In `coming and going` answers have 8 to 200 tokens, and each that ends is
replaced by one with a prompt of 128 tokens, half of which another may have left in the cache.

Prints gaps in percent of the step's time: of all gaps together, the median, the 99th percentile; medians over rounds,
in which modes take turns. Exits with 1 where overlap leaves more than 3 % in all while requests decode.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loops import PAGE_LEN, TextExecutor, find_tokenizer, make_loop, text_ids

from trivium.base.garbage import freeze_what_is_loaded
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Deltas, Submit
from trivium.engine.wire import encode

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from trivium.engine.loop import EngineLoop
    from trivium.sampling.batch import Draws, Sampled, SampleRow
    from trivium.schedule.step import Step
    from trivium.tokens.tokenizer import Tokenizer

PROMPT_LEN = 128
MOST_TOKENS = 200
MOST_GAP = 0.03
WARM_STEPS = 20


def run_device(step_s: float, told: int, says: int, times: Connection) -> None:
    """Sleep for every step that one pipe tells of, and say in the other that it has ended; then send the moments."""
    moments: list[tuple[float, float]] = []
    while os.read(told, 1) == b"s":
        began_s = time.perf_counter()
        time.sleep(step_s)
        moments.append((began_s, time.perf_counter()))
        os.write(says, b"e")
    times.send(moments)


class DeviceExecutor(TextExecutor):
    """Runs steps on a sleeping device; waits for them in `sample`, or promises their draws."""

    def __init__(self, text_ids: Sequence[int], num_pages: int, step_s: float, *, overlaps: bool) -> None:
        super().__init__(text_ids, num_pages)
        self._overlaps = overlaps
        told, self._tell = os.pipe()
        self._hear, says = os.pipe()
        self._times, times = Pipe(duplex=False)
        self._device = Process(target=run_device, args=(step_s, told, says, times), daemon=True)
        self._device.start()

    def forward(self, step: Step) -> None:
        """Launch a step."""
        del step
        os.write(self._tell, b"s")

    def sample(self, rows: Sequence[SampleRow], masks: Any = None) -> Draws:
        """Draw the next tokens of the text."""
        return Waiting(self, rows) if self._overlaps else self.wait(rows)

    def wait(self, rows: Sequence[SampleRow]) -> Sampled:
        """Wait until the step has ended."""
        os.read(self._hear, 1)
        return super().sample(rows)

    def moments(self) -> list[tuple[float, float]]:
        """End the device and return when each step began and ended."""
        os.write(self._tell, b"q")
        moments: list[tuple[float, float]] = self._times.recv()
        self._device.join()
        return moments


@dataclass(slots=True)
class Waiting:
    """Draws of a step that may still run."""

    executor: DeviceExecutor
    rows: Sequence[SampleRow]
    sampled: Sampled | None = None

    def result(self) -> Sampled:
        """Wait for them."""
        if self.sampled is None:
            self.sampled = self.executor.wait(self.rows)
        return self.sampled


class Load:
    """Requests for a loop: all at once for ever, or coming and going."""

    def __init__(self, loop: EngineLoop, vocab_size: int, num_requests: int, *, is_steady: bool) -> None:
        self._loop = loop
        self._vocab_size = vocab_size
        self._is_steady = is_steady
        self._random = random.Random(7)  # noqa: S311  (a load, no secret)
        self._num_sent = 0
        for _ in range(num_requests):
            self.send()

    def send(self) -> None:
        """Submit one more."""
        idx, self._num_sent = self._num_sent, self._num_sent + 1
        family = idx % 16
        prompt = [(family * 7919 + k * 104729) % self._vocab_size for k in range(PROMPT_LEN // 2)]
        prompt += [(idx * 6101 + k * 15485863) % self._vocab_size for k in range(PROMPT_LEN // 2)]
        stop = ("\n\n\n\n", "The End", "User:") if idx % 4 == 0 else ()
        max_tokens = 10**4 if self._is_steady else self._random.randint(8, MOST_TOKENS)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.8, top_p=0.95, stop=stop, seed=idx)
        self._loop.submit(Submit(request_id=f"cmpl-{idx:032x}", prompt_ids=prompt, params=params))


def gaps_of(
    tokenizer: Tokenizer,
    vocab_size: int,
    num_requests: int,
    num_steps: int,
    step_s: float,
    *,
    overlaps: bool,
    is_steady: bool,
) -> list[float]:
    """Run so many steps; return the gap before each as a share of the step before it."""
    max_model_len = PROMPT_LEN + 10**4
    kept = PROMPT_LEN + num_steps + MOST_TOKENS
    num_pages = 2 * num_requests * (kept // PAGE_LEN + 2)
    executor = DeviceExecutor(text_ids(tokenizer), num_pages, step_s, overlaps=overlaps)
    loop = make_loop(executor, tokenizer, vocab_size, num_requests=num_requests, max_model_len=max_model_len)
    sink = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)  # noqa: S607
    load = Load(loop, vocab_size, num_requests, is_steady=is_steady)
    num_drawing = 0
    while num_drawing < num_requests:  # all prompts are read
        num_drawing = sum(bool(news.token_ids) for news in loop.step())
    freeze_what_is_loaded()
    for _ in range(WARM_STEPS + num_steps):
        news = loop.step()
        if sink.stdin is not None:
            sink.stdin.write(encode(Deltas(1, news)))
        for _ in range(sum(delta.finish_reason is not None for delta in news)):
            load.send()
    moments = executor.moments()[-num_steps:]
    if sink.stdin is not None:
        sink.stdin.close()
    sink.wait()
    return [(next_began - ended) / (ended - began) for (began, ended), (next_began, _) in pairwise(moments)]


def main() -> int:
    """Measure, print, and say whether the promise is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--step-ms", default="10,20")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer to use")
    options = parser.parse_args()
    tokenizer, vocab_size = find_tokenizer(options.tokenizer)
    print(f"{'load':<18} {'step':>6} {'':<12} {'in all':>8} {'p50':>8} {'p99':>8}   gaps in % of the step")
    is_kept = True
    for is_steady in (True, False):
        for step_ms in map(float, options.step_ms.split(",")):
            found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
            for _ in range(options.rounds):
                for overlaps, rounds in found.items():
                    gaps = gaps_of(
                        tokenizer,
                        vocab_size,
                        options.requests,
                        options.steps,
                        step_ms / 1e3,
                        overlaps=overlaps,
                        is_steady=is_steady,
                    )
                    high = sorted(gaps)[int(0.99 * len(gaps))]
                    rounds.append((statistics.mean(gaps), statistics.median(gaps), high))
            for overlaps, rounds in found.items():
                shown = [statistics.median(values) for values in zip(*rounds, strict=True)]
                is_kept &= not (overlaps and is_steady) or shown[0] <= MOST_GAP
                label = "decode" if is_steady else "coming and going"
                mode = "overlap" if overlaps else "no overlap"
                print(f"{label:<18} {step_ms:4.0f}ms {mode:<12} " + " ".join(f"{100 * value:8.2f}" for value in shown))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
