"""Throughput of the engine alone, in this process: no HTTP, no second process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from trivium.api import LLM, RequestOutput
from trivium.base.errors import ConfigError
from trivium.bench.options import WorkloadOptions
from trivium.bench.workload import BenchRequest, make_workload
from trivium.config.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFigures:
    """One offline run."""

    load_seconds: float
    """From the call to a model that answers: finding it, tokenizer and weights, and a download where it was needed."""
    seconds: float
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    engine: dict[str, object]


def run(workload: WorkloadOptions, model: str, engine_options: dict[str, Any]) -> OfflineFigures:
    """Load a model, answer the workload, all requests of a turn together, and report.

    Raises:
        ConfigError: The workload cannot be made, or needs a chat template that the model has not.
        ModelError: The model cannot be loaded.
        RequestError: A prompt does not fit the model.
    """
    requests = make_workload(workload)
    params = SamplingParams(temperature=0.0, max_tokens=workload.output_len, ignore_eos=True)
    began_s = time.perf_counter()
    with LLM(model, **engine_options) as llm:
        loaded_s = time.perf_counter()
        outputs = _answer(llm, requests, params)
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
            # The engine's own count leaves out the tokenizer; one figure under that name is enough.
            engine={name: value for name, value in llm.info.items() if name != "load_seconds"},
        )


def _answer(llm: LLM, requests: list[BenchRequest], params: SamplingParams) -> list[RequestOutput]:
    """Answer turn after turn; each turn's prompts go in together."""
    texts = [request.prompts[0] for request in requests if not request.is_chat]
    outputs = llm.generate(texts, params, use_tqdm=True) if texts else []
    asked = [list(request.messages) for request in requests if request.messages]
    outputs += _chat(llm, asked, params)
    talks = [request for request in requests if request.is_chat and not request.messages]
    histories: list[list[dict[str, Any]]] = [[] for _ in talks]
    for turn in range(max((len(talk.prompts) for talk in talks), default=0)):
        for talk, history in zip(talks, histories, strict=True):
            history.append({"role": "user", "content": talk.prompts[turn]})
        answers = _chat(llm, histories, params)
        for history, answer in zip(histories, answers, strict=True):
            history.append({"role": "assistant", "content": answer.outputs[0].text})
        outputs += answers
    return outputs


def _chat(llm: LLM, conversations: list[list[dict[str, Any]]], params: SamplingParams) -> list[RequestOutput]:
    if not conversations:
        return []
    if llm.frontend.chat_template is None:
        raise ConfigError(f"{llm.frontend.name} has no chat template, which conversations need; give chat_template")
    return llm.chat(conversations, params, use_tqdm=True)
