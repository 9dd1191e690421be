"""What benchmarks of single steps share: the command line, and what a step is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trivium.config.options import EngineOptions, ExecutorOptions, ModelOptions, ScheduleOptions

if TYPE_CHECKING:
    from trivium.plan.cost import Workload


def asked_options(max_num_seqs: int) -> EngineOptions:
    """Read `[MODEL] [WEIGHTS]` from the command line."""
    model, weights = [*sys.argv[1:3], *("smollm2", "auto")[len(sys.argv[1:3]) :]]
    return EngineOptions(
        model=ModelOptions(model=model),
        executor=ExecutorOptions(weights=weights),  # type: ignore[arg-type]  # a wrong word is refused when used
        schedule=ScheduleOptions(max_num_seqs=max_num_seqs),
    )


def name_of(load: Workload) -> str:
    """Return `decode 16` or `prefill 512`."""
    return f"decode {load.num_requests}" if load.num_tokens == load.num_requests else f"prefill {load.num_tokens}"
