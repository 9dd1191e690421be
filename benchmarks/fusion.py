"""What fusing brings: steps of a plan beside steps of one that fuses as little as there are instructions for.

    python benchmarks/fusion.py [MODEL] [WEIGHTS]

Both run the same kernels on the same packed weights in one process, in turns; medians. Left out of the second plan:
gated projections, residual adds within products, scaled logits. Merged q, k and v, rotation with the KV write, and
sums, gathers and rounding within norms have no unfused instruction, so what they bring is not in these figures.
"""

from __future__ import annotations

import statistics
from functools import cached_property
from typing import TYPE_CHECKING

from steps import asked_options, name_of

from trivium.assembly.model import open_model
from trivium.assembly.native import NativeParts
from trivium.kernels import native
from trivium.plan.cost import chunk, decode
from trivium.runtime.rehearsal import pages_needed, time_instructions

if TYPE_CHECKING:
    from trivium.plan.program import Plan

FUSIONS = ("fuse gated projection", "fuse residual add", "fuse logit scaling")
LOADS = (*(decode(batch, kv_len=192) for batch in (1, 4, 16, 64)), chunk(512))
ROUNDS = 5


class UnfusedParts(NativeParts):
    """The native executor of a plan without fusing passes."""

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]  # kept, where the other is a view
        """The plan, compiled now."""
        return self.build(without=FUSIONS)


def main() -> None:
    """Measure and print a Markdown table."""
    options = asked_options(max_num_seqs=64)
    print(native.describe())
    executors = []
    for kind in (NativeParts, UnfusedParts):
        parts = kind(options, open_model(options))
        executors.append((parts, parts.make(pages_needed(LOADS, parts.kv_spec), lambda *_: None)))
    lengths = [len(parts.plan.programs["base"].instructions) for parts, _ in executors]
    print(f"{options.model.model} {options.executor.weights}: {lengths[0]} instructions fused, {lengths[1]} unfused\n")
    print("| step | fused | unfused | ratio |\n|---|---|---|---|")
    for load in LOADS:
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for taken, (parts, executor) in zip(seconds, executors, strict=True):
                times = time_instructions(
                    executor,
                    load,
                    parts.kv_spec,
                    vocab_size=parts.plan.sizes.vocab_size,
                    max_num_tokens=512,
                    rounds=5,
                )
                taken.append(sum(times))
        fused, unfused = (statistics.median(taken) for taken in seconds)
        print(f"| {name_of(load)} | {fused * 1e3:.2f} ms | {unfused * 1e3:.2f} ms | {unfused / fused:.3f} |")


if __name__ == "__main__":
    main()
