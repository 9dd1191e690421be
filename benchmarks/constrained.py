"""What constraints cost streams, and what jump-forward saves: the engine loop over the native executor.

    python -m benchmarks.constrained [--model smollm2] [--streams 16] [--rounds 3] [--tokens 64]
                                     [--parts steps,throughput,passes]

1. A step: `--streams` answers decode one token a step, under a schema of records and free; median milliseconds.
2. Tokens per second: as many answers at once, of the tasks in turn, each to its end; and free ones of the same lengths.
3. Forward passes and seconds of every set of tasks, with jump-forward and without, one by one and all at once.

Greedy, with prompts of the model's chat template; grammars are compiled and prompts cached before anything is timed.
Rounds alternate between what is compared; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from benchmarks.loops import find_tokenizer
from benchmarks.workloads.constraints import SETS, Task, listed, record, tasks, text
from trivium.assembly import build_engine
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.tokens.tokenizer import Tokenizer

_MOST_TOKENS = 400
_RECORDS = {
    "type": "array",
    "items": record(name=text(30), tags=listed(text(20)), is_known={"type": "boolean"}),
    "minItems": 90,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What answers came to."""

    seconds: float
    step_s: Sequence[float]
    """Of the steps in which every answer drew a token, and nothing else ran."""
    num_steps: int
    lengths: Sequence[int]
    """Tokens of each answer."""


class Bench:
    """A loop with jump-forward and one without it, over the same model."""

    def __init__(self, model: str, num_streams: int) -> None:
        self.tokenizer: Tokenizer = find_tokenizer(model)[0]
        options: dict[str, Any] = {"model": model, "max_num_seqs": max(64, num_streams), "kv_cache_memory": "512MiB"}
        self.loops: Mapping[bool, EngineLoop] = {
            jumps: build_engine(options_from({**options, "jump_forward": jumps})) for jumps in (True, False)
        }

    def request(self, task: Task, **changes: Any) -> tuple[list[int], SamplingParams]:
        """A request for a task, under its schema."""
        prompt = f"<|im_start|>user\n{task.prompt}<|im_end|>\n<|im_start|>assistant\n"
        params = SamplingParams(
            temperature=0.0, max_tokens=_MOST_TOKENS, structured_outputs=StructuredOutputs(json=task.schema)
        )
        return self.tokenizer.encode(prompt, add_special_tokens=False), replace(params, **changes)

    def run(self, requests: Sequence[tuple[list[int], SamplingParams]], *, jumps: bool = True) -> Run:
        """Answer all of these at once."""
        loop, lengths, step_s = self.loops[jumps], [0] * len(requests), []
        for idx, (prompt, params) in enumerate(requests):
            loop.submit(Submit(request_id=str(idx), prompt_ids=list(prompt), params=params))
        before, began_s = loop.stats()["steps_total"], time.perf_counter()
        while loop.has_work:
            began_step_s = time.perf_counter()
            told = {news.request_id: len(news.token_ids) for news in loop.step() if news.token_ids}
            if len(told) == len(requests) and set(told.values()) == {1}:
                step_s.append(time.perf_counter() - began_step_s)
            for name, num_tokens in told.items():
                lengths[int(name)] += num_tokens
        num_steps = int(loop.stats()["steps_total"]) - int(before)  # type: ignore[call-overload]
        return Run(time.perf_counter() - began_s, step_s, num_steps, lengths)


def main() -> None:
    """Print three tables."""
    arguments = _parse()
    bench = Bench(arguments.model, arguments.streams)
    for jumps in (True, False):  # compile and cache
        bench.run([bench.request(task, max_tokens=1) for _, task in tasks()], jumps=jumps)
    for name in arguments.parts.split(","):
        PARTS[name](bench, arguments)


def _steps(bench: Bench, arguments: argparse.Namespace) -> None:
    bound = bench.request(Task("List the pupils of a school, as JSON.", _RECORDS), max_tokens=arguments.tokens)
    free = bound[0], replace(bound[1], structured_outputs=None, ignore_eos=True)
    seconds: dict[str, list[float]] = {"free": [], "under a schema": []}
    for _ in range(arguments.rounds + 1):
        for name, request in zip(seconds, (free, bound), strict=True):
            requests = [
                ([*prompt, 10 + idx], params) for idx, (prompt, params) in enumerate([request] * arguments.streams)
            ]
            seconds[name].append(statistics.median(bench.run(requests, jumps=False).step_s))
    free_s, bound_s = (statistics.median(each[1:]) for each in seconds.values())
    print(f"step of {arguments.streams}: free {free_s * 1e3:.2f} ms, under a schema {bound_s * 1e3:.2f} ms: "
          f"{free_s / bound_s:.3f} of the rate\n")  # fmt: skip


def _throughput(bench: Bench, arguments: argparse.Namespace) -> None:
    bound = [bench.request(task) for _, task in islice(cycle(tasks()), arguments.streams)]
    lengths = bench.run(bound).lengths
    free = [
        (prompt, replace(params, structured_outputs=None, ignore_eos=True, max_tokens=length))
        for (prompt, params), length in zip(bound, lengths, strict=True)
    ]
    cases = {"free": (free, True), "bound, drawn": (bound, False), "bound, jump-forward": (bound, True)}
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.rounds):
        for name, (requests, jumps) in cases.items():
            run = bench.run(requests, jumps=jumps)
            rates[name].append(sum(run.lengths) / run.seconds)
    free_rate = statistics.median(rates["free"])
    for name, each in rates.items():
        rate = statistics.median(each)
        print(f"{arguments.streams} answers at once, {name:20} {rate:8.0f} tok/s {rate / free_rate:6.2f}")
    print()


def _passes(bench: Bench, arguments: argparse.Namespace) -> None:
    print(
        f"{'':14} {'':12} {'tokens':>7} {'passes drawn':>13} {'jumping':>8} {'drawn ms':>9} {'jumping ms':>11} "
        f"{'gain':>6}"
    )
    for name, each in SETS.items():
        requests = [bench.request(task) for task in each.values()]
        _compare(bench, name, "one by one", [[request] for request in requests], arguments.rounds)
        _compare(bench, name, "all at once", [requests], arguments.rounds)


def _compare(
    bench: Bench, name: str, how: str, batches: Sequence[Sequence[tuple[list[int], SamplingParams]]], num_rounds: int
) -> None:
    runs: dict[bool, list[list[Run]]] = {False: [], True: []}
    for _ in range(num_rounds):
        for jumps, rounds in runs.items():
            rounds.append([bench.run(batch, jumps=jumps) for batch in batches])
    drawn_s, jumping_s = (
        statistics.median(sum(run.seconds for run in each) for each in rounds) for rounds in runs.values()
    )
    steps = {jumps: sum(run.num_steps for run in rounds[0]) for jumps, rounds in runs.items()}
    lengths = {jumps: [run.lengths for run in rounds[0]] for jumps, rounds in runs.items()}
    if lengths[False] != lengths[True]:
        raise SystemExit(f"{name}: answers differ with jump-forward")
    num_tokens = sum(sum(each) for each in lengths[True])
    print(
        f"{name:14} {how:12} {num_tokens:7} {steps[False]:13} {steps[True]:8} {drawn_s * 1e3:9.0f} "
        f"{jumping_s * 1e3:11.0f} {drawn_s / jumping_s:6.2f}"
    )


PARTS = {"steps": _steps, "throughput": _throughput, "passes": _passes}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What constraints cost streams, and what jump-forward saves.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16, help="answers at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer of the first part")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of the three, by comma")
    return parser.parse_args()


if __name__ == "__main__":
    main()
