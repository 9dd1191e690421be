"""Where the time of a prefill chunk goes, by context: the chunk's instructions, added up by op.

    python benchmarks/prefill_chunk.py [MODEL] [WEIGHTS] [TOKENS]

TOKENS of one request (512 when not given) after contexts of 0 to 4,096 tokens. Milliseconds, medians of rounds, and in
brackets the share of the roofline (`trivium.plan.cost`), against limits read in the same process.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from steps import asked_options

from trivium.assembly.compiled import machine_limits
from trivium.assembly.model import open_model
from trivium.assembly.native import NativeParts
from trivium.plan.cost import Workload
from trivium.plan.explain import explain
from trivium.plan.explain_text import limits_text, markdown_table
from trivium.runtime.rehearsal import pages_needed, time_instructions

CONTEXTS = (0, 512, 1024, 2048, 4096)
ROUNDS = 9


def main() -> None:
    """Measure and print."""
    num_tokens = int(next(iter(sys.argv[3:]), "512"))
    options = asked_options(max_num_seqs=64)
    parts = NativeParts(options, open_model(options))
    loads = [
        Workload(num_tokens=num_tokens, num_requests=1, kv_len=context + num_tokens, num_rows=1) for context in CONTEXTS
    ]
    most = parts.plan.limits.max_num_batched_tokens
    if not 1 <= num_tokens <= most:
        sys.exit(f"TOKENS is {num_tokens}; a step of this plan has 1 to {most} tokens")
    executor = parts.make(pages_needed(loads, parts.kv_spec), lambda *_: None)
    sizes = {"vocab_size": parts.plan.sizes.vocab_size, "max_num_tokens": most, "rounds": ROUNDS}
    measured = {place: time_instructions(executor, load, parts.kv_spec, **sizes) for place, load in enumerate(loads)}
    limits = machine_limits(options, is_fresh=True)
    found = explain(parts.plan, loads, limits, measured, program="base", is_grouped=False)
    print(f"chunks of {num_tokens} tokens; {limits_text(limits)}\n")
    by_op: dict[str, list[list[float]]] = defaultdict(lambda: [[0.0, 0.0] for _ in loads])
    for row in found.rows:
        for sums, figures in zip(by_op[row.op], row.figures, strict=True):
            sums[0] += figures.measured_s or 0.0
            sums[1] += figures.predicted_s
    totals = [[sum(sums[idx][kind] for sums in by_op.values()) for kind in (0, 1)] for idx in range(len(loads))]
    rows = [(op, *map(_cell, sums)) for op, sums in (*by_op.items(), ("all", totals))]
    rows.append(("tokens per second", *(f"{num_tokens / total[0]:,.0f}" for total in totals)))
    print(markdown_table(("op", *(f"context {context:,}" for context in CONTEXTS)), rows))


def _cell(sums: list[float]) -> str:
    return f"{sums[0] * 1e3:.2f} ({sums[1] / sums[0]:.0%})"


if __name__ == "__main__":
    main()
