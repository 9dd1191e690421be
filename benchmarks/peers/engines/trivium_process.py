"""Measure Trivium in this process, without HTTP: prompts of exact length, all at once; prints JSON.

    python -m benchmarks.peers.engines.trivium_process --words FILE --flags '{"model": "M.gguf"}' --concurrency 16

Output tokens per second include prefill and sampling. The decode rate is that of all tokens but each answer's first,
over the time that those took: answers of full length less answers of one token to other prompts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import count
from pathlib import Path

from benchmarks.peers.prompts import draw
from trivium.api import LLM
from trivium.config.options import EngineOptions
from trivium.config.resolve import resolve
from trivium.config.sampling import SamplingParams


def main() -> None:
    """Measure and print one JSON object."""
    options = parser().parse_args()
    flags = json.loads(options.flags)
    values = resolve((EngineOptions,), flags=flags, environ={}).values(EngineOptions)
    with LLM(values.pop("model"), **values) as llm:
        print(json.dumps(run(Timed(llm, options.words, options.seed), options)))


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--words", required=True, type=Path, help="JSON list of token ids to draw prompts from")
    made.add_argument("--flags", required=True, help="JSON object of engine options by name, as texts or switches")
    made.add_argument("--concurrency", type=int, required=True)
    made.add_argument("--prompt-len", type=int, default=128)
    made.add_argument("--output-len", type=int, default=128)
    made.add_argument("--repeats", type=int, default=1, help="measurements; their median counts")
    made.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of the prompts; the time by default")
    return made


class Timed:
    """Answers batches of new prompts and says how long each took."""

    def __init__(self, llm: LLM, words: Path, seed: int) -> None:
        self._llm = llm
        self._words = words
        self._seeds = count(seed)

    def __call__(self, size: int, prompt_len: int, output_len: int) -> float:
        """Answer `size` prompts at once; returns seconds.

        Raises:
            RuntimeError: An answer has another length, or a prompt was found in the cache.
        """
        prompts = draw(self._words, next(self._seeds), size, prompt_len)
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        began_s = time.perf_counter()
        answers = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began_s
        lengths = {len(answer.outputs[0].token_ids) for answer in answers}
        if lengths != {output_len} or any(4 * answer.num_cached_tokens > prompt_len > 1 for answer in answers):
            raise RuntimeError(f"answers of {lengths} tokens, not {output_len}, or prompts from the cache")
        return seconds


def run(timed: Timed, options: argparse.Namespace) -> dict[str, object]:
    """Warm up, repeat, and return medians."""
    size, prompt_len, output_len = options.concurrency, options.prompt_len, options.output_len
    timed(min(size, 4), prompt_len, min(output_len, 8))
    if output_len <= 1:
        seconds = statistics.median(timed(size, prompt_len, output_len) for _ in range(options.repeats))
        return {"tokens_per_s": size * prompt_len / seconds}
    firsts, wholes = [], []
    for _ in range(options.repeats):
        firsts.append(timed(size, prompt_len, 1))
        wholes.append(timed(size, prompt_len, output_len))
    first, whole = statistics.median(firsts), statistics.median(wholes)
    return {
        "tokens_per_s": size * output_len / whole,
        "figures": {
            "decode_tokens_per_s": size * (output_len - 1) / (whole - first),
            "prefill_tokens_per_s": size * prompt_len / first,
        },
    }


if __name__ == "__main__":
    main()
