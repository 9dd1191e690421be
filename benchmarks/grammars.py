"""What constraints cost: time to compile them, time to make a mask, memory; without a model's forward pass.

    python -m benchmarks.grammars [--tokenizer smollm2] [--answers 40] [--tokens 300]

Every schema of `benchmarks/workloads/constraints.py` is compiled as in a server, a few times anew; then answers are
drawn from it at random, closing letters more often so that they end, and every token's mask is timed, with what a
step does around it: the matcher reads the token, and says what is forced. A mask of a forced token is not timed: nobody
makes one with jump-forward. `--tokenizer` is a model, whose vocabulary counts.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.loops import find_tokenizer
from benchmarks.workloads.constraints import tasks
from trivium.config.structured import StructuredOutputs
from trivium.grammar.library import Vocabulary
from trivium.grammar.matcher import Grammar
from trivium.tokens.tokenizer import Tokenizer

_COMPILES = 5
_CLOSING_SHARE = 0.2
_CLOSING = (b'"', b"}", b"]", b'"}', b'"]', b'","', b'",')


@dataclass(slots=True)
class Costs:
    """Seconds of one constraint."""

    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    """To read a token and ask what is forced behind it."""
    num_forced: int = 0

    def add(self, other: Costs) -> None:
        """Take over what was measured of another constraint."""
        self.compile_s += other.compile_s
        self.mask_s += other.mask_s
        self.read_s += other.read_s
        self.num_forced += other.num_forced


def main() -> None:
    """Print a line per constraint, and one of all."""
    arguments = _parse()
    tokenizer, vocab_size = find_tokenizer(arguments.tokenizer)
    end_id = tokenizer.eos_ids[0]
    began_s = time.perf_counter()
    vocabulary = Vocabulary(tokenizer, (end_id,), vocab_size=vocab_size)
    print(f"vocabulary of {vocab_size}: {(time.perf_counter() - began_s) * 1e3:.0f} ms, once per engine\n")
    print(f"{'constraint':26} {'compile ms':>20} {'mask us':>26} {'read us':>20} {'forced':>7}")
    print(f"{'':26} {'p50':>10} {'max':>9} {'p50':>8} {'p99':>8} {'max':>8} {'p50':>10} {'p99':>9}")
    total = Costs()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, task in tasks():
        costs = _measure(vocabulary, StructuredOutputs(json=task.schema), tokenizer, end_id, arguments)
        _print(name, costs)
        total.add(costs)
    _print("all", total)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    print(f"\npeak memory grew by {grown_mib:.0f} MiB over all of them")


def _measure(
    vocabulary: Vocabulary, wanted: StructuredOutputs, tokenizer: Tokenizer, end_id: int, arguments: argparse.Namespace
) -> Costs:
    costs = Costs()
    for _ in range(_COMPILES):
        began_s = time.perf_counter()
        grammar = vocabulary.compile(wanted)
        costs.compile_s.append(time.perf_counter() - began_s)
    for seed in range(arguments.answers):
        _draw(grammar, costs, vocabulary.mask_words, tokenizer, end_id, random.Random(seed), arguments.tokens)  # noqa: S311
    return costs


def _draw(
    grammar: Grammar, costs: Costs, mask_words: int, tokenizer: Tokenizer, end_id: int, dice: random.Random, most: int
) -> None:
    matcher, mask = grammar.start(), np.zeros(mask_words, np.uint32)
    for _ in range(most):
        for token in matcher.forced():
            matcher.advance(token)
            costs.num_forced += 1
        if matcher.is_complete:
            return
        began_s = time.perf_counter()
        matcher.fill(mask)
        costs.mask_s.append(time.perf_counter() - began_s)
        options = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(options[dice.randrange(len(options))])
        if dice.random() < _CLOSING_SHARE:
            closing = [int(each) for each in options if tokenizer.token_bytes(int(each)) in _CLOSING]
            token = dice.choice(closing) if closing else token
        if token == end_id:
            return
        began_s = time.perf_counter()
        matcher.advance(token)
        matcher.forced()
        costs.read_s.append(time.perf_counter() - began_s)


def _print(name: str, costs: Costs) -> None:
    mask, read = _cuts(costs.mask_s), _cuts(costs.read_s)
    print(
        f"{name:26} {statistics.median(costs.compile_s) * 1e3:10.2f} {max(costs.compile_s) * 1e3:9.2f} "
        f"{mask[0]:8.0f} {mask[1]:8.0f} {max(costs.mask_s) * 1e6:8.0f} {read[0]:10.1f} {read[1]:9.1f} "
        f"{costs.num_forced / (costs.num_forced + len(costs.mask_s)):7.0%}"
    )


def _cuts(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th of 100, in microseconds."""
    return statistics.median(seconds) * 1e6, float(np.quantile(seconds, 0.99)) * 1e6


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What constraints cost.")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer to use")
    parser.add_argument("--answers", type=int, default=40, help="answers drawn of each constraint")
    parser.add_argument("--tokens", type=int, default=300, help="most tokens of an answer")
    return parser.parse_args()


if __name__ == "__main__":
    main()
