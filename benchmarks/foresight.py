"""What is done with what is known of a program before it runs: each effect on and off, on one model in this process.

    python -m benchmarks.foresight --model smollm2

Each row is a program that the effect is for; the text of all runs is compared, and must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import trivium.lang as sgl
from trivium import LLM

STEM = "You are a careful assistant. You read the whole text, and answer in one short sentence and no more. " * 4
SCHEMA = {
    "type": "object",
    "properties": {f"field_{idx}": {"enum": [f"value {idx} {each}" for each in range(40)]} for idx in range(12)},
    "required": [f"field_{idx}" for idx in range(12)],
}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 12}


@sgl.function
def answer(s: Any, word: str) -> None:
    """A question after a long instruction."""
    s += STEM + "Text: " + word + ". Answer:" + sgl.gen("x", max_tokens=4)


@sgl.function
def constrained(s: Any, salt: str) -> None:
    """Free text, then a form that takes time to compile."""
    schema = {**SCHEMA, "title": salt}
    s += "Tell of a town:" + sgl.gen("x") + "\nAs JSON: " + sgl.gen("y", json_schema=schema, max_tokens=4)


@sgl.function
def copies(s: Any) -> None:
    """Branches that are joined one by one."""
    s += STEM
    for idx in range(8):
        with s.copy() as c:
            c.append(f"Tip {idx}:" + sgl.gen(f"tip{idx}"))


@sgl.function
def texts(s: Any) -> None:
    """Many texts before one answer."""
    for idx in range(16):
        s.append(f"Line {idx} of a list of things that are good to know about towns.\n")
    s += sgl.gen("x", max_tokens=4)


def batch(llm: LLM, _: int) -> list[str]:
    """Run a batch."""
    return [state.text() for state in answer.run_batch([(f"word {idx}",) for idx in range(16)], backend=llm, **GREEDY)]


def one(function: sgl.SglFunction, llm: LLM, **arguments: Any) -> list[str]:
    """Run one."""
    return [function.run(backend=llm, **GREEDY, **arguments).text()]


ROWS: dict[str, Callable[[LLM, int], list[str]]] = {
    "enable_precache_with_tracing": batch,
    "enable_compile_ahead": lambda llm, turn: one(constrained, llm, salt=str(turn)),
    "enable_parallel_branches": lambda llm, _: one(copies, llm),
    "enable_joined_constants": lambda llm, _: one(texts, llm),
}


def measured(llm: LLM, run: Callable[[LLM, int], list[str]], turn: int) -> tuple[float, int, int, list[str]]:
    """Run with an empty cache; return seconds, steps, prompt tokens that were computed, and the texts."""
    llm.shared_loop.call("flush")
    before: Any = llm.shared_loop.call("stats")
    began_s = time.perf_counter()
    found = run(llm, turn)
    took_s = time.perf_counter() - began_s
    after: Any = llm.shared_loop.call("stats")
    names = ("steps_total", "prompt_tokens_total", "prefix_hit_tokens_total")
    steps, asked, hit = (after[name] - before[name] for name in names)
    return took_s, steps, asked - hit, found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| switch | on | off | steps on, off | prompt tokens computed on, off |\n|---|---|---|---|---|")
    with LLM(options.model) as llm:
        for row, (switch, run) in enumerate(ROWS.items()):
            results: dict[bool, list[tuple[float, int, int, list[str]]]] = {True: [], False: []}
            for turn in range(options.rounds + 1):
                for wanted in (True, False):
                    setattr(sgl.global_config, switch, wanted)
                    own = 2 * (row * 100 + turn) + wanted
                    results[wanted].append(measured(llm, run, own))
            setattr(sgl.global_config, switch, True)
            if any(on[3] != off[3] for on, off in zip(results[True], results[False], strict=True)):
                raise SystemExit(f"{switch}: the texts differ")
            seconds = {each: statistics.median(took for took, *_ in found[1:]) for each, found in results.items()}
            last = {each: found[-1] for each, found in results.items()}
            print(
                f"| `{switch}` | {1e3 * seconds[True]:.0f} ms | {1e3 * seconds[False]:.0f} ms | "
                f"{last[True][1]}, {last[False][1]} | {last[True][2]}, {last[False][2]} |"
            )


if __name__ == "__main__":
    main()
