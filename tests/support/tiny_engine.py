"""A real engine loop over the tiny model, with a clock that stands still, built without reading a file twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from support.tiny_model import write_tiny_model
from trivium.api import Answers, CompletionOutput, RequestOutput
from trivium.assembly import build_engine
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

DEEP_LAYERS = 64


@cache
def tiny_model(window: int | None = None) -> Path:
    """Directory of the tiny model, written once per process."""
    return write_tiny_model(Path(mkdtemp(prefix="trivium-tiny-")) / "tiny", window=window)


@cache
def deep_model() -> Path:
    """Directory of a tiny model with so many layers that its answers take seconds, on any executor.

    For tests that stop an engine in the middle of an answer.
    """
    return write_tiny_model(Path(mkdtemp(prefix="trivium-deep-")) / "tiny", num_layers=DEEP_LAYERS)


def tiny_loop(*, window: int | None = None, **options: object) -> EngineLoop:
    """Build an engine loop; options are those of `LLM`."""
    given: dict[str, object] = {"model": str(tiny_model(window)), "kv_cache_memory": "1MiB", "threads": 1, **options}
    return build_engine(options_from(given))


def run_alone(loop: EngineLoop, prompt_ids: Sequence[int], params: SamplingParams) -> RequestOutput:
    """Answer one request with nothing else in the engine."""
    answers = Answers("alone", list(prompt_ids), list(prompt_ids), params)
    loop.submit(Submit(request_id="alone", prompt_ids=list(prompt_ids), params=params))
    while loop.has_work:
        for news in loop.step():
            answers.add(news)
    return answers.output


def without_ids(outputs: Sequence[CompletionOutput]) -> list[CompletionOutput]:
    """Return answers without the ids of their tool calls, which are drawn anew each time."""
    return [replace(each, tool_calls=[replace(call, id="") for call in each.tool_calls]) for each in outputs]
