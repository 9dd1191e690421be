"""Throughput of the engine alone, in this process: no HTTP, no second process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trivium.api import LLM
from trivium.bench.options import WorkloadOptions
from trivium.bench.workload import make_workload
from trivium.config.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFigures:
    """One offline run."""

    load_seconds: float
    seconds: float
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    engine: dict[str, object]


def run(workload: WorkloadOptions, model: str, engine_options: dict[str, Any]) -> OfflineFigures:
    """Load a model, answer the workload's prompts (first turns only), and report."""
    prompts = [request.prompts[0] for request in make_workload(workload) if request.prompts]
    params = SamplingParams(temperature=0.0, max_tokens=workload.output_len, ignore_eos=True)
    began_s = time.perf_counter()
    with LLM(model, **engine_options) as llm:
        loaded_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=True)
        seconds = time.perf_counter() - loaded_s
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        output_tokens = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
        return OfflineFigures(
            load_seconds=loaded_s - began_s,
            seconds=seconds,
            num_requests=len(outputs),
            prompt_tokens=prompt_tokens,
            cached_tokens=sum(output.num_cached_tokens for output in outputs),
            output_tokens=output_tokens,
            output_tokens_per_s=output_tokens / seconds,
            total_tokens_per_s=(prompt_tokens + output_tokens) / seconds,
            engine=llm.info,
        )
